"""Pipes are torch's: they pickle at any time, chain by their names, show no secrets, and run in workers of loaders."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.utils.data
from torch.utils.data import DataLoader
from torch.utils.data.datapipes.iter import IterableWrapper

import torchdata_remote as tdr
from tests.support.archive_bytes import pack_tar
from tests.support.photographs import encoded, photograph
from tests.support.tables import file_bytes, numbered
from torchdata_remote import Resumable
from torchdata_remote.testing import write_small_shards

SIGNED = "https://host/pets/{}?X-Amz-Signature=SECRET"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chains")
    write_small_shards(f"{folder}/shards", num_shards=4, samples_per_shard=3)
    (folder / "loose").mkdir()
    for number in range(6):
        (folder / "loose" / f"{number}.txt").write_bytes(b"%d" % number)
    (folder / "t.parquet").write_bytes(file_bytes(numbered(9), rows=3))
    with tdr.ShardWriter(f"{folder}/images/{{shard}}.tar") as writer:
        for number in range(5):
            writer.write({"__key__": f"1/{number}", "jpg": encoded(photograph(20, 20))})
    return folder


def lines_of(sample: dict[str, Any]) -> list[str]:
    return [f"{sample['__key__']}:{number}" for number, _ in enumerate(sample["txt"].splitlines())]


def crop_of(sample: dict[str, Any], rng: np.random.Generator) -> tuple[str, int]:
    return sample["__key__"], int(rng.integers(1000))


def tokens_of(sample: dict[str, Any]) -> list[int]:
    return list(sample["txt"][:9])


def ids_of(row: dict[str, Any]) -> tuple[int, ...]:
    return tuple(row["input_ids"].tolist())


def sum_of(sample: dict[str, Any]) -> float:
    return float(sample["jpg"].sum())


def shards(folder: Path) -> Any:
    return IterableWrapper([f"{folder}/shards/index.json"]).list_remote().shuffle_shards(seed=2).sharding_filter_rank()


def samples(folder: Path) -> Any:
    return shards(folder).async_prefetch().shard_tar_reader(interleave=2)


CHAINS: dict[str, Callable[[Path], Any]] = {
    "tar": lambda folder: samples(folder).decode_sample(num_threads=2).to_tuple("__key__", "cls"),
    "URLs": lambda folder: shards(folder).map(str).shuffle_samples(buffer_size=3),
    "files": lambda folder: tdr.stream_files(f"{folder}/loose").map(itemgetter("txt")),
    "table": lambda folder: (
        IterableWrapper([f"{folder}/t.parquet"])
        .list_row_groups()
        .sharding_filter_rank()
        .table_reader(columns=["n"], filter=[("n", ">", 1)])
        .map(itemgetter("n"))
    ),
    "images": lambda folder: (
        tdr.stream_shards(f"{folder}/images/index.json").decode_image(8, seed=1).label_from_path().map(sum_of)
    ),
    "counts": lambda folder: (
        samples(folder).repeat_epochs(2).skip(2).take(20).parallel_map(crop_of, seed=1, num_threads=2)
    ),
    "flat": lambda folder: samples(folder).flat_map(lines_of).shuffle_samples(buffer_size=5),
    "pack": lambda folder: samples(folder).map(tokens_of).pack(8, split=False, max_wait=3).map(ids_of),
    "bucket": lambda folder: samples(folder).map(tokens_of).bucket(2, max_wait=5).map(str),
    "equal": lambda folder: samples(folder).equalize_ranks(mode="repeat").map(itemgetter("__key__")),
    "select": lambda folder: tdr.stream_shards(f"{folder}/shards/", select={"members": "cls"}).map(
        itemgetter("__key__")
    ),
    "join": lambda folder: tdr.join(
        dict.fromkeys("ab", f"{folder}/shards/index.json"), members={"a": "cls", "b": "txt"}
    ).map(itemgetter("txt")),
    "mix": lambda folder: tdr.mix(
        {"a": (samples(folder).to_tuple("cls"), 1), "b": (samples(folder).to_tuple("txt"), 2)}, stop=20
    ),
}


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_pickles_before_within_and_after_a_pass_and_its_copy_reads_a_whole_pass(
    name: str, folder: Path
) -> None:
    expected = CHAINS[name](folder)
    epochs = [list(expected), list(expected)]
    pipe = CHAINS[name](folder)
    fresh = pickle.loads(pickle.dumps(pipe))
    items = iter(pipe)
    head = [next(items), next(items)]
    within = pickle.loads(pickle.dumps(pipe))
    rest = [*head, *items]
    after = pickle.loads(pickle.dumps(pipe))
    assert [list(fresh), rest, list(within), list(after)] == [epochs[0]] * 4
    assert list(pipe) == epochs[1]


@pytest.mark.system
def test_chains_run_in_workers_that_are_started_anew(folder: Path) -> None:
    """All of them in one mixture, over two streams: each item once."""
    names = [name for name in CHAINS if name not in ("equal", "mix")]

    def mixture() -> Any:
        return tdr.mix({name: (CHAINS[name](folder).map(str), 1) for name in names}, stop="all_exhausted")

    expected = sorted(Resumable(mixture(), num_streams=2))
    data = Resumable(mixture(), num_streams=2)
    loader = DataLoader(data, batch_size=None, num_workers=2, multiprocessing_context="forkserver")
    assert sorted(loader) == expected
    assert len(expected) > 100


def test_names_are_torchs_classes_and_a_misspelt_one_is_an_error_with_a_suggestion() -> None:
    assert tdr.IterDataPipe is torch.utils.data.IterDataPipe
    wrapper: object = tdr.IterableWrapper
    assert wrapper is IterableWrapper
    pipe = tdr.stream_shards("memory://typed/")
    with pytest.raises(AttributeError, match="object has no attribute 'decode_sampel") as caught:
        pipe.decode_sampel()  # type: ignore[attr-defined]
    assert (caught.value.name, caught.value.obj) == ("decode_sampel", pipe)
    assert "decode_sample" in dir(pipe)


OPTIONS: dict[str, Any] = {"storage_options": {"key": "k", "secret": "Sup3rS3cretCanary"}}
SECRETIVE: dict[str, Callable[[], Any]] = {
    "list_remote": lambda: IterableWrapper(["nope://x/y"]).list_remote(**OPTIONS),
    "list_row_groups": lambda: IterableWrapper(["nope://x/y"]).list_row_groups(**OPTIONS),
    "select": lambda: IterableWrapper(["nope://x/y"]).select(keys=["a"], **OPTIONS),
    "async_prefetch": lambda: IterableWrapper(["nope://x/y"]).async_prefetch(**OPTIONS),
    "file_reader": lambda: IterableWrapper([3]).file_reader(**OPTIONS),
    "shard_tar_reader": lambda: IterableWrapper([3]).shard_tar_reader(**OPTIONS),
    "shard_zip_reader": lambda: IterableWrapper([3]).shard_zip_reader(**OPTIONS),
    "table_reader": lambda: IterableWrapper([3]).table_reader(**OPTIONS),
    "write_shards": lambda: IterableWrapper([{"__key__": "a.b", "x": b""}]).write_shards(
        "memory://secretive/{shard}.tar", storage_options={"secret": "Sup3rS3cretCanary"}
    ),
    "signed file": lambda: IterableWrapper([(SIGNED.format("cat"), io.BytesIO())]).file_reader(),
    "signed tar": lambda: IterableWrapper(
        [(SIGNED.format("0.tar"), io.BytesIO(pack_tar([("README", b"")])))]
    ).shard_tar_reader(),
    "signed zip": lambda: IterableWrapper([(SIGNED.format("0.zip"), io.BytesIO(b"no zip"))]).shard_zip_reader(),
    "signed member": lambda: IterableWrapper([{"__key__": "1", "__url__": SIGNED.format("0")}]).to_tuple("jpg"),
    "signed class": lambda: IterableWrapper(
        [{"__key__": "1", "__url__": SIGNED.format("0"), "cls": b"x"}]
    ).decode_sample(),
    "signed label": lambda: IterableWrapper([{"__key__": "b/1", "__url__": SIGNED.format("0")}]).label_from_path(),
    "signed image": lambda: IterableWrapper([{"__key__": "b/1", "__url__": SIGNED.format("0")}]).decode_image(4),
}


@pytest.mark.parametrize("name", SECRETIVE)
def test_neither_a_pipe_nor_its_errors_show_options_or_signatures(name: str) -> None:
    """torch adds the pipe's attributes to the message of an error."""
    pipe = SECRETIVE[name]()
    with pytest.raises(Exception) as caught:  # noqa: PT011
        list(pipe)
    shown = f"{caught.value} {caught.value!r} {caught.value.args} {getattr(caught.value, 'url', '')} {pipe} {pipe!r}"
    assert "Sup3rS3cretCanary" not in f"{shown} {vars(pipe)}"
    assert "SECRET" not in shown
    assert "signed" not in name or "https://host/pets/" in shown


def test_samples_have_urls_without_signatures() -> None:
    url = SIGNED.format("0.tar")
    (sample,) = IterableWrapper([(url, io.BytesIO(pack_tar([("a.jpg", b"")])))]).shard_tar_reader()
    assert sample["__url__"] == "https://host/pets/0.tar"
    (sample,) = IterableWrapper([(SIGNED.format("cat.jpg"), io.BytesIO(b"x"))]).file_reader()
    assert sample == {"__key__": "pets/cat", "__url__": "https://host/pets/cat.jpg", "jpg": b"x"}
