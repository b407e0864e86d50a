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
