"""The order of samples: uniform, the same for any kind of worker; and the memory of a job."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import torchdata_remote as tdr
from tests.servers.s3 import S3Server
from tests.servers.scripted import Response, scripted
from tests.support.paths import ROOT
from tests.support.shard_places import Place, memory_place, some_files, tar_of
from torchdata_remote import labels
from torchdata_remote.core.options import FetchOptions
from torchdata_remote.core.urls import RemoteUrl
from torchdata_remote.fetch.sample_table import SampleTable
from torchdata_remote.sharding.shard_dataset import shard_dataset

NUM_SAMPLES, NUM_BINS, SEEDS = 600, 10, range(8)
MAX_DEVIATIONS = 4.0  # one in 30,000 uniform orders is further off; and the seeds are fixed


class Numbers:
    """A map-style dataset whose items are their numbers."""

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"txt": str(index)}


def numbered() -> dict[str, bytes]:
    """Files that hold their numbers, with paths in the same order."""
    return {f"{index // 100}/{index:05d}.txt": str(index).encode() for index in range(NUM_SAMPLES)}


def folder() -> str:
    return memory_place().put(numbered())


def tar_of_tars() -> str:
    inner: dict[str, dict[str, bytes]] = {}
    for name, data in numbered().items():
        inner.setdefault(name[0], {})[name[2:]] = data
    url = memory_place().put({"train.tar": tar_of({f"{name}.tar": tar_of(files) for name, files in inner.items()})})
    return f"{url}train.tar"


def gzipped() -> str:
    return f"{memory_place().put({'all.tar.gz': gzip.compress(tar_of(numbered()), 1)})}all.tar.gz"


def shards_of_others() -> str:
    to = memory_place()
    shard_dataset(folder(), to.template(), max_shard_samples=70, seed=None, progress=False)
    return to.url


SOURCES: dict[str, Callable[[], Any]] = {
    "dataset": Numbers,
    "folder": folder,
    "tar of tars": tar_of_tars,
    "gzip": gzipped,
    "shards": shards_of_others,
}


def order_of(place: Place) -> list[int]:
    """The source positions of all samples, in the order of the shards."""
    return [int(sample["txt"]) for sample in tdr.stream_shards(place.url, seed=None)]


def deviations(orders: list[list[int]]) -> float:
    """Standard deviations between the chi-square of source bin against output bin and that of uniform orders.

    For each order, a table whose sums are fixed: (bins - 1)^2 degrees of freedom. The cube root makes chi-square normal
    (E. B. Wilson and M. M. Hilferty, 1931).
    """
    chi_square, expected = 0.0, NUM_SAMPLES / NUM_BINS**2
    for order in orders:
        table = np.zeros((NUM_BINS, NUM_BINS))
        np.add.at(
            table, (np.array(order) * NUM_BINS // NUM_SAMPLES, np.arange(NUM_SAMPLES) * NUM_BINS // NUM_SAMPLES), 1
        )
        chi_square += float(((table - expected) ** 2 / expected).sum())
    freedom = (NUM_BINS - 1) ** 2 * len(orders) * NUM_SAMPLES / (NUM_SAMPLES - 1)
    spread = 2 / (9 * freedom)
    return float(((chi_square / freedom) ** (1 / 3) - (1 - spread)) / spread**0.5)


def written_order(source: Any, seed: int) -> list[int]:
    to = memory_place()
    shard_dataset(source, to.template(), max_shard_samples=170, seed=seed, progress=False)
    return order_of(to)


@pytest.mark.parametrize("kind", SOURCES)
def test_the_order_of_a_seed_does_not_depend_on_the_kind_of_source(kind: str) -> None:
    """So an order that is uniform for one kind is uniform for all."""
    order = written_order(SOURCES[kind](), seed=3)
    assert sorted(order) == list(range(NUM_SAMPLES))
    assert order == written_order(Numbers(), seed=3)


def test_the_order_is_uniform() -> None:
    """Over seeds, a source position is equally likely at each output position."""
    orders = [written_order(Numbers(), seed) for seed in SEEDS]
    assert len(set(map(tuple, orders))) == len(SEEDS)
    assert abs(deviations(orders)) < MAX_DEVIATIONS


def test_a_windowed_shuffle_would_not_pass() -> None:
    """A buffer of a quarter of the dataset, and no shuffle at all."""
    to, orders = memory_place(), []
    shard_dataset(folder(), to.template(), seed=None, progress=False)
    assert order_of(to) == list(range(NUM_SAMPLES))
    for seed in SEEDS:
        pipe = tdr.stream_shards(to.url, seed=None).shuffle_samples(buffer_size=NUM_SAMPLES // 4, seed=seed)
        orders.append([int(sample["txt"]) for sample in pipe])
    assert deviations(orders) > 10 * MAX_DEVIATIONS
    assert deviations([order_of(to)]) > 10 * MAX_DEVIATIONS


def test_source_neighbours_are_rarely_output_neighbours() -> None:
    """Samples that follow each other in the source follow each other in the output as seldom as in a uniform order."""
    followed, to = 0, memory_place()
    for seed in SEEDS:
        shard_dataset(Numbers(), to.template(), seed=seed, overwrite=True, progress=False)
        followed += int((np.diff(order_of(to)) == 1).sum())
    assert 0 < followed < 3 * len(SEEDS)  # one of 600 is expected


# The same bytes


def options_for_bytes() -> dict[str, Any]:
    """Options that write all kinds of objects."""
    return {"max_shard_bytes": 20_000, "provenance": True, "labels": labels.parent_directory(), "progress": False}


def pools() -> Iterator[Executor]:
    with ThreadPoolExecutor(3) as threads:
        yield threads
    with ProcessPoolExecutor(1, get_context("forkserver")) as processes:
        yield processes


def test_any_kind_of_worker_writes_the_same_bytes(tmp_path: Path) -> None:
    """Shards, indexes, classes, provenance and manifest, by one process, workers or an executor."""
    source = Place(f"{tmp_path}/in/").put(some_files(60))
    given = options_for_bytes()
    expected = Place(f"{tmp_path}/0/")
    shard_dataset(source, expected.template(), **given)
    assert len(expected.shards()) > 3
    for num_workers in (1, 2):
        to = Place(f"{tmp_path}/{num_workers}/")
        shard_dataset(source, to.template(), num_workers=num_workers, **given)
        assert to.files() == expected.files()
    for number, pool in enumerate(pools()):
        to = Place(f"{tmp_path}/pool-{number}/")
        shard_dataset(source, to.template(), executor=pool, **given)
        assert to.files() == expected.files()


def test_the_same_samples_give_the_same_bytes_from_any_source(moto: S3Server) -> None:
    """A folder, a tar and a tar.gz of it, in the same order and with the same paths; in each kind of store."""
    files, made = some_files(60), []
    for source in (memory_place(), Place(f"s3://{moto.new_bucket()}/in/", moto)):
        source.below("folder").put(files)
        source.put({"all.tar": tar_of(files), "all.tar.gz": gzip.compress(tar_of(files))})
        for name in ("folder/", "all.tar", "all.tar.gz"):
            to = memory_place()
            given = {**options_for_bytes(), "source_options": source.options}
            shard_dataset(source.url + name, to.template(), **given)
            made.append({file: data for file, data in to.files().items() if file != "index.json"})
    assert len(made) == 6
    assert all(one == made[0] for one in made)


def test_another_seed_is_another_order() -> None:
    """And the same one is the same, in another process too."""
    source, orders = folder(), []
    for seed in (0, 1, 2, -1, 2**70):
        to = memory_place()
        shard_dataset(source, to.template(), seed=seed, progress=False)
        orders.append(tuple(order_of(to)))
    assert len(set(orders)) == len(orders)
    again = memory_place()
    shard_dataset(Numbers(), again.template(), progress=False)
    assert tuple(order_of(again)) == orders[0]
    assert orders[0][:8] == (285, 27, 143, 507, 325, 141, 170, 208), (
        "a dataset that was written before would have another order"
    )


# Memory

MEASURED = r"""
import json, sys, threading
from pathlib import Path

from torchdata_remote.sharding import shard_dataset


def resident(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))


given = json.loads(sys.argv[1])
Path("/proc/self/clear_refs").write_text("5")  # resets the peak
begun = resident("RssAnon")
peak, over = begun, threading.Event()


def watch():
    global peak
    while not over.wait(0.002):
        peak = max(peak, resident("RssAnon"))


watching = threading.Thread(target=watch)
watching.start()
shard_dataset(**given, progress=False)
over.set()
watching.join()
print(json.dumps([begun, peak]))
"""
MIB = 1 << 20


def peak_bytes(**given: Any) -> int:
    """What a job takes at its peak beyond what the interpreter has before, mapped files aside."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, json.dumps(given)],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin", "MALLOC_ARENA_MAX": "2"},
    )
    begun, peak = json.loads(done.stdout)
    return int(peak - begun)


# three windows of a quarter of a shard, and 16 MiB on their way out
STATED_BYTES = (3 * 16 + 16) * MIB


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["files", "tar", "gz"])
def test_memory_of_a_local_source(tmp_path: Path, kind: str) -> None:
    """300 MB in shards of 64 MiB take three windows of a quarter shard and what is on its way out, not a shard each."""
    source = big_source(Place(f"{tmp_path}/in/"), kind)
    taken = peak_bytes(source=source, url_template=f"{tmp_path}/out/{{shard}}.tar", max_shard_bytes=64 * MIB)
    assert taken < STATED_BYTES, f"{taken / MIB:.0f} MiB"


@pytest.mark.slow
def test_memory_of_a_remote_source(tmp_path: Path) -> None:
    """Over a network, where the first pass also has the buffer of the fetch session."""
    data = Path(big_source(Place(f"{tmp_path}/in/"), "tar")).read_bytes()
    with scripted(lambda request: Response.of_object(request, data)) as server:
        taken = peak_bytes(
            source=f"{server.url}/all.tar", url_template=f"{tmp_path}/out/{{shard}}.tar", max_shard_bytes=64 * MIB
        )
    assert taken < STATED_BYTES + FetchOptions().max_buffer_bytes, f"{taken / MIB:.0f} MiB"


def test_the_index_takes_about_100_bytes_a_sample() -> None:
    """200,000 samples whose names have 40 characters: as it grows, and when samples are taken from it."""
    num_samples = 200_000
    url = RemoteUrl("s3://bucket/all.tar", 1 << 40, '"etag"')
    tracemalloc.start()
    try:
        table = SampleTable()
        table.add_object(url)
        for index in range(num_samples):
            table.start_sample()
            table.add_member(f"n{index % 1000:08d}/some-name-of-a-file-{index:06d}.jpg", index * 2048, 1500)
        _, peak = tracemalloc.get_traced_memory()
        members = table.select(np.arange(1000))
    finally:
        tracemalloc.stop()
    assert len(members.names[0]) == 40
    assert peak < 150 * num_samples, f"{peak / num_samples:.0f} bytes a sample"


def big_source(place: Place, kind: str) -> str:
    """300 MB of samples of 100 kB."""
    chance = np.random.default_rng(0)
    files = {f"{index:06d}.bin": chance.bytes(100_000) for index in range(3_000)}
    if kind == "files":
        return place.put(files)
    name, data = ("all.tar", tar_of(files)) if kind == "tar" else ("all.tar.gz", gzip.compress(tar_of(files), 1))
    return place.put({name: data}) + name
