"""Names that others choose."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("starlette", reason="the service's libraries are not installed")

from torchdata_remote.service.server.names import (
    disposition,
    name_from_content,
    name_in_disposition,
    require_beginning,
    require_dataset_name,
    require_path,
    require_upload_id,
)
from torchdata_remote.service.server.problems import Problem


def fits(check: object, text: object) -> bool:
    try:
        check(text)  # type: ignore[operator]
    except Problem as problem:
        if problem.status != 400:
            raise
        return False
    return True


@pytest.mark.parametrize("name", ["a", "9", "my_dataset", "A.b-c_d", "a" * 128, "a..b"])
def test_names_of_datasets(name: str) -> None:
    """1 to 128 of a few ASCII characters."""
    assert require_dataset_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "-a",
        "_a",
        "a b",
        "a/b",
        "a\n",
        "é",
        "٣",
        "a" * 129,
        None,
        1,
        ["a"],
        "a\0",
        "a.torchdata_remote-partial",
    ],
)
def test_what_names_no_dataset(name: object) -> None:
    """All else, also what regular expressions like to overlook."""
    assert not fits(require_dataset_name, name)


@given(st.text(max_size=30))
def test_a_path_has_no_segment_that_leads_away(path: str) -> None:
    """Whatever is accepted consists of plain names, as many bytes as file systems take."""
    if fits(require_path, path):
        segments = path.split("/")
        assert not {"", ".", ".."} & set(segments)
        assert not any(character < " " or character in "\x7f\\" for character in path)
        assert all(fits(require_beginning, path[:end]) for end in range(len(path) + 1))


@pytest.mark.parametrize(("size", "is_fine"), [(255, True), (256, False)])
def test_limits_are_of_bytes(size: int, is_fine: bool) -> None:
    """Not of characters."""
    assert fits(require_path, "x" * size) == is_fine
    assert fits(require_path, "é" * (size // 2) + "x" * (size % 2)) == is_fine
    assert fits(require_path, "/".join(["x"] * 512) + "y" * (size - 254)) == is_fine


@pytest.mark.parametrize(
    ("upload", "is_fine"),
    [("a" * 8, True), ("A-_9" * 16, True), ("a" * 7, False), ("a" * 65, False), ("a" * 8 + "\n", False)],
)
def test_ids_of_uploads(upload: str, is_fine: bool) -> None:
    """8 to 64 characters that need no escape in a URL."""
    assert fits(require_upload_id, upload) == is_fine


@given(st.text(max_size=30))
def test_a_disposition_brings_the_name_back(name: str) -> None:
    """Whatever the name is, the header is ASCII and tells it; no header is ended by it."""
    if not fits(require_path, name):
        return
    header = disposition(name)
    assert header.isascii()
    assert header.isprintable()
    assert name_in_disposition(header) == name.rpartition("/")[2]


@given(st.text(st.characters(max_codepoint=255), max_size=60))
def test_any_disposition_is_a_name_or_a_problem(header: str) -> None:
    """Never another error."""
    for beginning in ("", "attachment; filename=", "attachment; filename*=", "attachment; filename*0*="):
        fits(name_in_disposition, beginning + header)


@pytest.mark.parametrize(
    ("head", "extension"),
    [
        (b"\xff\xd8\xff\xe0", "jpg"),
        (b"RIFF....WEBPVP8 ", "webp"),
        (b"\0" * 257 + b"ustar\0", "tar"),
        (b'{"a": 1}', "json"),
        ("é".encode() * 300, "txt"),
        ("é".encode()[:1], "bin"),
        (b"\xff\xfe", "bin"),
        (b"text\0", "bin"),
    ],
)
def test_a_name_from_the_content(head: bytes, extension: str) -> None:
    """16 digits of the hash, and what the first bytes look like, where characters may be cut."""
    assert name_from_content(head[:512], "0123456789abcdef" * 4) == f"0123456789abcdef.{extension}"
