"""Two versions of an object are never mixed, and bytes that a manifest's checksums refuse are never handed out."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import torchdata_remote as tdr
from tests.reading.wire import Fault, Wire, wire
from tests.servers.raw import answer, raw
from tests.servers.scripted import Response, scripted
from tests.support.scripted_store import AT_ONCE, held_by, store_of
from torchdata_remote.errors import ObjectChangedError, ObjectNotFoundError, ShardCorruptError

END_S = 60


@pytest.fixture(scope="module")
def server() -> Iterator[Wire]:
    with wire() as running:
        yield running


@given(
    data=st.binary(min_size=30, max_size=60),
    broken_at=st.integers(0, 29),
    conditions=st.booleans(),
    listed=st.booleans(),
    other_size=st.booleans(),
)
@settings(max_examples=15)  # each sends requests to a server
@example(data=bytes(30), broken_at=0, conditions=True, listed=False, other_size=False)
def test_an_object_that_is_replaced_while_it_is_read_is_an_error(
    server: Wire, data: bytes, broken_at: int, conditions: bool, listed: bool, other_size: bool
) -> None:
    made = server.put(data, Fault(breaks_after=broken_at))
    made.conditions = conditions
    [(_, stream)] = server.open(made.listed() if listed else made.url, retry=AT_ONCE)
    first = stream.read(broken_at)  # which has arrived before the first response breaks
    made.data, made.etag = bytes(byte ^ 255 for byte in data) + b"more" * other_size, '"v2"'
    assert first == data[:broken_at]
    try:
        rest = stream.read()
    except ObjectChangedError as error:
        assert made.url in str(error)  # noqa: PT017  # it may have been read as a whole before
    else:
        assert first + rest in (data, made.data) if not (listed or first) else first + rest == data
    stream.close()


@pytest.mark.parametrize("head", ["etag", "grown"])
@pytest.mark.parametrize("broken_at", [None, 20])
def test_one_response_of_another_version_is_repeated_and_four_are_an_error(
    server: Wire, head: str, broken_at: int | None
) -> None:
    # A proxy may mix responses up
    start = [] if broken_at is None else [Fault(breaks_after=broken_at)]
    made = server.put(bytes(range(60)), *start, *[Fault(head)] * 3)
    assert server.read(made.listed()) == made.data
    made = server.put(bytes(range(60)), *start, *[Fault(head)] * 4)
    with pytest.raises(ObjectChangedError, match=r"60 bytes.*etag \"v1\".*list it again"):
        server.read(made.listed())
    assert len(made.requests) == len(start) + 4


@pytest.mark.parametrize("size", [0, 1, 9, 10, 11, 24, 26, 35, 100])
def test_another_size_than_listed_is_an_error(size: int) -> None:
    with store_of({"a": bytes(size)}) as store:
        store.has_etags = False
        for listed_size in (0, 25):
            if size == listed_size:
                continue
            [(_, stream)] = store.open([tdr.RemoteUrl(f"{store.url}a", listed_size)])
            with pytest.raises(ObjectChangedError, match=f"^{store.url}a"):
                stream.read()
            stream.close()


def test_parts_of_two_versions_of_one_size_are_not_mixed_where_the_listing_had_no_etag() -> None:
    with store_of({"a": b"1" * 20}) as store:
        both, stat = threading.Barrier(2), iter(['"1"', '"2"'])
        store.before_read = held_by(both)  # before either response
        store.etag = lambda name: next(stat, '"2"')  # type: ignore[method-assign]
        [(_, stream)] = store.open([tdr.RemoteUrl(f"{store.url}a", 20)], max_in_flight=2)
        store.before_read = lambda name, start: None
        with pytest.raises(ObjectChangedError, match="etag"):
            stream.read()
        stream.close()


# --- servers that ignore ranges


@given(data=st.binary(max_size=100), part_bytes=st.integers(1, 70), listed=st.booleans())
@settings(max_examples=15)  # each starts a server
def test_a_server_that_ignores_ranges_does_not_send_an_object_for_each_part(
    data: bytes, part_bytes: int, listed: bool
) -> None:
    headers = {"ETag": '"1"', "Last-Modified": "Sat, 21 Nov 2026 00:00:00 GMT"}
    with scripted(lambda request: Response(200, data, headers)) as running:
        url = tdr.RemoteUrl(f"{running.url}/a", len(data)) if listed else f"{running.url}/a"
        pipe = tdr.IterableWrapper([url]).async_prefetch(part_bytes=part_bytes, retry=AT_ONCE)
        assert [stream.read() for _, stream in pipe] == [data]
        assert len(running.requests) <= 2 + (not data), "one more where a library does not take such a response"


@pytest.mark.parametrize("query", ["", "?x=1"])
def test_a_server_that_ignores_ranges_is_read_to_its_end_if_it_pauses_where_the_request_ended(query: str) -> None:
    data, asked, gate = os.urandom((1 << 20) + 5), 1 << 20, threading.Event()
    headers = f"Content-Length: {len(data)}", "Last-Modified: Sat, 21 Nov 2026 00:00:00 GMT"

    def respond(head: str) -> Iterator[bytes]:
        yield answer("200 OK", data[:asked], *headers)
        assert gate.wait(60)
        yield data[asked:]

    with raw(respond) as running:
        [(_, stream)] = tdr.IterableWrapper([f"{running.url}/a{query}"]).async_prefetch(retry=AT_ONCE)
        if query:  # obstore, which reads the others, has no such small pieces
            start = stream.read(asked)
            assert start == data[:asked]
        gate.set()
        assert stream.read() == data[asked if query else 0 :]


# --- local files


def written(folder: Path, *contents: bytes) -> list[tdr.RemoteUrl]:
    for number, content in enumerate(contents):
        (folder / f"{number:03d}.bin").write_bytes(content)
    return list(tdr.IterableWrapper([f"{folder}/"]).list_remote())


@pytest.mark.parametrize("num_bytes", [4, 9 << 20])
def test_a_local_file_that_was_replaced_or_removed_is_an_error(tmp_path: Path, num_bytes: int) -> None:
    urls = written(tmp_path, *[bytes([number]) * num_bytes for number in range(4)])
    (tmp_path / "new").write_bytes(b"9" * num_bytes)
    os.replace(tmp_path / "new", tmp_path / "001.bin")
    (tmp_path / "002.bin").unlink()
    streams = dict(tdr.IterableWrapper(urls).async_prefetch(retry=AT_ONCE))
    assert streams[urls[0]].read() == bytes(num_bytes)
    with pytest.raises(ObjectChangedError, match=r"001\.bin"):
        streams[urls[1]].read()
    with pytest.raises(ObjectNotFoundError, match=r"002\.bin"):
        streams[urls[2]].read()
    assert streams[urls[3]].read() == b"\3" * num_bytes
    for stream in streams.values():
        stream.close()


@pytest.mark.parametrize("num_bytes", [4, 9 << 20])
def test_bytes_of_a_local_file_stay_what_they_were_when_it_is_replaced_or_unlinked(
    tmp_path: Path, num_bytes: int
) -> None:
    [url] = written(tmp_path, os.urandom(num_bytes))
    data = (tmp_path / "000.bin").read_bytes()
    [sample] = tdr.IterableWrapper([url]).async_prefetch().file_reader()
    (tmp_path / "new").write_bytes(bytes(num_bytes))
    os.replace(tmp_path / "new", tmp_path / "000.bin")
    os.unlink(tmp_path / "000.bin")
    assert bytes(sample["bin"]) == data


# --- checksums of a manifest

BLOCK = 4 << 20


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, bytes], list[bytes]]:
    """Two shards of several blocks with their manifest, and the members."""
    folder = tmp_path_factory.mktemp("shards")
    images = [os.urandom(900_000) for _ in range(24)]
    with tdr.ShardWriter(f"{folder}/{{shard:03d}}.tar", max_shard_samples=12) as writer:
        for index, image in enumerate(images):
            writer.write({"__key__": f"{index:03d}", "bin": image})
    return {path.name: path.read_bytes() for path in folder.iterdir()}, images


@pytest.fixture
def damaged(shards: tuple[dict[str, bytes], list[bytes]]) -> Iterator[Any]:
    """An S3 server whose n-th GET of a shard has a flipped bit, if n is in a set."""
    files, _ = shards
    flips, lock = set[int](), threading.Lock()
    gets: list[tuple[str, int, int]] = []

    def respond(request: Any) -> Response:
        name = request.target.partition("?")[0].rpartition("/")[2]
        if name not in files:
            return Response.of_error(404, "NoSuchKey")
        answer = Response.of_object(request, files[name], f'"{name}"')
        if request.method == "GET" and name.endswith(".tar"):
            with lock:
                number = len(gets)
                first = int(request.headers.get("range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
                gets.append((name, first, first + len(answer.body)))
            if number in flips:
                body = bytearray(answer.body)
                body[len(body) // 2] ^= 1
                return Response(answer.status, bytes(body), answer.headers)
        return answer

    with scripted(respond) as running:
        options = {"endpoint_url": running.url, "key": "k", "secret": "s", "region": "us-east-1"}
        urls = tdr.IterableWrapper(["s3://bkt/index.json"]).list_remote(storage_options=options)
        yield urls, options, flips, gets


@pytest.mark.parametrize("part_bytes", [1 << 20, 5_000_000, 8 << 20])
def test_a_flipped_bit_is_mended_from_the_checksums_of_the_manifest(
    damaged: Any, shards: tuple[dict[str, bytes], list[bytes]], part_bytes: int
) -> None:
    urls, options, flips, gets = damaged
    flips |= {0, 2, 5}
    pipe = urls.async_prefetch(max_in_flight=1, part_bytes=part_bytes, retry=AT_ONCE, storage_options=options)
    assert [sample["bin"] for sample in pipe.shard_tar_reader()] == shards[1]
    # Only the damaged block and what follows it in the part are requested again
    assert all(first % BLOCK == 0 for _, first, _ in gets)
    assert len(gets) >= 3


@pytest.mark.parametrize("at", [10, BLOCK, 5_000_000, -1])
def test_a_block_that_is_damaged_in_the_store_is_an_error_after_a_second_request(
    damaged: Any, shards: tuple[dict[str, bytes], list[bytes]], at: int
) -> None:
    urls, options, _, gets = damaged
    sound = shards[0]["001.tar"]
    broken = bytearray(sound)
    broken[at] ^= 64
    shards[0]["001.tar"] = bytes(broken)
    try:
        pipe = urls.async_prefetch(retry=AT_ONCE, storage_options=options)
        got = []
        place = at % len(sound)
        with pytest.raises(ShardCorruptError, match=rf"001\.tar: the block at byte {place // BLOCK * BLOCK:,} "):  # noqa: PT012
            for _, stream in pipe:
                got.append(stream)
                stream.read()
        assert sum(name == "001.tar" and first <= place < end for name, first, end in gets) == 2
    finally:
        shards[0]["001.tar"] = sound


def test_a_flipped_bit_of_a_local_shard_is_noticed(tmp_path: Path) -> None:
    with tdr.ShardWriter(f"{tmp_path}/{{shard}}.tar") as writer:
        writer.write({"__key__": "a", "bin": bytes(9 << 20)})
    data = bytearray((tmp_path / "0.tar").read_bytes())
    data[BLOCK + 7] ^= 1
    (tmp_path / "0.tar").write_bytes(data)
    pipe = tdr.IterableWrapper([f"{tmp_path}/index.json"]).list_remote().async_prefetch(retry=AT_ONCE)
    with pytest.raises(ShardCorruptError, match="block at byte 4,194,304"):
        list(pipe.shard_tar_reader())
