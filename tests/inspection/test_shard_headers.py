"""The members of one shard, by ranged requests."""

from __future__ import annotations

import gzip
import io
import struct
import threading
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import fsspec
import pytest

from tests.support.archive_bytes import pack_tar
from torchdata_remote import ShardWriter
from torchdata_remote.core.concurrency_limit import ConcurrencyLimit
from torchdata_remote.core.options import RetryPolicy, StorageOptions
from torchdata_remote.errors import ObjectNotFoundError, ShardReadError
from torchdata_remote.inspection.shard_headers import WRONG_INDEX, ShardHeaders

MEMBERS = [(f"{number}.bin", bytes([number]) * 100_000) for number in range(20)]
TAR = pack_tar(MEMBERS)


def put(url: str, data: bytes) -> str:
    fsspec.filesystem("memory").pipe(url.removeprefix("memory:/"), data)
    return url


def opened(url: str) -> ShardHeaders:
    return ShardHeaders(url, StorageOptions(), RetryPolicy())


def nothing(name: str, num_bytes: int) -> bool:
    return False


def names(heads: object) -> list[str]:
    return [head.name for head in heads]  # type: ignore[attr-defined]


def test_plain_tar_is_read_by_its_headers(memory_folder: str) -> None:
    """All members; few bytes are requested, and they are counted. A second pass works and is counted too."""
    shard = opened(put(f"{memory_folder}/0.tar", TAR))
    assert (shard.compression, shard.num_bytes) == (None, len(TAR))
    assert names(shard.from_start(nothing)) == [name for name, _ in MEMBERS]
    once = shard.fetched_bytes
    assert 20 * 512 < once < 0.05 * len(TAR)
    assert shard.num_requests <= 22
    assert names(shard.from_start(nothing)) == [name for name, _ in MEMBERS]
    assert shard.fetched_bytes == 2 * once


def test_only_wanted_data_are_read(memory_folder: str) -> None:
    """Of one member out of twenty."""
    shard = opened(put(f"{memory_folder}/0.tar", TAR))
    taken = [head.data for head in shard.from_start(lambda name, num_bytes: name == "7.bin")]
    assert taken == [MEMBERS[7][1] if number == 7 else None for number in range(20)]
    assert shard.fetched_bytes < 0.2 * len(TAR)


def test_between_reads_the_headers_of_a_range(memory_folder: str) -> None:
    """The members between two headers; an offset that is not a header's, or is before a member's end, raises."""
    shard = opened(put(f"{memory_folder}/0.tar", TAR))
    member = 512 + 100_352
    options = {"in_flight": ConcurrencyLimit(1, check=lambda: None), "wait": lambda seconds: None}
    assert names(shard.between(2 * member, 5 * member, nothing, **options)) == ["2.bin", "3.bin", "4.bin"]  # type: ignore[arg-type]
    assert names(shard.between(18 * member, None, nothing, **options)) == ["18.bin", "19.bin"]  # type: ignore[arg-type]
    for start, stop in ((512, None), (0, member + 512), (0, member - 512)):
        with pytest.raises(ShardReadError):
            list(shard.between(start, stop, nothing, **options))  # type: ignore[arg-type]


def test_compressed_shard_is_read_as_a_stream(memory_folder: str) -> None:
    """The same members; all bytes are counted."""
    data = gzip.compress(TAR)
    shard = opened(put(f"{memory_folder}/0.tar", data))
    assert shard.compression == "gzip"
    assert names(shard.from_start(nothing)) == [name for name, _ in MEMBERS]
    assert shard.fetched_bytes >= len(data)
    assert shard.read_index() == (None, "it is compressed by gzip")


def test_zip_is_refused_with_advice(memory_folder: str) -> None:
    """The error names the shard and the tools that read a zip."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a.txt", b"a")
    with pytest.raises(ShardReadError, match=r"0\.zip is a zip.*shard_zip_reader"):
        opened(put(f"{memory_folder}/0.zip", buffer.getvalue()))


def test_read_index_refuses_an_index_that_cannot_be_of_this_shard(memory_folder: str) -> None:
    """An index of valid offsets is returned; any other, or none, is reported."""
    with ShardWriter(f"{memory_folder}/{{shard}}.tar") as writer:
        for number in range(3):
            writer.write({"__key__": str(number), "txt": "text"})
    shard = opened(f"{memory_folder}/0.tar")
    assert shard.read_index() == ([0, 1024, 2048, 3072], "")
    for wrong in (b"", bytes(8), b"1234567", *(struct.pack(f"<{len(offsets)}Q", *offsets) for offsets in WRONG)):
        put(f"{memory_folder}/0.tar.idx", wrong)
        assert shard.read_index() == (None, WRONG_INDEX)
    fsspec.filesystem("memory").rm(f"{memory_folder}/0.tar.idx")
    assert shard.read_index() == (None, "there is no index beside it")


WRONG = ([512, 1024], [0, 1024, 1024], [0, 2048, 1024], [0, 1000], [0, 1 << 40], [0, (1 << 64) - 512])


def test_server_that_ignores_ranges_sends_the_shard_once(tmp_path: Path) -> None:
    """The index is not used, since each range would download the whole shard again."""
    (tmp_path / "0.tar").write_bytes(TAR)
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        shard = opened(f"http://127.0.0.1:{server.server_port}/0.tar")
        assert shard.read_index() == (None, "the server ignores ranges and sends the whole object")
        assert names(shard.from_start(nothing)) == [name for name, _ in MEMBERS]
        assert (shard.fetched_bytes, shard.num_requests) == (len(TAR), 1)
        server.shutdown()


def test_missing_or_empty_shard_raises(memory_folder: str) -> None:
    """A missing shard is a storage error, an empty one a shard error."""
    with pytest.raises(ObjectNotFoundError):
        opened(f"{memory_folder}/0.tar")
    with pytest.raises(ShardReadError, match="at byte 0"):
        list(opened(put(f"{memory_folder}/0.tar", b"")).from_start(nothing))
