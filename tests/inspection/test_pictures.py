"""``torchdata-remote show``: which samples are drawn, how little of them is read, and how cells look."""

from __future__ import annotations

import gzip
import io
import math
import re
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.servers.faulty_s3 import faulty
from tests.servers.s3 import S3Server
from tests.support.archive_bytes import pack_tar
from tests.support.requested_bytes import requested_bytes
from torchdata_remote import ShardWriter
from torchdata_remote.cli import main

from .shards import Said, put, remove

SHARDS, SAMPLES = 4, 10
RED, BLUE = (255, 0, 0), (0, 0, 255)


def image(number: int, size: tuple[int, int] = (8, 8)) -> bytes:
    Image.new("RGB", size, (number, 0, 0)).save(buffer := io.BytesIO(), "PNG")
    return buffer.getvalue()


def write(folder: str) -> str:
    with ShardWriter(f"{folder}/{{shard}}.tar", max_shard_samples=SAMPLES) as writer:
        for number in range(SHARDS * SAMPLES):
            writer.write({"__key__": f"d/{number:02d}", "png": image(number), "cls": number % 7})
    return folder


def shown(said: Said, url: str, num: int, *more: str, options: Any = None, grid: str) -> Any:
    """What the cells are of; the sheet itself does not matter."""
    return said("show", url, "--grid", grid, "--num", str(num), "--cell-pixels", "16", *more, options=options)["images"]


@pytest.fixture
def grid(tmp_path: Path) -> str:
    return f"{tmp_path}/grid.png"


def keys(cells: Any) -> list[str]:
    return [cell["key"] for cell in cells]


@pytest.mark.parametrize("num", [1, 10, 25, 100])
def test_without_a_seed_the_first_samples_are_shown_in_order(
    memory_folder: str, said: Said, grid: str, num: int
) -> None:
    """Over all shards; all of them, if fewer than requested."""
    cells = shown(said, write(memory_folder), num, grid=grid)
    assert keys(cells) == [f"d/{number:02d}" for number in range(min(num, 40))]
    assert [cell["label"] for cell in cells] == [str(number % 7) for number in range(len(cells))]
    assert [cell["url"] for cell in cells] == [f"{memory_folder}/{number // 10}.tar" for number in range(len(cells))]


@pytest.mark.parametrize("manifest", ["with", "without"])
@pytest.mark.parametrize("num", [1, 12, 40])
def test_with_a_seed_samples_are_reproducible_and_distinct(
    memory_folder: str, said: Said, grid: str, manifest: str, num: int
) -> None:
    """The same ones for a seed, others for another; with a manifest as many as requested."""
    write(memory_folder)
    if manifest == "without":
        remove(f"{memory_folder}/index.json")
    drawn = [keys(shown(said, memory_folder, num, "--seed", seed, grid=grid)) for seed in ("1", "1", "2")]
    assert drawn[0] == drawn[1] != drawn[2]
    assert all(len(set(names)) == len(names) for names in drawn)
    if manifest == "with":
        assert len(drawn[0]) == num
        assert num < 40 or sorted(drawn[0]) == [f"d/{number:02d}" for number in range(40)]


def test_random_samples_are_uniform_over_shards_of_different_lengths(memory_folder: str, said: Said, grid: str) -> None:
    """Over many seeds (chi-square, 24 degrees)."""
    with ShardWriter(f"{memory_folder}/{{shard}}.tar", max_shard_samples=20) as writer:
        for number in range(25):
            writer.write({"__key__": f"{number:02d}", "png": image(number)})
    counts: Counter[str] = Counter()
    for seed in range(100):
        counts.update(keys(shown(said, memory_folder, 5, "--seed", str(seed), grid=grid)))
    expected = 100 * 5 / 25
    assert sum((counts[f"{number:02d}"] - expected) ** 2 for number in range(25)) / expected < 60


def test_random_samples_without_a_usable_index_are_the_first_of_a_shard(
    memory_folder: str, said: Said, grid: str
) -> None:
    """Also where the index is of another shard."""
    write(memory_folder)
    for number in range(SHARDS):
        remove(f"{memory_folder}/{number}.tar.idx")
    put(f"{memory_folder}/1.tar.idx", b"".join(n.to_bytes(8, "little") for n in (0, 512, 1024)))
    cells = shown(said, memory_folder, 8, "--seed", "0", grid=grid)
    for url, count in Counter(cell["url"] for cell in cells).items():
        first = int(url[-5]) * SAMPLES
        assert sorted(cell["key"] for cell in cells if cell["url"] == url) == [
            f"d/{first + n:02d}" for n in range(count)
        ]
    assert len(cells) == 8


def test_pictures_of_compressed_shards_are_read_as_streams(memory_folder: str, said: Said, grid: str) -> None:
    put(f"{memory_folder}/0.tar.gz", gzip.compress(pack_tar([("a.png", image(1)), ("b.png", image(2))])))
    for more in ((), ("--seed", "0")):
        assert sorted(keys(shown(said, memory_folder, 5, *more, grid=grid))) == ["a", "b"]


def test_only_images_labels_and_headers_are_read(moto: S3Server, said: Said, grid: str) -> None:
    """Of a shard of 12 MB, three images cost less than 6 % of it: the first ones, or some in the middle."""
    bucket = moto.new_bucket()
    with ShardWriter(f"s3://{bucket}/{{shard}}.tar", storage_options=moto.storage_options) as writer:
        for number in range(60):
            writer.write({"__key__": f"{number:02d}", "png": image(number), "cls": number, "raw.bin": bytes(200_000)})
    for more in ((), ("--seed", "0")):
        with faulty(moto) as (server, store):
            cells = shown(said, f"s3://{bucket}/", 3, *more, options=server.storage_options, grid=grid)
        assert len(cells) == 3
        assert requested_bytes(store, "/0.tar") < 0.06 * 60 * 200_000


@given(
    members=st.dictionaries(st.sampled_from(["seg.png", "jpg", "txt", "left.webp", "cls"]), st.integers(0, 2)),
)
def test_the_image_of_a_sample_is_the_member_of_the_plain_extension(
    said: Said, tmp_path_factory: pytest.TempPathFactory, members: dict[str, int]
) -> None:
    """``jpg`` before ``seg.png``, whatever their order; samples without an image are passed over."""
    grid = tmp_path_factory.getbasetemp() / "which.png"
    images = sorted((name for name in members if name not in ("txt", "cls")), key=lambda name: "." in name)
    side = {name: 16 if name in images[:1] else 3 for name in members}
    tar = [(f"a.{name}", image(200, (side[name], 16)) if name in images else b"1") for name in members]
    url = put(f"memory://{uuid.uuid4().hex}/0.tar", pack_tar([*tar, ("b.png", image(200, (16, 16)))]))
    assert keys(shown(said, url, 5, "--columns", "1", grid=str(grid))) == (["a", "b"] if images else ["b"])
    with Image.open(grid) as sheet:  # the first cell is filled: it is no narrow picture
        assert (np.asarray(sheet.convert("RGB"))[14] == (200, 0, 0)).all(axis=1).sum() == 16
    remove(url.rpartition("/")[0])


def test_no_shards_no_images_and_damage_are_errors_of_their_own(memory_folder: str, said: Said, grid: str) -> None:
    assert "no objects found" in said.error("show", memory_folder, "--grid", grid)
    put(f"{memory_folder}/0.tar", pack_tar([("a.txt", b"a")]))
    assert re.search(r"none of the samples has an image.*\.png", said.error("show", memory_folder, "--grid", grid))
    put(f"{memory_folder}/0.tar", pack_tar([("a.png", b"a")])[:512])
    for more in ((), ("--seed", "0")):
        assert "at byte " in said.error("show", memory_folder, "--grid", grid, *more)


def test_a_caption_is_the_name_of_the_class_or_the_label_or_the_key(memory_folder: str, said: Said, grid: str) -> None:
    """The key without its folders; a number may have zeros before it."""
    labels: list[tuple[bytes | None, str]] = [
        (b"1", "kit fox"), (b"01", "kit fox"), (b"7", "7"), (b"-1", "-1"), (b"dog", "dog"), (None, "0005")
    ]  # fmt: skip
    members = [
        [(f"d/{n:04d}.png", image(n)), *([(f"d/{n:04d}.cls", label)] if label else [])]
        for n, (label, _) in enumerate(labels)
    ]
    put(f"{memory_folder}/0.tar", pack_tar([member for sample in members for member in sample]))
    put(f"{memory_folder}/classes.json", b'{"n1": {"id": 1, "name": "kit fox"}, "n0": {"id": 0, "name": "cat"}}')
    assert [cell["caption"] for cell in shown(said, memory_folder, 9, grid=grid)] == [text for _, text in labels]


def sheet_of(tmp_path: Path, pictures: list[Image.Image | bytes], *more: str, names: list[str] | None = None) -> Any:
    """The pixels of a sheet of these pictures."""
    with ShardWriter(f"{tmp_path}/sheet/{{shard}}.tar", overwrite=True) as writer:
        for number, picture in enumerate(pictures):
            writer.write({"__key__": names[number] if names else f"{number:03d}", "png": picture})
    grid = f"{tmp_path}/sheet.png"
    assert main(["show", f"{tmp_path}/sheet/", "--grid", grid, "--num", str(len(pictures)), *more]) == 0
    with Image.open(grid) as sheet:
        return np.asarray(sheet.convert("RGB"))


@settings(max_examples=15)
@given(num=st.integers(1, 12), columns=st.integers(1, 12), pixels=st.integers(16, 60))
def test_a_sheet_has_a_cell_for_each_image_in_rows_within_a_white_margin(
    tmp_path_factory: pytest.TempPathFactory, num: int, columns: int, pixels: int
) -> None:
    red = [Image.new("RGB", (pixels, pixels), RED)] * num
    folder = tmp_path_factory.getbasetemp() / "cells"
    sheet = sheet_of(folder, [*red], "--columns", str(columns), "--cell-pixels", str(pixels))
    found = (sheet == RED).all(axis=2)
    assert found.sum() == num * pixels**2
    assert found.any(axis=0).sum() == min(columns, num) * pixels
    assert found.any(axis=1).sum() == math.ceil(num / min(columns, num)) * pixels
    assert all((edge == 255).all() for edge in (sheet[0], sheet[-1], sheet[:, 0], sheet[:, -1]))


@pytest.mark.parametrize("size", [(400, 100), (100, 400), (50, 50), (2, 1), (1, 3000), (3000, 1)])
def test_an_image_keeps_its_shape_and_is_centred(tmp_path: Path, size: tuple[int, int]) -> None:
    """As large as the cell allows, whether larger or smaller before."""
    sheet = sheet_of(tmp_path, [Image.new("RGB", size, BLUE)], "--cell-pixels", "100")
    rows, columns = np.nonzero((sheet == BLUE).all(axis=2))
    scale = 100 / max(size)
    shape = (int(np.ptp(columns)) + 1, int(np.ptp(rows)) + 1)
    assert shape == (max(1, round(size[0] * scale)), max(1, round(size[1] * scale)))
    assert abs(columns.min() + columns.max() + 1 - sheet.shape[1]) <= 1
    assert abs(rows.min() + rows.max() + 1 - 2 * (6 + 50)) <= 1


def test_any_mode_is_drawn_and_what_cannot_be_decoded_is_a_crossed_cell(tmp_path: Path) -> None:
    """A picture beyond all limits, too, of which nothing is decoded."""
    modes = [Image.new(mode, (10, 10)) for mode in ("1", "L", "P", "RGBA", "LA", "I;16")]
    Image.new("1", (20_000, 20_000)).save(bomb := io.BytesIO(), "PNG")
    sheet = sheet_of(tmp_path, [*modes, b"no png", bomb.getvalue(), Image.new("RGB", (9, 9), RED)], "--columns", "9")
    assert (sheet == (160, 160, 166)).all(axis=2).sum() > 200
    assert (sheet == RED).all(axis=2).sum() == 160 * 160


@settings(max_examples=15)
@given(text=st.text(st.characters(codec="utf-8", exclude_characters="/.\0"), min_size=1, max_size=60))
def test_a_caption_fits_below_its_image_on_one_line(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    """Dark letters under the image whose key it is, none elsewhere."""
    folder = tmp_path_factory.getbasetemp() / "captions"
    blank = Image.new("RGB", (100, 100), BLUE)
    key = f"d/k{text.strip() or 'x'}"
    sheet = sheet_of(folder, [blank, blank], "--columns", "2", "--cell-pixels", "100", names=[key, "d/é" + "W" * 99])
    rows, columns = np.nonzero(sheet.max(axis=2) < 100)
    assert 106 <= rows.min() < rows.max() < 130
    assert not ((columns < 6) | ((columns >= 106) & (columns < 108)) | (columns >= sheet.shape[1] - 6)).any()
