"""Images of samples, read by ranged requests."""

from __future__ import annotations

import gzip
import io
from collections import Counter

import fsspec
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
from torchdata_remote.errors import EmptyListingError, LabelError, ShardReadError
from torchdata_remote.formats.manifest import MANIFEST_NAME
from torchdata_remote.formats.sample import Sample
from torchdata_remote.inspection.pictures import Picture, class_names, pictures

SHARDS, SAMPLES = 4, 10


def image(number: int, side: int = 8) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (side, side), (number, 0, 0)).save(buffer, "PNG")
    return buffer.getvalue()


def write(folder: str, **options: object) -> str:
    with ShardWriter(f"{folder}/{{shard}}.tar", max_shard_samples=SAMPLES, **options) as writer:  # type: ignore[arg-type]
        for number in range(SHARDS * SAMPLES):
            writer.write({"__key__": f"d/{number:02d}", "png": image(number), "cls": number % 7})
    return folder


def keys(found: list[Picture]) -> list[str]:
    return [picture.key for picture in found]


def remove(url: str) -> None:
    fsspec.filesystem("memory").rm(url.removeprefix("memory:/"), recursive=True)


@pytest.mark.parametrize("num_pictures", [0, 1, 10, 25, 40, 100])
def test_pictures_without_seed_are_the_first_in_order(memory_folder: str, num_pictures: int) -> None:
    """In order over all shards, with data and label; all of them, if fewer than requested."""
    found = list(pictures(write(memory_folder), num_pictures=num_pictures))
    assert keys(found) == [f"d/{number:02d}" for number in range(min(num_pictures, 40))]
    assert [picture.data for picture in found] == [image(number) for number in range(len(found))]
    assert [picture.label for picture in found] == [str(number % 7) for number in range(len(found))]
    assert all(picture.url == f"{memory_folder}/{number // 10}.tar" for number, picture in enumerate(found))


@pytest.mark.parametrize("manifest", ["with", "without"])
@pytest.mark.parametrize("num_pictures", [1, 12, 40])
def test_pictures_with_a_seed_are_reproducible_and_distinct(
    memory_folder: str, manifest: str, num_pictures: int
) -> None:
    """No sample twice; the same ones for a seed, others for another; with a manifest as many as requested."""
    write(memory_folder)
    if manifest == "without":
        remove(f"{memory_folder}/{MANIFEST_NAME}")
    drawn = [keys(list(pictures(memory_folder, num_pictures=num_pictures, seed=seed))) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert all(len(set(names)) == len(names) for names in drawn)
    if manifest == "with":
        assert len(drawn[0]) == num_pictures
        assert num_pictures < 40 or sorted(drawn[0]) == [f"d/{number:02d}" for number in range(40)]


def test_random_pictures_are_uniform_over_samples(memory_folder: str) -> None:
    """Over many seeds, samples of shards of different lengths are equally frequent (chi-square, 24 degrees)."""
    with ShardWriter(f"{memory_folder}/{{shard}}.tar", max_shard_samples=20) as writer:
        for number in range(25):
            writer.write({"__key__": f"{number:02d}", "png": image(number)})
    counts: Counter[str] = Counter()
    for seed in range(200):
        counts.update(keys(list(pictures(memory_folder, num_pictures=5, seed=seed))))
    expected = 200 * 5 / 25
    assert sum((counts[f"{number:02d}"] - expected) ** 2 for number in range(25)) / expected < 60


def test_random_pictures_without_usable_index_are_the_first_of_a_shard(memory_folder: str) -> None:
    """Also where the index is of another shard, and where shards are compressed."""
    write(memory_folder)
    for number in range(SHARDS):
        remove(f"{memory_folder}/{number}.tar.idx")
    fsspec.filesystem("memory").pipe(
        f"{memory_folder}/1.tar.idx".removeprefix("memory:/"), b"".join(n.to_bytes(8, "little") for n in (0, 512, 1024))
    )
    found = list(pictures(memory_folder, num_pictures=8, seed=0))
    per_shard = Counter(picture.url for picture in found)
    assert sum(per_shard.values()) == 8
    for url, count in per_shard.items():
        first = int(url[-5]) * SAMPLES
        assert sorted(picture.key for picture in found if picture.url == url) == [
            f"d/{first + n:02d}" for n in range(count)
        ]


def test_pictures_of_compressed_shards(memory_folder: str) -> None:
    """Are read as streams."""
    data = gzip.compress(pack_tar([("a.png", image(1)), ("b.png", image(2))]))
    fsspec.filesystem("memory").pipe(f"{memory_folder}/0.tar.gz".removeprefix("memory:/"), data)
    for seed in (None, 0):
        assert sorted(keys(list(pictures(memory_folder, num_pictures=5, seed=seed)))) == ["a", "b"]


def test_pictures_read_only_images_labels_and_headers(moto: S3Server) -> None:
    """Of a shard of 12 MB, three images cost less than 5 % of it: the first ones, or some in the middle."""
    bucket = moto.new_bucket()
    noise = np.random.default_rng(0)
    with ShardWriter(f"s3://{bucket}/{{shard}}.tar", storage_options=moto.storage_options) as writer:
        for number in range(60):
            raw = noise.integers(0, 256, 200_000, np.uint8).tobytes()
            writer.write({"__key__": f"{number:02d}", "png": image(number), "cls": number, "raw.bin": raw})
    for seed in (None, 0):
        with faulty(moto) as (server, store):
            found = list(pictures(f"s3://{bucket}/", num_pictures=3, seed=seed, storage_options=server.storage_options))
        assert len(found) == 3
        assert requested_bytes(store, "/0.tar") < (0.05 if seed is None else 0.06) * 60 * 200_000


@settings(max_examples=30)
@given(
    members=st.dictionaries(st.sampled_from(["seg.png", "jpg", "txt", "left.webp", "cls"]), st.binary(max_size=20)),
)
def test_plain_extension_is_preferred_as_the_image(members: dict[str, bytes]) -> None:
    """``png`` before ``seg.png``; the data are not examined."""
    tar = pack_tar([*((f"a.{extension}", data) for extension, data in members.items()), ("b.png", b"b")])
    fsspec.filesystem("memory").pipe("/which/0.tar", tar)
    (first, *rest) = pictures("memory://which/0.tar", num_pictures=5)
    images = sorted((name for name in members if name not in ("txt", "cls")), key=lambda name: "." in name)
    assert len(rest) == bool(images)
    assert first.data == (members[images[0]] if images else b"b")


def test_no_shards_no_images_or_damage_raise(memory_folder: str) -> None:
    """Each raises an error of its own, also a shard that is damaged before the first image."""
    with pytest.raises(EmptyListingError):
        list(pictures(memory_folder, num_pictures=3))
    path = f"{memory_folder}/0.tar".removeprefix("memory:/")
    fsspec.filesystem("memory").pipe(path, pack_tar([("a.txt", b"a")]))
    with pytest.raises(EmptyListingError, match=r"none of the samples has an image.*\.png"):
        list(pictures(memory_folder, num_pictures=3))
    fsspec.filesystem("memory").pipe(path, pack_tar([("a.png", b"a")])[:512])
    for seed in (None, 0):
        with pytest.raises(ShardReadError, match="at byte "):
            list(pictures(memory_folder, num_pictures=3, seed=seed))


def test_class_names_are_read_from_beside_the_shard(memory_folder: str) -> None:
    """By the number that ``cls`` holds, from beside the shard; none without the file, else an error."""
    shard = f"{memory_folder}/0.tar"
    assert class_names(shard) == {}
    path = f"{memory_folder}/classes.json".removeprefix("memory:/")
    fsspec.filesystem("memory").pipe(path, b'{"n1": {"id": 1, "name": "fox"}, "n0": {"id": 0, "name": "cat"}}')
    assert class_names(shard) == {"0": "cat", "1": "fox"}
    fsspec.filesystem("memory").pipe(path, b"[]")
    with pytest.raises(LabelError, match=r"classes\.json"):
        class_names(shard)


@pytest.mark.parametrize(
    ("label", "shown"), [("1", "kit fox"), ("01", "kit fox"), ("7", "7"), ("-1", "-1"), ("dog", "dog"), (None, "0001")]
)
def test_caption_is_class_name_or_label_or_key(label: str | None, shown: str) -> None:
    """The class's name, else what ``cls`` holds, else the key without its folders."""
    assert Picture("", "d/0001", b"", label).caption({"0": "cat", "1": "kit fox"}) == shown


def test_samples_without_an_image_are_left_out() -> None:
    """Those without an image are passed over."""
    samples: list[Sample] = [{"__key__": str(n), ("png" if n % 3 == 0 else "txt"): image(n)} for n in range(9)]
    with ShardWriter("memory://mixed-kinds/{shard}.tar", overwrite=True) as writer:
        for sample in samples:
            writer.write(sample)
    assert keys(list(pictures("memory://mixed-kinds/", num_pictures=9))) == ["0", "3", "6"]
