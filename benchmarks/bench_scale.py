"""What does a job of 4,096 ranks with 8 workers each cost before its first sample: listing, shares, states?

    python benchmarks/bench_scale.py [--quick]

One process stands for all: each figure is what one rank, one worker or all of them together spend, by the code that
they would run. Growth is that from the smallest job to the largest one, which has 64 times as many shards and slots.
"""

from __future__ import annotations

import argparse
import json
import pickle
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from report import print_table
from torch.utils.data.datapipes.iter import IterableWrapper

import torchdata_remote as tdr
from torchdata_remote.core.checksums import BLOCK_BYTES, Checksums
from torchdata_remote.core.partition import EqualizeMode
from torchdata_remote.formats.manifest import ShardInfo, dump_manifest
from torchdata_remote.loaders.listings import Listed, packed, unpacked
from torchdata_remote.loaders.state.state_format import State, make_state
from torchdata_remote.loaders.stream_pass import Chain
from torchdata_remote.pipes.shares import Share

RANKS, NUM_WORKERS, SLOT_SHARDS = (64, 512, 4_096), 8, 3
QUICK = (4, 16, 64)
SHARD_SAMPLES, MOST_STREAMS = 1_000, 256
T = TypeVar("T")


@dataclass(frozen=True)
class Figure:
    """One line of the table."""

    what: str
    unit: str
    value: float


def seconds(function: Callable[[], T]) -> tuple[T, float]:
    """What it returns, and the CPU it took."""
    start_s = time.process_time()
    found = function()
    return found, time.process_time() - start_s


def write_manifest(folder: Path, num_shards: int) -> Path:
    """As a writer of that many shards leaves it; the shards are not read here."""
    folder.mkdir()
    shards = [
        ShardInfo(
            f"{folder}/train-{n:06d}.tar",
            SHARD_SAMPLES + n % 7,
            BLOCK_BYTES,
            f"{n * 0x9E3779B97F4A7C15 % (1 << 128):032x}",
            Checksums(BLOCK_BYTES, (n * 0x9E3779B1 % (1 << 32),)),
            n * 0x85EBCA6B % (1 << 32),
        )
        for n in range(num_shards)
    ]
    (folder / "index.json").write_bytes(dump_manifest(shards))
    return folder / "index.json"


def split_urls(manifest: Path, world: tdr.World | None = None) -> Any:
    return IterableWrapper([str(manifest)]).list_remote().shuffle_shards(seed=0).sharding_filter_rank(world=world)


def place_of_a_stream(folder: Path) -> Any:
    """The position of a stream of a whole chain, as in a state."""
    with tdr.ShardWriter(f"{folder}/{{shard:06d}}.tar") as writer:
        for n in range(100):
            writer.write({"__key__": f"{n:06d}", "cls": n})
    reader = split_urls(folder / "index.json").async_prefetch().shard_tar_reader()
    data = tdr.Resumable(reader.shuffle_samples(buffer_size=10).to_tuple("__key__"))
    for _ in islice(data, 50):
        pass
    return data.state_dict()["streams"][0][1]


def listing(manifest: Path, num_ranks: int) -> tuple[Listed, list[Figure]]:
    num_bytes = manifest.stat().st_size
    listed, listing_s = seconds(Chain(split_urls(manifest), 0).listed)
    sent, packing_s = seconds(lambda: packed(listed))
    taken, taking_s = seconds(lambda: unpacked(sent))
    if taken != listed:
        raise RuntimeError("what workers take is not what was listed")
    slots, fingerprint_bytes = num_ranks * NUM_WORKERS, len(json.dumps(listed.fingerprints))
    return listed, [
        Figure("manifest", "MB", num_bytes / 1e6),
        Figure("manifests read in an epoch, if each worker lists", "MB", slots * num_bytes / 1e6),
        Figure("the same, each rank for its workers", "MB", num_ranks * num_bytes / 1e6),
        Figure("the same, rank 0 for all (list_in_rank_0)", "MB", num_bytes / 1e6),
        Figure("listing and fingerprint, in a rank", "CPU s", listing_s),
        Figure("listing handed on: packed once", "CPU s", packing_s),
        Figure("listing handed on: size", "MB", len(sent) / 1e6),
        Figure("listing handed on: taken by a worker", "CPU s", taking_s),
        Figure("fingerprints that a rank gets to compare", "MB", num_ranks * fingerprint_bytes / 1e6),
    ]


def shares(manifest: Path, listed: Listed, num_ranks: int) -> list[Figure]:
    """Some streams of the job, opened and read to the end of their URLs by one process."""
    num_streams = num_ranks * NUM_WORKERS
    opened = range(0, num_streams, max(1, num_streams // MOST_STREAMS))
    figures = []
    for name, mode in (("shares", None), ("shares of equalize_ranks", EqualizeMode.DROP)):
        pipe = split_urls(manifest)
        read = Chain(pipe, 1, len(opened), listed)

        def take(read: Chain = read, mode: EqualizeMode | None = mode) -> list[list[str]]:
            envs = (replace(read.env(Share(number, num_streams)), equalize=mode) for number in opened)
            return [list(env.open(read.pipe)) for env in envs]

        found, taking_s = seconds(take)
        urls = [url for share in found for url in share]
        if len(set(urls)) != len(urls) or not all(found):
            raise RuntimeError(f"{name}: {len(set(urls)):,} of {len(urls):,} URLs are different")
        figures.append(Figure(f"{name}: {MOST_STREAMS} streams in one process at the most", "CPU s", taking_s))
    return figures


def states(manifest: Path, place: Any, listed: Listed, num_ranks: int) -> list[Figure]:
    num_streams = num_ranks * NUM_WORKERS
    data = tdr.Resumable(split_urls(manifest), num_streams=num_streams)

    def state_of(rank: int) -> State:
        rows = [[number, place] for number in range(rank, num_streams, num_ranks)]
        return make_state(data.chain, listed.fingerprints, 1, num_streams, rows)

    of_ranks = [state_of(rank) for rank in range(num_ranks)]
    merged, merging_s = seconds(lambda: tdr.merge_states(of_ranks))
    text = json.dumps(merged)
    loaded, loading_s = seconds(lambda: json.loads(text))
    rank = tdr.Resumable(split_urls(manifest, tdr.World(0, num_ranks)), num_streams=num_streams)
    rank.load_state_dict(loaded)
    return [
        Figure("state of a rank", "kB", len(json.dumps(of_ranks[0])) / 1e3),
        Figure("state of all ranks", "MB", len(text) / 1e6),
        Figure("merging the states of all ranks", "CPU s", merging_s),
        Figure("reading the state of all ranks", "CPU s", loading_s),
        Figure("state sent to a worker, if it were that of all ranks", "kB", len(pickle.dumps(loaded)) / 1e3),
        Figure("state and chain sent to a worker", "kB", len(pickle.dumps(rank)) / 1e3),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small jobs, which show that it runs")
    sizes = QUICK if parser.parse_args().quick else RANKS
    columns: list[list[Figure]] = []
    with tempfile.TemporaryDirectory(prefix="bench-scale-") as temporary:
        place = place_of_a_stream(Path(temporary) / "one")
        for num_ranks in sizes:
            num_shards = num_ranks * NUM_WORKERS * SLOT_SHARDS
            manifest = write_manifest(Path(temporary) / str(num_ranks), num_shards)
            listed, figures = listing(manifest, num_ranks)
            figures += shares(manifest, listed, num_ranks) + states(manifest, place, listed, num_ranks)
            columns.append(figures)
    heads = [f"{ranks:,} x {NUM_WORKERS}, {ranks * NUM_WORKERS * SLOT_SHARDS:,} shards" for ranks in sizes]
    rows: list[tuple[str, ...]] = [("ranks x workers", *heads, "growth")]
    for row in zip(*columns, strict=True):
        growth = row[-1].value / row[0].value if row[0].value else 0
        rows.append((f"{row[0].what}, {row[0].unit}", *(f"{one.value:,.3f}" for one in row), f"{growth:,.0f}x"))
    print_table(rows)


if __name__ == "__main__":
    main()
