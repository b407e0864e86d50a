"""What does resuming in the middle of an epoch cost: seconds to the first batch, requests, bytes read again?

    python benchmarks/bench_resume.py [--quick] [--rounds 5] [--peers ours webdataset]

``stateful_loader`` against torchdata's ``StatefulDataLoader`` over WebDataset, which has no state, so that the loader
resumes by reading what was consumed and discarding it. Both read the same shards from the slow store (nginx: 20 ms
to each answer, 60 MB/s a connection), WebDataset by ``pipe:curl``, with a shuffle buffer of as many samples. They are
stopped after 2 % and 90 % of an epoch; 0 % is a start without a state, since to start two workers takes its time too.
Each run is a process of its own, and has to resume with exactly the next batch, and read to the end of the epoch with
each sample once, or the benchmark fails.

Read again is what the store sent until the end of the epoch, less what was still to be handed out: as the kernel counts
it for nginx's processes (``/proc/PID/io``), HTTP headers and the listing with it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from measure import MIB
from report import arguments, environment, print_table, spread
from slow_store import SlowStore, slow_store
from torch.utils.data.datapipes.iter import IterableWrapper
from torchdata.stateful_dataloader import StatefulDataLoader

import torchdata_remote as tdr

LATENCY_S, CONNECTION_BYTES_PER_S = 0.020, 60_000_000
JPG_BYTES, NUM_CLASSES, BATCH_SAMPLES = 94_000, 1_000, 25
WHOLE = 32, 250, 250, (0.0, 0.02, 0.9)  # shards, samples in each, samples in a buffer, parts of an epoch
QUICK = 8, 50, 25, (0.9,)
NUM_STREAMS, PART_BYTES = 2, 8 * MIB  # of ours, with and without workers
WORKERS = (0, 2)
TIMEOUT_S = 300
T = TypeVar("T")


@dataclass(frozen=True)
class Job:
    """What is read: shards in ``bucket``, and how."""

    store: SlowStore
    server_pids: tuple[int, ...]
    bucket: str
    names: tuple[str, ...]
    shard_bytes: int  # of all together
    num_samples: int
    buffer_samples: int  # of each of two streams, or workers
    num_workers: int = 0

    @property
    def sample_bytes(self) -> float:
        return self.shard_bytes / self.num_samples

    def sent_bytes(self) -> int:
        """What the server wrote to its connections so far."""
        return sum(int(Path(f"/proc/{pid}/io").read_text().split()[3]) for pid in self.server_pids)  # rchar: . wchar: .


def ours(job: Job) -> Any:
    pipe = (
        IterableWrapper([f"s3://{job.bucket}/"])
        .list_remote(pattern="*.tar")
        .shuffle_shards(seed=0)
        .sharding_filter_rank()
        .async_prefetch()
        .shard_tar_reader()
        .shuffle_samples(buffer_size=job.buffer_samples, seed=0)
        .to_tuple("__key__", "jpg", "cls")
    )
    return tdr.stateful_loader(
        pipe, batch_size=BATCH_SAMPLES, num_workers=job.num_workers, num_streams=NUM_STREAMS, collate_fn=list
    )


def webdataset(job: Job) -> Any:
    import webdataset

    warnings.filterwarnings("ignore", "'set_vital' is deprecated")  # StatefulDataLoader calls it, torch 2.13 warns
    urls = [f"pipe:curl -s {job.store.endpoint_url}/{job.bucket}/{name}" for name in job.names]
    buffer = NUM_STREAMS * job.buffer_samples // max(1, job.num_workers)
    samples = webdataset.WebDataset(urls, shardshuffle=len(urls), seed=0).shuffle(buffer, initial=buffer, seed=0)
    return StatefulDataLoader(
        samples.to_tuple("__key__", "jpg", "cls"),
        batch_size=BATCH_SAMPLES,
        num_workers=job.num_workers,
        collate_fn=list,
        multiprocessing_context="forkserver" if job.num_workers else None,
    )


PEERS: Mapping[str, tuple[Callable[[Job], Any], str]] = {
    "ours": (ours, "stateful_loader"),
    "webdataset": (webdataset, "StatefulDataLoader over WebDataset"),
}


@dataclass(frozen=True)
class Stopped:
    """A loader's state, and what it would have handed out next."""

    state: Any  # None at the beginning
    num_passed: int
    next_keys: tuple[str, ...]


@dataclass(frozen=True)
class Going:
    """What going on showed."""

    first_batch_s: float
    requests: int  # until then
    sent_bytes: int  # until then
    again_bytes: int


def keys_of(batch: list[Any]) -> tuple[str, ...]:
    return tuple(str(key) for key, *_ in batch)


def stop(peer: str, job: Job, fraction: float) -> Stopped:
    """In a process of its own: read a part of an epoch."""
    loader = PEERS[peer][0](job)
    batches, num_passed = iter(loader), 0
    while num_passed < fraction * job.num_samples:
        num_passed += len(next(batches))
    state = loader.state_dict() if num_passed else None
    return Stopped(state, num_passed, keys_of(next(batches)))


def go_on(peer: str, job: Job, stopped: Stopped) -> Going:
    """In a process of its own: load the state, and read the rest."""
    logging.disable(logging.WARNING)  # StatefulDataLoader logs each step
    loader = PEERS[peer][0](job)
    sent_bytes, start = job.sent_bytes(), time.perf_counter()
    if stopped.state is not None:
        loader.load_state_dict(stopped.state)
    batches = iter(loader)
    first = keys_of(next(batches))
    seconds, first_bytes = time.perf_counter() - start, job.sent_bytes() - sent_bytes
    requests = sum(job.store.count_requests().values())
    if first != stopped.next_keys:
        raise RuntimeError(f"{peer} resumes with {first[:3]}..., expected {stopped.next_keys[:3]}...")
    rest = len(first) + sum(map(len, batches))
    if rest != job.num_samples - stopped.num_passed:
        raise RuntimeError(f"{peer} read {rest:,} samples more, expected {job.num_samples - stopped.num_passed:,}.")
    again_bytes = job.sent_bytes() - sent_bytes - rest * job.sample_bytes
    return Going(seconds, requests, first_bytes, round(again_bytes))


def in_new_process(function: Callable[..., T], *args: Any) -> T:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *args).result(timeout=TIMEOUT_S)


def server_pids() -> tuple[int, ...]:
    """The store's nginx, a child of this process, and its worker."""
    parents = {os.getpid()}
    for _ in range(2):
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):  # one that has ended since
                pid, name, _, parent, *_ = path.read_text().split()
                if name == "(nginx)" and int(parent) in parents:
                    parents.add(int(pid))
    return tuple(sorted(parents - {os.getpid()}))


def write(folder: Path, num_shards: int, shard_samples: int) -> tuple[tuple[str, ...], int]:
    """Names of the shards, and their bytes."""
    source = random.Random(0)
    with tdr.ShardWriter(f"{folder}/shards/{{shard:06d}}.tar", max_shard_samples=shard_samples) as writer:
        for i in range(num_shards * shard_samples):
            writer.write({"__key__": f"{i:06d}", "jpg": source.randbytes(JPG_BYTES), "cls": i % NUM_CLASSES})
    names = tuple(shard.url.rpartition("/")[2] for shard in writer.shards)
    return names, sum(shard.num_bytes for shard in writer.shards)


Case = tuple[str, int, float]  # peer, workers, part of the epoch that was read


def measure(cases: list[Case], job: Job, num_rounds: int) -> dict[Case, list[Going]]:
    """All cases in each round, in turned order every other time."""
    jobs = {workers: replace(job, num_workers=workers) for workers in WORKERS}
    stopped = {(peer, workers, at): in_new_process(stop, peer, jobs[workers], at) for peer, workers, at in cases}
    found: dict[Case, list[Going]] = {case: [] for case in cases}
    for number in range(num_rounds):
        for case in cases if number % 2 == 0 else reversed(cases):
            peer, workers, _ = case
            job.store.reset_requests()
            found[case].append(in_new_process(go_on, peer, jobs[workers], stopped[case]))
    return found


COLUMNS = (
    "workers",
    "stopped at",
    "s to first batch (min to max)",
    "requests by then",
    "MB by then",
    "MB read again (min to max)",
)


def print_found(found: Mapping[Case, list[Going]]) -> None:
    rows = [("loader", *COLUMNS)]
    for (peer, workers, at), goings in found.items():
        rows.append(
            (
                PEERS[peer][1],
                f"{workers}",
                f"{at:.0%}",
                spread([going.first_batch_s for going in goings], 2),
                f"{median(going.requests for going in goings):,.0f}",
                f"{median(going.sent_bytes for going in goings) / 1e6:,.0f}",
                spread([going.again_bytes / 1e6 for going in goings], 1),
            )
        )
    print_table(rows)


def print_ratios(found: Mapping[Case, list[Going]], job: Job) -> None:
    """Ratios of each round; what a resume may read again is what the README says of it."""
    allowed = NUM_STREAMS * (2 * job.buffer_samples * job.sample_bytes + PART_BYTES)
    for (peer, workers, at), goings in found.items():
        if peer != "ours" or not at:
            continue
        what = f"{workers} workers, stopped at {at:.0%}"
        if theirs := found.get(("webdataset", workers, at)):
            faster = [their.first_batch_s / our.first_batch_s for our, their in zip(goings, theirs, strict=True)]
            fewer = [their.sent_bytes / our.sent_bytes for our, their in zip(goings, theirs, strict=True)]
            print(f"{what}: seconds, theirs of ours: {spread(faster, 1)}; bytes by then: {spread(fewer, 1)}")
        again = [going.again_bytes / allowed for going in goings]
        print(
            f"{what}: read again, of two buffers and a part for each stream ({allowed / 1e6:,.0f} MB): "
            f"{spread(again, 2)}; target at most 1"
        )


def main() -> None:
    args = arguments(str(__doc__).splitlines()[0], tuple(PEERS))
    num_shards, shard_samples, buffer_samples, stops = QUICK if args.quick else WHOLE
    missing = [peer for peer in args.peers or PEERS if peer == "webdataset" and find_spec(peer) is None]
    peers = [peer for peer in args.peers or PEERS if peer not in missing]
    with tempfile.TemporaryDirectory(prefix="bench-resume-") as temporary:
        names, shard_bytes = write(Path(temporary), num_shards, shard_samples)
        with slow_store(Path(temporary), latency_s=LATENCY_S, connection_bytes_per_s=CONNECTION_BYTES_PER_S) as store:
            for name in [name for name in os.environ if name.startswith("AWS_")]:
                del os.environ[name]
            os.environ.update(store.environment)
            num_samples = num_shards * shard_samples
            job = Job(store, server_pids(), "shards", names, shard_bytes, num_samples, buffer_samples)
            cases = [
                (peer, workers, at)
                for workers in WORKERS
                for at in stops
                for peer in peers
                if not args.quick or peer == "ours" or workers == WORKERS[-1]
            ]
            found = measure(cases, job, args.rounds)
    print(
        f"{num_samples:,} samples of {JPG_BYTES:,} bytes in {num_shards} shards, batches of "
        f"{BATCH_SAMPLES}, {NUM_STREAMS} buffers of {buffer_samples} samples, {LATENCY_S * 1000:.0f} ms to each "
        f"answer, {CONNECTION_BYTES_PER_S / 1e6:.0f} MB/s a connection, {args.shown}\n"
        f"{environment({'torchdata_remote', 'torchdata', 'webdataset'}, with_store=True)}\n"
    )
    print_found(found)
    print("".join(f"{PEERS[peer][1]}: not measured, it is not installed\n" for peer in missing))
    print_ratios(found, job)


if __name__ == "__main__":
    main()
