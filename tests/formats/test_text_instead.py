"""A text in the place of an archive is shown: a page of a proxy, an error of a server, a pointer of Git LFS."""

from __future__ import annotations

import gzip
import uuid
from typing import Any

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import torchdata_remote as tdr
from torchdata_remote.errors import ShardReadError
from torchdata_remote.formats.text_instead import text_instead

PAGE = "the server sent a page or an error instead of the object"
TEXTS = [
    (b"<html>Please log in", f"begins with '<html>Please log in': {PAGE}"),
    (b"\r\n<!DOCTYPE html>" + b"<p>" * 1000, PAGE),
    (b'{"error": "denied"}', PAGE),
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n", "`git lfs pull` gets the file"),
    ("Größe: 12\n".encode() * 100, "it is a text"),
]


def _read(name: str, content: bytes, reader: str) -> str:
    url = f"memory://text-instead/{uuid.uuid4().hex}/{name}"
    fsspec.filesystem("memory").pipe(url, content)
    with pytest.raises(ShardReadError) as caught:
        list(getattr(tdr.IterableWrapper([url]).async_prefetch(), reader)())
    return str(caught.value)


@pytest.mark.parametrize(("content", "text"), TEXTS)
@pytest.mark.parametrize(
    ("name", "reader"), [("0.tar", "shard_tar_reader"), ("0.tar.gz", "shard_tar_reader"), ("0.zip", "shard_zip_reader")]
)
def test_a_text_instead_of_an_archive_is_shown(content: bytes, text: str, name: str, reader: str) -> None:
    """Servers and proxies send pages with status 200; whoever sees its beginning knows what happened."""
    assert text in _read(name, content, reader)
    if name.endswith(".gz"):
        assert text in _read(name, gzip.compress(content), reader)


@pytest.mark.parametrize(
    "content", [bytes(30) + b"<html>", b"\x1f\x8b" + b"0" * 100, b"a/b.txt" + bytes(600) + b"x" * 99]
)
def test_other_bytes_are_not_called_a_text(content: bytes) -> None:
    assert "begins with" not in _read("0.tar", content, "shard_tar_reader")


def test_a_damaged_shard_is_not_called_a_text() -> None:
    """Nor a text that follows a member: only the first bytes tell what an object is."""
    with tdr.ShardWriter("memory://text-instead/whole/{shard}.tar", overwrite=True) as writer:
        writer.write({"__key__": "a", "txt": "x"})
    whole: Any = fsspec.filesystem("memory").cat("/text-instead/whole/0.tar")
    assert "begins with" not in _read("0.tar", whole[:100] + b"Z" + whole[101:], "shard_tar_reader")
    assert "begins with" not in _read("0.tar", whole[:1024] + b"<html>" * 200, "shard_tar_reader")


@given(
    st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "Zs"]), min_size=1, max_size=300), st.integers(0, 3)
)
def test_a_text_that_is_cut_within_a_character_is_a_text(text: str, cut: int) -> None:
    """Of 512 bytes the last character may be a part."""
    content = text.encode()
    start = content[: max(len(content) - cut, len(text[0].encode()))]
    assert text_instead(start).startswith(", and begins with ")
