"""Names that others choose."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("starlette", reason="the service's libraries are not installed")

from torchdata_remote.service.server.datasets.names import (
    disposition,
    name_from_content,
    name_in_disposition,
    require_dataset_name,
    require_path,
    require_prefix,
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
def test_valid_dataset_names(name: str) -> None:
    """1 to 128 letters, digits, dots, underscores and hyphens."""
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
def test_other_dataset_names_are_refused(name: object) -> None:
    """Including what regular expressions overlook, such as a final line break."""
    assert not fits(require_dataset_name, name)


@given(st.text(max_size=30))
def test_an_accepted_path_stays_in_its_folder(path: str) -> None:
    """It consists of plain names within the limits of file systems."""
    if fits(require_path, path):
        segments = path.split("/")
        assert not {"", ".", ".."} & set(segments)
        assert not any(character < " " or character in "\x7f\\" for character in path)
        assert all(fits(require_prefix, path[:end]) for end in range(len(path) + 1))


@pytest.mark.parametrize(("size", "is_fine"), [(255, True), (256, False)])
def test_limits_of_paths_count_bytes(size: int, is_fine: bool) -> None:
    """Not characters."""
    assert fits(require_path, "x" * size) == is_fine
    assert fits(require_path, "é" * (size // 2) + "x" * (size % 2)) == is_fine
    assert fits(require_path, "/".join(["x"] * 512) + "y" * (size - 254)) == is_fine


@pytest.mark.parametrize(
    ("upload", "is_fine"),
    [("a" * 8, True), ("A-_9" * 16, True), ("a" * 7, False), ("a" * 65, False), ("a" * 8 + "\n", False)],
)
def test_valid_upload_ids(upload: str, is_fine: bool) -> None:
    """8 to 64 characters that need no escape in a URL."""
    assert fits(require_upload_id, upload) == is_fine


@given(st.text(max_size=30))
def test_a_name_survives_content_disposition(name: str) -> None:
    """The header is ASCII for any name, and no name ends the header."""
    if not fits(require_path, name):
        return
    header = disposition(name)
    assert header.isascii()
    assert header.isprintable()
    assert name_in_disposition(header) == name.rpartition("/")[2]


@given(st.text(st.characters(max_codepoint=255), max_size=60))
def test_any_content_disposition_gives_a_name_or_a_problem(header: str) -> None:
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
def test_a_name_is_made_from_the_content(head: bytes, extension: str) -> None:
    """16 digits of the hash, and an extension guessed from the first bytes, which may end within a character."""
    assert name_from_content(head[:512], "0123456789abcdef" * 4) == f"0123456789abcdef.{extension}"
