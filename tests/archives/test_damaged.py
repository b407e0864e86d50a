"""Damaged and hostile tars: no sample is missing or wrong silently, and memory is bounded."""

from __future__ import annotations

import gc
import gzip
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import fsspec
import pytest

import torchdata_remote as tdr
from tests.support.archive_bytes import END_OF_ARCHIVE as END
from tests.support.archive_bytes import make_header, make_member, octal_size, pack_tar, pax_line
from tests.support.archives import at_most, flipped, outcome, reader, refusal
from tests.support.fuzz_archives import within_limits
from tests.support.waiting import new_threads, wait_for
from torchdata_remote.errors import ShardCorruptError, ShardReadError


def test_a_manifest_detects_every_flipped_bit(tmp_path: Path) -> None:
    """Bits anywhere in the shards, including data and padding."""
    samples = [{"__key__": f"d/{i}", "cls": b"1", "jpeg": Random(i).randbytes(37 * i)} for i in range(10)]
    with tdr.ShardWriter(f"{tmp_path}/{{shard}}.tar", max_shard_samples=4) as writer:
        for sample in samples:
            writer.write(sample)
    retry, random = tdr.RetryPolicy(first_wait_s=0), Random(1)
    for _ in range(50):
        shard = tmp_path / f"{random.randrange(3)}.tar"
        data = shard.read_bytes()
        at, bit = random.randrange(len(data)), random.randrange(8)
        shard.write_bytes(flipped(data, at, bit))
        urls = tdr.IterableWrapper([f"{tmp_path}/index.json"]).list_remote()
        found, error = outcome(urls.async_prefetch(retry=retry).shard_tar_reader())
        shard.write_bytes(data)
        assert isinstance(error, ShardCorruptError), f"bit {bit} of byte {at} of {shard.name}: {error}"
        assert found == samples[: len(found)], f"bit {bit} of byte {at} of {shard.name}"


# Malice


def header(name: bytes, num_bytes: int) -> bytes:
    return make_header(name, octal_size(num_bytes))


def pax(key: str, value: str) -> bytes:
    return make_member(b"pax", pax_line(key, value), b"x")


ONE = make_member(b"a.x", b"one")
ZEROS = gzip.compress(bytes(10 << 20))  # streams that follow each other are one archive
HOSTILE: dict[str, Callable[[], bytes]] = {
    "4 GiB that do not come": lambda: header(b"a.x", (4 << 30) - 1) + bytes(2048),
    "sparse map in pax": lambda: pax("GNU.sparse.map", "0,1," * 2000) + ONE + END,
    ".. in pax": lambda: pax("path", "d/../a.x") + ONE + END,
    "absolute long name": lambda: make_member(b"L", b"/etc/a.x\0", b"L") + ONE + END,
    "NUL in pax": lambda: pax("path", "b\0.x") + ONE + END,
    "NUL in a long name": lambda: make_member(b"L", b"b.x\0/../c.x", b"L") + ONE + END,
    "a path of 500,000 folders": lambda: pax("path", "a/" * 500_000 + "b.tar") + ONE + END,
    "a name of 1 MiB": lambda: pax("path", "../" + "\x01" * 1_000_000) + ONE + END,
    "4,000 long keys": lambda: gzip.compress(
        b"".join(pax("path", f"{i}" + "x" * 4000 + "\U0001f600.x") + ONE for i in range(4000)), 1
    ),
    "a bomb after a member": lambda: gzip.compress(ONE + header(b"b.x", 300 << 20)) + ZEROS * 30,
}


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_tar_is_an_error_that_takes_no_memory(case: str, nested: bool) -> None:
    """Bounded memory, no thread, and a short message; as the shard, and as an archive within it."""
    data, before = HOSTILE[case](), set(threading.enumerate())
    data = make_member(b"a.tar", data) + END if nested else data
    with within_limits():
        message = refusal(data, nested=nested)
    assert len(message) < 10_000
    gc.collect()
    wait_for(lambda: not new_threads(before))


def test_keys_of_many_samples_take_little_memory() -> None:
    """100 to 200 bytes for a key such as n01440764_10026, remembered to notice one that comes back."""
    members = b"".join(make_member(b"n01440764_%05d.jpg" % number, b"") for number in range(20_001))
    samples = iter(reader(members + END))
    next(samples)
    gc.collect()
    with at_most(400 * 20_000):
        for _ in range(19_999):
            next(samples)


def test_keys_of_two_archives_inside_one_cannot_be_equal() -> None:
    """``a`` with ``b/c``, and ``a/b`` with ``c``; ``a.tar`` and ``a.tgz``; ``a`` and ``./a``."""
    inner = pack_tar([("b/c.x", b"1")])
    for one, other in (("a.tar", "a/b.tar"), ("a/b.tar", "a.tar"), ("a.tar", "a.TGZ"), ("a.tar", "./a.tar")):
        message = refusal(pack_tar([(one, inner), ("n.tar", pack_tar([("c.x", b"2")])), (other, inner)]), nested=True)
        assert "Rename one of the archives" in message
    names = ["a.tar", "ab.tgz", "b/a.tar.zst", "./a-.tbz2", "v1.0.txz"]
    found = [sample["__key__"] for sample in reader(pack_tar([(name, inner) for name in names]), nested=True)]
    assert found == ["a/b/c", "ab/b/c", "b/a/b/c", "a-/b/c", "v1.0/b/c"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [("README", "it has no extension"), ("../a.tar", '".."'), ("/a.tar", "absolute"), (".tar", "starts with a dot")],
)
def test_an_archive_inside_one_needs_a_name_that_can_be_a_folder(name: str, reason: str) -> None:
    data = pack_tar([("a.tar", pack_tar([("b.x", b"1")])), (name, b"about")])
    message = refusal(data, nested=True)
    assert reason in message
    assert "on_bad_member" in message
    pipe = reader(data, nested=True, on_bad_member=lambda error: None)
    assert [sample["__key__"] for sample in pipe] == ["a/b"]
    assert sum(pipe.skipped.bad_members.values()) == 1


# A text in the place of an archive: a page of a proxy, an error of a server, a pointer of Git LFS

PAGE = "the server sent a page or an error instead of the object"
TEXTS = [
    (b"<html>Please log in", f"begins with '<html>Please log in': {PAGE}"),
    (b"\r\n<!DOCTYPE html>" + b"<p>" * 1000, PAGE),
    (b'{"error": "denied"}', PAGE),
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n", "`git lfs pull` gets the file"),
    ("Größe: 12\n".encode() * 100, "it is a text"),
    ("Grö".encode()[:-1], "begins with 'Gr"),  # cut within a character
]


def refused(name: str, content: bytes) -> str:
    url = f"memory://{uuid.uuid4().hex}/{name}"
    fsspec.filesystem("memory").pipe(url, content)
    urls = tdr.IterableWrapper([url]).async_prefetch()
    pipe: Any = urls.shard_zip_reader() if name.endswith("zip") else urls.shard_tar_reader()
    with pytest.raises(ShardReadError) as caught:
        list(pipe)
    return str(caught.value)


@pytest.mark.parametrize(("content", "text"), TEXTS)
@pytest.mark.parametrize("name", ["0.tar", "0.tar.gz", "0.zip"])
def test_a_text_instead_of_an_archive_is_shown(content: bytes, text: str, name: str) -> None:
    """Servers and proxies send pages with status 200; whoever sees its beginning knows what happened."""
    assert text in refused(name, content)
    if name.endswith(".gz"):
        assert text in refused(name, gzip.compress(content))


WRITTEN = pack_tar([("a.txt", b"x")])


@pytest.mark.parametrize(
    "content",
    [
        *(bytes(30) + b"<html>", b"\x1f\x8b" + b"0" * 100, b"a/b.txt" + bytes(600) + b"x" * 99),
        *(WRITTEN[:100] + b"Z" + WRITTEN[101:], WRITTEN[:1024] + b"<html>" * 200),
    ],
)
def test_a_damaged_shard_is_not_called_a_text(content: bytes) -> None:
    """Only the first bytes tell what an object is."""
    assert "begins with" not in refused("0.tar", content)


def test_an_object_without_a_byte_is_an_error() -> None:
    assert "no byte" in refused("0.tar", b"")
    assert "no end record" in refused("0.zip", b"")
