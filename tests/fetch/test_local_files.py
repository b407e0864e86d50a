"""Small local files are read by their consumer; all others, and those that are slow, by threads."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.waiting import engine_threads
from torchdata_remote.core.local_view import MAP_FROM_BYTES
from torchdata_remote.core.options import FetchOptions, StorageOptions
from torchdata_remote.core.sample_range import part_url
from torchdata_remote.core.stats.counters import FETCH
from torchdata_remote.core.urls import RemoteUrl
from torchdata_remote.errors import ObjectChangedError, ObjectNotFoundError
from torchdata_remote.fetch import local_files
from torchdata_remote.fetch.listing.sources import list_source
from torchdata_remote.fetch.local_files import FileStream
from torchdata_remote.fetch.object_stream import ObjectStream
from torchdata_remote.fetch.session import FetchSession
from torchdata_remote.fetch.streams import stream_objects

RETRY = FetchOptions().retry


def session(**options: object) -> FetchSession:
    return FetchSession(FetchOptions(**options), StorageOptions())  # type: ignore[arg-type]


def listed(folder: Path) -> list[RemoteUrl]:
    return list(list_source(str(folder), pattern=None, recursive=True, options=StorageOptions(), retry=RETRY))


def written(folder: Path, *contents: bytes) -> list[str]:
    for number, content in enumerate(contents):
        (folder / f"{number:03d}.bin").write_bytes(content)
    return [str(folder / f"{number:03d}.bin") for number in range(len(contents))]


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("is_listed", [True, False])
def test_small_files_are_read_without_a_thread(tmp_path: Path, in_order: bool, is_listed: bool) -> None:
    """By path, file URL or listing; numbers are those of the source."""
    contents = [b"first", b"", os.urandom(70_000)]
    paths = written(tmp_path, *contents)
    urls = listed(tmp_path) if is_listed else [paths[0], f"file://{paths[1]}", paths[2]]
    before, counted = engine_threads(), FETCH.snapshot()
    streams = [stream for _, stream in stream_objects(urls, session(in_order=in_order))]
    assert [type(stream) for stream in streams] == [FileStream] * 3
    assert [stream.read() for stream in streams] == contents
    assert [stream.number for stream in streams] == ([0, 1, 2] if in_order else [None] * 3)
    assert engine_threads() <= before, "none was started"
    done = FETCH.snapshot() - counted
    assert (done.items, done.requests, done.num_bytes) == (3, 3, 70_005)


def test_a_file_stream_reads_as_other_streams_do(tmp_path: Path) -> None:
    """Pieces, lines, positions, ranges, and nothing after it is closed."""
    [path] = written(tmp_path, b"one\ntwo\nthree")
    [(_, stream)] = stream_objects([path], session())
    assert stream.find_num_bytes() == 13
    assert (stream.readline(), stream.peek(3)[:3], stream.tell()) == (b"one\n", b"two", 4)
    assert (stream.read_range(4, 7), stream.read(4), stream.tell()) == (b"two", b"two\n", 8)
    assert (bytes(next(stream.parts())), list(stream.parts()), stream.read()) == (b"three", [], b"")
    stream.close()
    with pytest.raises(ValueError, match="closed stream"):
        stream.read()
    [(_, stream)] = stream_objects([path], session())
    assert (stream.read(5), stream.whole()) == (b"one\nt", b"wo\nthree")


def test_a_file_that_was_replaced_or_removed_is_the_usual_error(tmp_path: Path) -> None:
    """With the same number of bytes, too; the files beside it are read."""
    written(tmp_path, b"0000", b"1111", b"2222", b"3333")
    urls = listed(tmp_path)
    (tmp_path / "new").write_bytes(b"new!")
    os.replace(tmp_path / "new", tmp_path / "001.bin")
    (tmp_path / "002.bin").unlink()
    streams = dict(stream_objects(urls, session()))
    assert streams[urls[0]].read() == b"0000"
    with pytest.raises(ObjectChangedError, match=r"001\.bin"):
        streams[urls[1]].read()
    with pytest.raises(ObjectNotFoundError, match=r"002\.bin"):
        streams[urls[2]].whole()
    assert streams[urls[3]].read() == b"3333"
    for stream in streams.values():
        stream.close()


def test_large_files_cached_files_and_parts_of_shards_are_fetched_by_threads(tmp_path: Path) -> None:
    """As objects of other stores are."""
    (tmp_path / "data").mkdir()
    [path] = written(tmp_path / "data", b"0")
    [large] = written(tmp_path, bytes(MAP_FROM_BYTES))
    for url, chosen in ((large, session()), (path, session(cache_dir=str(tmp_path / "cache"), cache_bytes=10**6))):
        [(_, stream)] = stream_objects([url], chosen)
        assert type(stream) is ObjectStream
        assert len(stream.read()) == os.path.getsize(url)
    assert local_files.LocalFiles(session()).path_of(part_url(path, 0, 1)) is None


def test_slow_files_are_fetched_ahead_and_then_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After three that took long in a row, threads fetch the next ones; then one is read by the consumer again."""
    contents = [b"%d" % number for number in range(12)]
    urls = written(tmp_path, *contents)
    monkeypatch.setattr(local_files, "_SLOW_S", 0.0)  # each read takes longer
    monkeypatch.setattr(local_files, "_FETCHED_IF_SLOW", 4)
    kinds, read = [], []
    for _, stream in stream_objects(urls, session()):
        kinds.append(type(stream) is FileStream)
        read.append(stream.read())
        stream.close()
    assert read == contents
    assert kinds == [True] * 3 + [False] * 4 + [True] + [False] * 4
