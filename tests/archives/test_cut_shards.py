"""Shards that were cut anywhere: what skips over data finds all members, or that the end is missing."""

from __future__ import annotations

import io
import json
import re
import tarfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import torchdata_remote as tdr
from tests.servers.raw import answer, raw
from tests.support.archive_bytes import pack_tar
from tests.support.memory_objects import put as put_in_memory
from torchdata_remote.cli import main
from torchdata_remote.errors import ShardReadError

# Small, with extended headers; or larger than what is fetched ahead, so that jumps end beyond it, and beyond the cut
SIZES = {
    "small": [3, 0, 512, 700, 0],
    "100 kB": [100_000] * 4,
    "1 MiB": [70_000, 1 << 20, 3, (1 << 20) - 512],
    "5 MiB": [5 << 20, 5],
}
WHOLE = {
    name: pack_tar((f"{'é' * (name == 'small')}{at}.bin", b"U" * size) for at, size in enumerate(sizes))
    for name, sizes in SIZES.items()
}
PLACES = ["local", "memory", "ranges", "no ranges", "chunked"]
Put = Callable[[bytes], str]


@pytest.fixture(params=PLACES)
def put(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Put]:
    """Puts a shard anew into a place, and returns its URL."""
    place, data = request.param, b""

    def respond(head: str) -> bytes:
        method, target, _ = head.split(" ", 2)
        if not target.endswith(".tar"):
            return answer("404 Not Found", b"", "Content-Length: 0")
        body, status, lines = data, "200 OK", []
        found = re.search(r"range: bytes=(\d+)-(\d*)", head, re.IGNORECASE)
        if place == "ranges" and found is not None:
            first, last = int(found[1]), int(found[2] or len(data))
            if first >= len(data):
                return answer("416 Out of range", b"", f"Content-Range: bytes */{len(data)}", "Content-Length: 0")
            status, body = "206 Partial", data[first : last + 1]
            lines.append(f"Content-Range: bytes {first}-{first + len(body) - 1}/{len(data)}")
        if place != "chunked":
            return answer(status, body if method == "GET" else b"", f"Content-Length: {len(body)}", *lines)
        pieces = (data[start : start + 60_000] for start in range(0, len(data), 60_000))
        body = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
        return answer(status, body if method == "GET" else b"", "Transfer-Encoding: chunked")

    with raw(respond) as server:

        def put_anew(content: bytes) -> str:
            nonlocal data
            data, name = content, uuid.uuid4().hex
            if place == "local":
                (tmp_path / name).mkdir()
                (tmp_path / name / "0.tar").write_bytes(content)
                return f"file://{tmp_path}/{name}/0.tar"
            return put_in_memory(content, "0.tar") if place == "memory" else f"{server.url}/{name}/0.tar"

        yield put_anew


Found = list[tuple[str, int]]
Way = Callable[[str, pytest.CaptureFixture[str]], Found]


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a command prints, or the error that it ends with."""
    capsys.readouterr()
    status = main(arguments)
    captured = capsys.readouterr()
    if status:
        assert captured.out == ""
        raise ShardReadError(captured.err.removeprefix("torchdata-remote: "))
    return captured.out


def inspected(url: str, capsys: pytest.CaptureFixture[str]) -> Found:
    shard = json.loads(command(capsys, "inspect", url, "--json", "--samples", "99"))["shard"]
    assert (shard["num_samples"], shard["num_members"]) == (len(shard["first"]), len(shard["first"]))
    return [(one["key"], one["bytes"]["bin"]) for one in shard["first"]]


def sharded(url: str, capsys: pytest.CaptureFixture[str]) -> Found:
    out = f"memory://{uuid.uuid4().hex}/"
    try:
        command(capsys, "shard", url, out + "{shard}.tar", "--seed", "none", "--quiet")
    except ShardReadError:
        with pytest.raises(tdr.errors.RemoteDataError):
            list(tdr.stream_shards(out))
        raise
    return [(sample["__key__"], len(sample["bin"])) for sample in tdr.stream_shards(out, shuffle=False)]


def selected(url: str, capsys: pytest.CaptureFixture[str]) -> Found:
    """Without a file of keys beside it."""
    chain = tdr.IterableWrapper([url]).list_remote().select(where=lambda key: True)
    return [(sample["__key__"], len(sample["bin"])) for sample in chain.shard_tar_reader()]


def lazily(url: str, capsys: pytest.CaptureFixture[str]) -> Found:
    samples = tdr.stream_shards(url, shuffle=False, lazy={"bin"})
    return [(sample["__key__"], sample["bin"].seek(0, io.SEEK_END)) for sample in samples]


def in_a_manifest(url: str, capsys: pytest.CaptureFixture[str]) -> Found:
    folder = url.removesuffix("0.tar")
    command(capsys, "manifest", folder, "--quiet")
    chain = tdr.IterableWrapper([folder + "index.json"]).list_remote().select(where=lambda key: True)
    return [(sample["__key__"], len(sample["bin"])) for sample in chain.shard_tar_reader()]


WAYS: dict[str, Way] = {
    "inspect": inspected, "shard": sharded, "select": selected, "lazy": lazily, "manifest": in_a_manifest
}  # fmt: skip


def ways(url: str) -> list[str]:
    """A web server has no folders for ``manifest``."""
    return list(WAYS)[: 4 if url.startswith("http") else None]


@pytest.mark.filterwarnings("ignore:.*keys is missing")
@pytest.mark.parametrize("size", SIZES)
def test_a_whole_shard_has_the_members_that_tarfile_lists(
    put: Put, size: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with tarfile.open(fileobj=io.BytesIO(WHOLE[size])) as archive:
        members = [(member.name.removesuffix(".bin"), member.size) for member in archive]
    url = put(WHOLE[size])
    assert {way: WAYS[way](url, capsys) for way in ways(url)} == dict.fromkeys(ways(url), members)


def blocks_of(whole: bytes) -> tuple[list[int], set[int]]:
    """Where headers and the two blocks at the end begin; and which of them follow a whole member."""
    with tarfile.open(fileobj=io.BytesIO(whole)) as archive:
        borders = [member.offset for member in archive]
        headers = {*borders, *(member.offset_data - 512 for member in archive)}
    end = len(whole) - 1024
    return [*sorted(headers), end, end + 512], {*borders[1:], end}


def error_of(whole: bytes, cut: int) -> str:
    """How the error begins: with the first byte of what is cut, and whether only the end is missing."""
    begins, borders = blocks_of(whole)
    missing_end = "the archive ends without its end-of-archive blocks"
    what = missing_end if cut in borders else f"(?!{missing_end})"
    return rf"at byte {max(begin for begin in begins if begin <= cut):,}: {what}"


@st.composite
def cuts(draw: st.DrawFn) -> tuple[str, int]:
    size = draw(st.sampled_from(list(SIZES)))
    length, begins = len(WHOLE[size]), blocks_of(WHOLE[size])[0]
    near = st.builds(int.__add__, st.sampled_from(begins), st.sampled_from([-1, 0, 1, 511, 512, 513]))
    return size, draw(near.filter(lambda at: 0 <= at < length) | st.integers(0, length - 1))


@pytest.mark.filterwarnings("ignore:.*keys is missing")
@given(cut_at=cuts())
def test_a_shard_that_was_cut_anywhere_is_an_error_with_the_byte_of_what_is_cut(
    put: Put, cut_at: tuple[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    """Within a header, data, or padding, between two members, or within the two blocks of zeros at the end."""
    size, cut = cut_at
    error, url = error_of(WHOLE[size], cut), put(WHOLE[size][:cut])
    for way in ways(url):
        with pytest.raises(ShardReadError, match=f"^{url}: {error}"):
            WAYS[way](url, capsys)


@given(cut_at=cuts())
def test_neither_a_manifest_nor_an_index_nor_keys_hide_a_cut(
    cut_at: tuple[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    """Written when the shard was whole: ``verify`` names the byte, too; without the manifest the other two are read."""
    size, cut = cut_at
    error, url = error_of(WHOLE[size], cut), put_in_memory(WHOLE[size], "0.tar")
    folder, memory = url.removesuffix("0.tar"), fsspec.filesystem("memory")
    command(capsys, "manifest", folder, "--quiet")
    memory.pipe(url.removeprefix("memory:/"), WHOLE[size][:cut])
    assert main(["verify", folder, "--json", "--quiet"]) == 1
    found, of_size = json.loads(capsys.readouterr().out)["faults"]
    assert found["url"] == url
    assert re.match(error, found["what"])
    assert of_size == {"url": url, "what": f"has {cut:,} bytes, the manifest has {len(WHOLE[size]):,}"}
    memory.rm(folder.removeprefix("memory:/") + "index.json")
    with pytest.raises(ShardReadError, match=f"^{url}: {error}"):
        inspected(url, capsys)
    with pytest.raises(tdr.errors.RemoteDataError, match=f"^{url}"):
        selected(url, capsys)
