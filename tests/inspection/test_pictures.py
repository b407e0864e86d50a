"""A few images of a data set."""

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
    return [one.key for one in found]


def remove(url: str) -> None:
    fsspec.filesystem("memory").rm(url.removeprefix("memory:/"), recursive=True)


@pytest.mark.parametrize("num_pictures", [0, 1, 10, 25, 40, 100])
def test_the_first_ones(memory_folder: str, num_pictures: int) -> None:
    """In order over all shards, with data and label; fewer where there are fewer."""
    found = list(pictures(write(memory_folder), num_pictures=num_pictures))
    assert keys(found) == [f"d/{number:02d}" for number in range(min(num_pictures, 40))]
    assert [one.data for one in found] == [image(number) for number in range(len(found))]
    assert [one.label for one in found] == [str(number % 7) for number in range(len(found))]
    assert all(one.url == f"{memory_folder}/{number // 10}.tar" for number, one in enumerate(found))


@pytest.mark.parametrize("manifest", ["with", "without"])
@pytest.mark.parametrize("num_pictures", [1, 12, 40])
def test_drawn_at_random(memory_folder: str, manifest: str, num_pictures: int) -> None:
    """No sample twice; a seed gives the same ones again, another seed others; with a manifest as many as asked for."""
    write(memory_folder)
    if manifest == "without":
        remove(f"{memory_folder}/{MANIFEST_NAME}")
    drawn = [keys(list(pictures(memory_folder, num_pictures=num_pictures, seed=seed))) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert all(len(set(one)) == len(one) for one in drawn)
    if manifest == "with":
        assert len(drawn[0]) == num_pictures
        assert num_pictures < 40 or sorted(drawn[0]) == [f"d/{number:02d}" for number in range(40)]


def test_each_sample_is_as_likely(memory_folder: str) -> None:
    """Over many seeds, samples of shards of different lengths come equally often (chi-square, 24 degrees)."""
    with ShardWriter(f"{memory_folder}/{{shard}}.tar", max_shard_samples=20) as writer:
        for number in range(25):
            writer.write({"__key__": f"{number:02d}", "png": image(number)})
    counts: Counter[str] = Counter()
    for seed in range(200):
        counts.update(keys(list(pictures(memory_folder, num_pictures=5, seed=seed))))
    expected = 200 * 5 / 25
    assert sum((counts[f"{number:02d}"] - expected) ** 2 for number in range(25)) / expected < 60


def test_without_indexes_the_first_of_shards_drawn(memory_folder: str) -> None:
    """Also where the index is of another shard, and where shards are compressed."""
    write(memory_folder)
    for number in range(SHARDS):
        remove(f"{memory_folder}/{number}.tar.idx")
    fsspec.filesystem("memory").pipe(
        f"{memory_folder}/1.tar.idx".removeprefix("memory:/"), b"".join(n.to_bytes(8, "little") for n in (0, 512, 1024))
    )
    found = list(pictures(memory_folder, num_pictures=8, seed=0))
    per_shard = Counter(one.url for one in found)
    assert sum(per_shard.values()) == 8
    for url, count in per_shard.items():
        first = int(url[-5]) * SAMPLES
        assert sorted(one.key for one in found if one.url == url) == [f"d/{first + n:02d}" for n in range(count)]


def test_compressed_shards(memory_folder: str) -> None:
    """Are read as streams."""
    data = gzip.compress(pack_tar([("a.png", image(1)), ("b.png", image(2))]))
    fsspec.filesystem("memory").pipe(f"{memory_folder}/0.tar.gz".removeprefix("memory:/"), data)
    for seed in (None, 0):
        assert sorted(keys(list(pictures(memory_folder, num_pictures=5, seed=seed)))) == ["a", "b"]


def test_only_what_is_needed_is_read(moto: S3Server) -> None:
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
        ranges = [one.range for one in store.requests if one.method == "GET" and one.path.endswith("/0.tar")]
        asked = 0
        for one in ranges:
            assert one is not None
            first, last = one.removeprefix("bytes=").split("-")
            asked += int(last) + 1 - int(first)
        assert asked < (0.05 if seed is None else 0.06) * 60 * 200_000


@settings(max_examples=30)
@given(
    members=st.dictionaries(st.sampled_from(["seg.png", "jpg", "txt", "left.webp", "cls"]), st.binary(max_size=20)),
)
def test_which_member_is_the_image(members: dict[str, bytes]) -> None:
    """One whose extension is a format's alone, before one that says more; the data are not looked at."""
    tar = pack_tar([*((f"a.{extension}", data) for extension, data in members.items()), ("b.png", b"b")])
    fsspec.filesystem("memory").pipe("/which/0.tar", tar)
    (first, *rest) = pictures("memory://which/0.tar", num_pictures=5)
    images = sorted((name for name in members if name not in ("txt", "cls")), key=lambda name: "." in name)
    assert len(rest) == bool(images)
    assert first.data == (members[images[0]] if images else b"b")


def test_nothing_to_show(memory_folder: str) -> None:
    """No shards, or no images: errors that say so. A shard that is damaged before what is wanted is one too."""
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


def test_names_of_classes(memory_folder: str) -> None:
    """By the number that ``cls`` holds, from beside the shard; none without the file, else an error."""
    shard = f"{memory_folder}/0.tar"
    assert class_names(shard) == {}
    path = f"{memory_folder}/classes.json".removeprefix("memory:/")
    fsspec.filesystem("memory").pipe(path, b'{"n1": {"id": 1, "name": "fox"}, "n0": {"id": 0, "name": "cat"}}')
    assert class_names(shard) == {"0": "cat", "1": "fox"}
    fsspec.filesystem("memory").pipe(path, b"[]")
    with pytest.raises(LabelError, match=r"classes\.json"):
        class_names(shard)


def test_samples_of_any_kind() -> None:
    """Those without an image are passed over."""
    samples: list[Sample] = [{"__key__": str(n), ("png" if n % 3 == 0 else "txt"): image(n)} for n in range(9)]
    with ShardWriter("memory://mixed-kinds/{shard}.tar", overwrite=True) as writer:
        for sample in samples:
            writer.write(sample)
    assert keys(list(pictures("memory://mixed-kinds/", num_pictures=9))) == ["0", "3", "6"]
