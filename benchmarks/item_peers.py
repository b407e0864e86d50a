"""Samples of local shards that are mixed, read by each peer as its documentation says; ``job.bucket`` is the folder.

A peer for another pipe of items is a function from a ``Job`` to the bytes of each item, and an entry in ``PEERS``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

from measure import Job, Peer
from object_peers import OURS
from shard_peers import WEBDATASET
from tar_peers import paths

os.environ["HF_HUB_OFFLINE"] = "1"  # for datasets, which reads local files here
WEIGHTS = {"web": 3, "books": 1}  # set of shards: weight
ROW_TOKENS = 2_048


def set_paths(job: Job, name: str) -> list[str]:
    """The shards of one set, which is a folder."""
    return [path for path in paths(job) if path.startswith(f"{job.bucket}/{name}/")]


def sample_bytes(samples: Iterable[dict[str, Any]]) -> Iterator[int]:
    return (len(sample["bin"]) for sample in samples)


def chain(shards: list[str]) -> Any:
    from torch.utils.data.datapipes.iter import IterableWrapper

    return IterableWrapper(shards).sharding_filter_rank().async_prefetch().shard_tar_reader()


def one_set(job: Job) -> Iterator[int]:
    """The shards of both sets in one chain."""
    return sample_bytes(chain(paths(job)))


def mixed(job: Job) -> Iterator[int]:
    import torchdata_remote as tdr

    sources = {name: (chain(set_paths(job, name)), weight) for name, weight in WEIGHTS.items()}
    return sample_bytes(tdr.mix(sources, stop="all_exhausted"))


def scheduled(job: Job) -> Iterator[int]:
    """Ten phases, in which the part of the second set grows."""
    import torchdata_remote as tdr

    schedule = {job.num_samples * phase // 10: {"web": 10 - phase, "books": 1 + phase} for phase in range(10)}
    sources = {name: chain(set_paths(job, name)) for name in WEIGHTS}
    return sample_bytes(tdr.mix(sources, schedule=schedule, stop="all_exhausted"))


def webdataset_of(shards: list[str]) -> Any:
    import webdataset

    return webdataset.WebDataset(shards, shardshuffle=False, handler=webdataset.reraise_exception)


def webdataset_one(job: Job) -> Iterator[int]:
    return sample_bytes(webdataset_of(paths(job)))


def webdataset_mix(job: Job) -> Iterator[int]:
    import webdataset

    sets = [webdataset_of(set_paths(job, name)) for name in WEIGHTS]
    return sample_bytes(webdataset.RandomMix(sets, probs=list(WEIGHTS.values()), longest=True))


def datasets_of(shards: list[str]) -> Any:
    """Hugging Face's streaming reader of WebDataset's shards."""
    import datasets

    return datasets.load_dataset("webdataset", data_files=shards, split="train", streaming=True)


def datasets_one(job: Job) -> Iterator[int]:
    return sample_bytes(datasets_of(paths(job)))


def datasets_mix(job: Job) -> Iterator[int]:
    import datasets

    sets = [datasets_of(set_paths(job, name)) for name in WEIGHTS]
    probabilities = [weight / sum(WEIGHTS.values()) for weight in WEIGHTS.values()]
    read_once = "all_exhausted_without_replacement"
    return sample_bytes(
        datasets.interleave_datasets(sets, probabilities=probabilities, seed=0, stopping_strategy=read_once)
    )


def documents(job: Job) -> Any:
    """Token ids of each document, an array."""
    return chain(paths(job)).decode_sample().map(_ids)


def _ids(sample: dict[str, Any]) -> Any:
    return sample["npy"]


def _halves(ids: Any) -> tuple[Any, Any]:
    return ids[::2], ids[1::2]


def documents_alone(job: Job) -> Iterator[int]:
    """As one item: those of the sides that make others of documents differ in number."""
    yield sum(ids.nbytes for ids in documents(job))


def packed(job: Job, **options: Any) -> Iterator[int]:
    import numpy as np

    rows = documents(job).pack(ROW_TOKENS, last="short", **options)
    yield sum(int((row["document_ids"] >= 0).sum()) for row in rows) * np.dtype(np.int64).itemsize


def packed_whole(job: Job) -> Iterator[int]:
    return packed(job, split=False, max_wait=64)


def bucketed(job: Job) -> Iterator[int]:
    batches = documents(job).bucket(max_tokens=32 * ROW_TOKENS, length=len, max_wait=2_000)
    yield sum(ids.nbytes for batch in batches for ids in batch)


def flat_mapped(job: Job) -> Iterator[int]:
    yield sum(half.nbytes for half in documents(job).flat_map(_halves))


def table_rows(job: Job) -> Iterator[int]:
    import torchdata_remote as tdr

    urls = tdr.IterableWrapper([f"{job.bucket}/"]).list_remote(pattern="*.parquet")
    return (row["label"] for row in urls.list_row_groups().table_reader())


def pyarrow_rows(job: Job) -> Iterator[int]:
    from pyarrow import dataset

    batches = dataset.dataset(job.bucket).to_batches()
    return (row["label"] for batch in batches for row in batch.to_pylist())


def datasets_rows(job: Job) -> Iterator[int]:
    import datasets

    rows = datasets.load_dataset("parquet", data_files=f"{job.bucket}/*.parquet", split="train", streaming=True)
    return (row["label"] for row in rows)


PEERS = {
    "ours-one": Peer(OURS, one_set, "torchdata_remote, all shards in one chain", "torchdata_remote"),
    "ours-mix": Peer(OURS, mixed, "torchdata_remote, mix of two chains", "torchdata_remote"),
    "ours-schedule": Peer(OURS, scheduled, "torchdata_remote, mix by a schedule of ten phases", "torchdata_remote"),
    "webdataset-one": Peer(WEBDATASET, webdataset_one, "WebDataset, all shards", "webdataset"),
    "webdataset-mix": Peer(WEBDATASET, webdataset_mix, "WebDataset, RandomMix of two", "webdataset"),
    "datasets-one": Peer(("datasets",), datasets_one, "Hugging Face datasets, all shards", "datasets"),
    "datasets-mix": Peer(("datasets",), datasets_mix, "Hugging Face datasets, interleave_datasets of two", "datasets"),
    "ours-documents": Peer(OURS, documents_alone, "documents as they are", "torchdata_remote"),
    "ours-pack": Peer(OURS, packed, "pack, cut", "torchdata_remote"),
    "ours-pack-whole": Peer(OURS, packed_whole, "pack, whole documents by best fit", "torchdata_remote"),
    "ours-bucket": Peer(OURS, bucketed, "bucket", "torchdata_remote"),
    "ours-flat-map": Peer(OURS, flat_mapped, "flat_map, two items for each", "torchdata_remote"),
    "ours-table": Peer((*OURS, "pyarrow.parquet"), table_rows, "table_reader", "torchdata_remote"),
    "pyarrow": Peer(("pyarrow.dataset",), pyarrow_rows, "pyarrow, to_pylist", "pyarrow"),
    "datasets-table": Peer(("datasets",), datasets_rows, "Hugging Face datasets, streaming", "datasets"),
}
