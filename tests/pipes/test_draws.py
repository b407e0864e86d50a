"""Random numbers that a function gets with a sample: they depend on the sample, not on who reads it, where and when."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import torchdata_remote as tdr
from tests.support.photographs import encoded, photograph
from torchdata_remote.errors import SampleError
from torchdata_remote.testing import write_small_shards

NUM_SAMPLES = 12
SHARDS, COPIED = "memory://drawn/train/", "memory://copied/"


@pytest.fixture(scope="module", autouse=True)
def _data() -> None:
    for folder in (SHARDS, COPIED):
        write_small_shards(folder, num_shards=4, samples_per_shard=3)
        files = {f"{folder}loose/{name}/1.bin": b"" for name in ("cat", "dog")}
        fsspec.filesystem("memory").pipe({path.removeprefix("memory:/"): data for path, data in files.items()})


def drawn(sample: dict[str, Any], rng: np.random.Generator) -> tuple[str, float]:
    return sample["__key__"].rpartition("/")[2], rng.random()


def by_map(source: Any, seed: int = 3, **options: Any) -> Any:
    return source.parallel_map(drawn, seed=seed, **options)


def by_flat_map(source: Any, seed: int = 3) -> Any:
    return source.flat_map(lambda sample, rng: [drawn(sample, rng)], seed=seed)


def by_crop(source: Any, seed: int = 3) -> Any:
    images = source.map(lambda sample: {**sample, "png": PHOTO})
    return images.decode_image(16, seed=seed, dtype=torch.uint8).map(
        lambda sample: hash(sample["png"].numpy().tobytes())
    )


PHOTO = encoded(photograph(60, 40), "PNG")
EACH_WAY = pytest.mark.parametrize("by", [by_map, by_flat_map, by_crop])


def drawing(source: Any) -> Any:
    return source.parallel_map(lambda sample, rng: {**sample, "drawn": rng.random()}, seed=3)


def shards(url: str | list[str] = SHARDS, **options: Any) -> Any:
    return tdr.stream_shards(url, **options)


@settings(max_examples=15)
@given(
    num_slots=st.integers(1, 3),
    num_threads=st.sampled_from([0, 2]),
    epoch=st.integers(0, 2),
    shuffle_seed=st.integers(0, 3),
    stop=st.integers(0, NUM_SAMPLES),
)
def test_draws_are_the_same_in_every_world_and_order_and_after_a_resume(
    num_slots: int, num_threads: int, epoch: int, shuffle_seed: int, stop: int
) -> None:
    expected = by_map(shards(shuffle=False))
    expected.set_epoch(epoch)
    found: list[Any] = []
    for slot in range(num_slots):

        def chain(slot: int = slot) -> tdr.Resumable:
            source = shards(seed=shuffle_seed, world=tdr.World(slot, num_slots))
            return tdr.Resumable(by_map(source, num_threads=num_threads), num_streams=4)

        first, resumed = chain(), chain()
        first.set_epoch(epoch)
        found += islice(first, stop)
        resumed.load_state_dict(json.loads(json.dumps(first.state_dict())))
        found += resumed
    assert sorted(found) == sorted(expected)


@EACH_WAY
def test_draws_differ_by_sample_epoch_seed_and_pass(by: Callable[..., Any]) -> None:
    chain = by(shards())
    numbers = [*chain, *chain, *by(shards(), seed=4)]
    assert len(set(numbers)) == 3 * NUM_SAMPLES
    for repeated in (
        shards().repeat_epochs(3),
        shards().repeat_epochs(3).shuffle_samples(buffer_size=20, seed=1),
        tdr.mix({"a": (shards(), 1.0)}, stop=3 * NUM_SAMPLES),
        tdr.mix({"a": (shards().repeat_epochs(3), 1.0)}),
    ):
        assert len(set(by(repeated))) == 3 * NUM_SAMPLES


@EACH_WAY
def test_draws_before_and_behind_a_repeat_are_the_same(by: Callable[..., Any]) -> None:
    assert list(by(shards()).repeat_epochs(3)) == list(by(shards().repeat_epochs(3)))
    one, other = by(shards()), by(shards())
    other.set_epoch(1)
    assert [list(one), list(one)][1] == list(other)


@pytest.mark.parametrize(
    "read",
    [
        lambda folder: shards(f"{folder}/index.json"),
        lambda folder: shards(f"{folder}/{{000000..000003}}.tar", select={"keys": ["1/000001", "3/000003"]}),
        lambda folder: tdr.join(dict.fromkeys("ab", f"{folder}/"), members={"a": ("cls",), "b": ("txt",)}),
        lambda folder: tdr.mix({"a": (tdr.stream_files(f"{folder}/loose/"), 1.0), "b": (shards(f"{folder}/"), 1.0)}),
        lambda folder: tdr.IterableWrapper(
            dict.fromkeys([f"{folder}/000000.tar", f"{folder}/000001.tar"])
        ).shard_tar_reader(),
        lambda folder: tdr.stream_files(f"{folder}/loose/", split_name="last"),
        lambda folder: tdr.IterableWrapper([f"{folder}/rows"]).list_remote().list_row_groups().table_reader(),
    ],
)
def test_draws_are_the_same_by_relative_and_absolute_paths_and_in_a_copied_local_folder(
    read: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("one", "in/two"):
        folder = tmp_path / name
        write_small_shards(str(folder), num_shards=4, samples_per_shard=3)
        for path in ("loose/a/22.05.txt", "loose/b/22.06.txt", "rows/0.parquet", "rows/1.parquet"):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text("x")
        for number in range(2):
            pq.write_table(pa.table({"n": range(4)}), folder / f"rows/{number}.parquet", row_group_size=2)
    folders = ("one", "in/two", f"{tmp_path}/one", f"file://{tmp_path}/one")
    draws = [sorted(sample["drawn"] for sample in drawing(read(folder))) for folder in folders]
    assert all(other == draws[0] for other in draws)
    assert len(set(draws[0])) == len(draws[0]) > 1


def test_two_pipes_with_one_seed_draw_other_numbers() -> None:
    """Else a flip and an augmentation behind it would be the same choice."""
    chain = drawing(shards()).parallel_map(lambda sample, rng: (sample["drawn"], rng.random()), seed=3)
    assert all(one != other for one, other in chain)


@pytest.mark.parametrize(
    ("chain", "message"),
    [
        (lambda: by_flat_map(shards().to_tuple("cls")), r"flat_map: expected samples, .* Put it before to_tuple\(\)"),
        (
            lambda: by_map(shards().map(lambda sample: {"cls": sample["cls"]})),
            r"parallel_map: expected samples with a '__key__', got one with \['cls'\]\. Put it before map\(\)",
        ),
    ],
)
def test_an_item_without_a_key_is_an_error_where_something_is_drawn(chain: Callable[[], Any], message: str) -> None:
    with pytest.raises(SampleError, match=message):
        list(chain())
    (sample,) = tdr.IterableWrapper([{"jpg": encoded(photograph(9, 9))}]).decode_image(4, crop="center")
    assert sample["jpg"].shape == (3, 4, 4), "without random crops and flips none is needed"


def test_samples_of_one_key_in_two_shards_have_draws_of_their_own() -> None:
    for name in "ab":
        with tdr.ShardWriter(f"memory://twins/{name}/{{shard}}.tar", overwrite=True) as writer:
            writer.write({"__key__": "same", "cls": 1})
    assert len(set(by_map(shards("memory://twins/")))) == 2
