"""What do pipes that combine items cost for each of them, in this package and in others?

    python benchmarks/bench_items.py [--quick] [--rounds 5] [--peers ours-one ours-mix ...]

Each question compares sides that hand out the same samples of local shards. The files were just written, so they come
from the page cache: what is measured is what the sides add to reading. Sides alternate by rounds, each in a process of
its own. Peers come from PyPI: pip install webdataset datasets; one that is not there is left out.

A question about another pipe is a function that writes what its sides read, their peers in ``item_peers.py``, and an
entry in ``QUESTIONS``.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
from item_peers import PEERS, WEIGHTS
from measure import Job
from report import Round, Side, Target, arguments, compare, faster, print_report

import torchdata_remote as tdr

SAMPLE_BYTES = 1_500
QUICK_FRACTION = 40


@dataclass(frozen=True)
class Question:
    """What one part of this benchmark asks.

    Args:
        title: of its table, with ``{}`` for the number of items.
        peers: names in ``PEERS``.
        num_items: that each side hands out; samples, or tokens.
        write: writes so many items into a folder, and returns what the sides read.
        targets: ratios below the table.
    """

    title: str
    peers: tuple[str, ...]
    num_items: int
    write: Callable[[str, int], Job]
    targets: tuple[Target, ...]


def costlier(side: str, plain: str) -> Callable[[Round], float | None]:
    """CPU seconds of one side against those of another, which other work on the machine hardly changes."""

    def value(found: Round) -> float | None:
        return found[side].cpu_s / found[plain].cpu_s if side in found and plain in found else None

    return value


def write_sets(folder: str, num_samples: int) -> Job:
    """Two sets of shards, whose sizes are as their weights; pieces of one random block, so that writing is quick."""
    block, starts = random.Random(0).randbytes(8 * SAMPLE_BYTES), random.Random(1)
    names, sizes = [], []
    for name, weight in WEIGHTS.items():
        in_set = num_samples * weight // sum(WEIGHTS.values())
        with tdr.ShardWriter(f"{folder}/{name}/{{shard:06d}}.tar", max_shard_samples=-(-in_set // weight)) as writer:
            for number in range(in_set):
                start = starts.randrange(7 * SAMPLE_BYTES)
                writer.write({"__key__": f"{number:06d}", "bin": block[start : start + SAMPLE_BYTES]})
        names += [f"{name}/{shard.url.rpartition('/')[2]}" for shard in writer.shards]
        sizes += [shard.num_bytes for shard in writer.shards]
    return Job("", folder, names, sizes, num_samples, num_samples * SAMPLE_BYTES)


def write_documents(folder: str, num_tokens: int) -> Job:
    """Documents of 100 to 900 tokens, as arrays."""
    source, names, sizes, left, number = np.random.default_rng(0), [], [], num_tokens, 0
    with tdr.ShardWriter(f"{folder}/{{shard:06d}}.tar", max_shard_samples=2_000) as writer:
        while left:
            length = min(left, int(source.integers(100, 900)))
            writer.write({"__key__": f"{number:06d}", "npy": source.integers(0, 50_000, length)})
            left, number = left - length, number + 1
    names = [shard.url.rpartition("/")[2] for shard in writer.shards]
    sizes = [shard.num_bytes for shard in writer.shards]
    return Job("", folder, names, sizes, 1, num_tokens * np.dtype(np.int64).itemsize)


def write_tables(folder: str, num_rows: int) -> Job:
    """Four Parquet files of five columns of numbers and short texts."""
    if find_spec("pyarrow") is None:
        return Job("", folder, [], [], num_rows, num_rows, missing="pyarrow")
    import pyarrow as pa
    from pyarrow import parquet

    source, rows = np.random.default_rng(0), num_rows // 4
    for number in range(4):
        columns = {
            "label": np.ones(rows, np.int64),
            "user": source.integers(0, 1 << 40, rows),
            "score": source.random(rows),
            "is_new": source.integers(0, 2, rows).astype(bool),
            "title": [f"title {value}" for value in source.integers(0, 1 << 30, rows).tolist()],
        }
        parquet.write_table(pa.table(columns), f"{folder}/{number}.parquet", row_group_size=20_000)
    return Job("", folder, [], [], rows * 4, rows * 4)


QUESTIONS = (
    Question(
        f"{{:,}} samples of {SAMPLE_BYTES:,} bytes in two sets of local shards, weights 3 and 1",
        ("ours-one", "ours-mix", "ours-schedule", "webdataset-one", "webdataset-mix", "datasets-one", "datasets-mix"),
        100_000,
        write_sets,
        (
            Target("mix, CPU against all shards in one chain", costlier("ours-mix", "ours-one")),
            Target("mix by a schedule, CPU against constant weights", costlier("ours-schedule", "ours-mix")),
            Target("RandomMix, CPU against WebDataset of all shards", costlier("webdataset-mix", "webdataset-one")),
            Target("interleave_datasets, CPU against datasets of all shards", costlier("datasets-mix", "datasets-one")),
            Target("mix, against WebDataset's RandomMix", faster("ours-mix", "webdataset-mix")),
            Target("mix, against interleave_datasets", faster("ours-mix", "datasets-mix")),
        ),
    ),
    Question(
        "{:,} tokens in documents of 500 on average, of local shards; samples are tokens",
        ("ours-documents", "ours-pack", "ours-pack-whole", "ours-bucket", "ours-flat-map"),
        10_000_000,
        write_documents,
        tuple(
            Target(f"{name}, CPU against documents as they are", costlier(f"ours-{name}", "ours-documents"))
            for name in ("pack", "pack-whole", "bucket", "flat-map")
        ),
    ),
    Question(
        "{:,} rows of five columns in local Parquet files",
        ("ours-table", "pyarrow", "datasets-table"),
        400_000,
        write_tables,
        (
            Target("table_reader, against pyarrow's to_pylist", faster("ours-table", "pyarrow")),
            Target("table_reader, against datasets", faster("ours-table", "datasets-table")),
        ),
    ),
)


def main() -> None:
    args = arguments(str(__doc__).splitlines()[0], tuple(PEERS))
    for question in QUESTIONS:
        peers = [name for name in question.peers if name in (args.peers or PEERS)]
        if not peers:
            continue
        num_items = question.num_items // QUICK_FRACTION if args.quick else question.num_items
        with tempfile.TemporaryDirectory(prefix="bench-items-") as folder:
            job = question.write(folder, num_items)
            sides = [Side(name, name, job, num_items, num_items) for name in peers]
            results = compare("item_peers", sides, None, args.rounds)
        print_report(f"{question.title.format(num_items)}, {args.shown}", PEERS, sides, results, question.targets)
        print()


if __name__ == "__main__":
    main()
