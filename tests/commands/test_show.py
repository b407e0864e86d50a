"""``torchdata-remote show``."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from PIL import Image

from tests.support.full_disk import full_disk
from torchdata_remote import ShardWriter
from torchdata_remote.cli import main

COLOURS = [(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 0)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with ShardWriter(f"{tmp_path}/train/{{shard}}.tar", max_shard_samples=3) as writer:
        for number in range(8):
            colour = COLOURS[number % 4]
            writer.write({"__key__": f"{number}", "png": Image.new("RGB", (30, 20), colour), "cls": number % 4})
    return tmp_path / "train"


def colours_of(path: Path) -> list[tuple[int, int, int]]:
    """The colour of each cell, in order."""
    with Image.open(path) as picture:
        rgb = picture.convert("RGB")
    found = []
    cell, margin, label = 32, 4, 15
    for top in range(margin + cell // 2, rgb.height, cell + label + margin):
        for left in range(margin + cell // 2, rgb.width, cell + margin):
            pixel = rgb.getpixel((left, top))
            assert isinstance(pixel, tuple)
            found.append((pixel[0], pixel[1], pixel[2]))
    return found


def test_show_draws_the_first_images_in_order(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In order, in as many columns as ``--columns``; a summary is printed. An existing file is replaced."""
    out = folder.parent / "out.png"
    out.write_bytes(b"old")
    arguments = ["show", str(folder), "--grid", str(out), "--num", "5", "--columns", "2", "--cell-pixels", "32"]
    assert main(arguments) == 0
    assert colours_of(out) == [*(COLOURS[number % 4] for number in range(5)), (255, 255, 255)]
    captured = capsys.readouterr()
    assert captured.out == f"5 images, 76 x 157 pixels: {out}\n"
    assert captured.err == ""
    assert sorted(os.listdir(folder.parent)) == ["out.png", "train"]
    assert out.stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    umask = os.umask(0)
    os.umask(umask)
    return umask


def test_show_uses_class_names_and_survives_a_bad_class_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are read from beside the shards; a file that is not a class table is reported and ignored."""
    out = folder.parent / "out.png"
    drawn = []
    table = {f"n{number}": {"id": number, "name": f"class {number}"} for number in range(4)}
    for content in (None, json.dumps(table), "[]"):
        if content is not None:
            (folder / "classes.json").write_text(content)
        assert main(["show", str(folder), "--grid", str(out)]) == 0
        drawn.append(out.read_bytes())
    assert drawn[0] == drawn[2] != drawn[1]
    printed = capsys.readouterr().err
    assert printed.startswith("torchdata-remote: ")
    assert "classes.json" in printed


@pytest.mark.parametrize(
    ("grid", "more", "says"),
    [
        ("no/such/folder/out.png", [], "no/such/folder does not exist. Create it"),
        ("out.psd", [], "Use a name such as out.png"),
        ("train/.png", [], "Use a name such as out.png"),
        ("out.png", ["--num", "8", "--columns", "8", "--cell-pixels", "9999"], "pixels"),
        ("out.png", ["--cell-pixels", "3"], "16 pixels"),
    ],
)
def test_show_with_unusable_output_fails_and_leaves_no_file(
    folder: Path, grid: str, more: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit status 1, and why; nothing is left behind."""
    assert main(["show", str(folder), "--grid", str(folder.parent / grid), *more]) == 1
    assert says in capsys.readouterr().err
    assert os.listdir(folder.parent) == ["train"]


def test_a_picture_that_cannot_be_written_leaves_the_one_before(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As on a full disk. The message has no name of a temporary file."""
    out = folder.parent / "out.png"
    out.write_bytes(b"old")

    with full_disk(max_bytes=500):
        assert main(["show", str(folder), "--grid", str(out)]) == 1
    assert capsys.readouterr().err == f"torchdata-remote: {out}: the picture cannot be written: File too large\n"
    assert out.read_bytes() == b"old"
    assert sorted(os.listdir(folder.parent)) == ["out.png", "train"]
