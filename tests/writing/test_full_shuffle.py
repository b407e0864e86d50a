"""The order that ``shard_dataset`` writes: uniform, from a seed, whatever the source; and its memory."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import torchdata_remote as tdr
from tests.servers.scripted import Response, scripted
from tests.support.paths import ROOT
from tests.support.shard_places import Place, memory_place, tar_of
from tests.support.written import read, shard

NUM_SAMPLES, NUM_BINS, SEEDS = 600, 10, range(8)
MAX_DEVIATIONS = 4.0  # one in 30,000 uniform orders is further off; and the seeds are fixed
NUMBERS = [{"txt": str(index)} for index in range(NUM_SAMPLES)]
FILES = {f"{index // 100}/{index:05d}.txt": str(index).encode() for index in range(NUM_SAMPLES)}


def tar_of_tars() -> str:
    inner: dict[str, dict[str, bytes]] = {}
    for name, data in FILES.items():
        inner.setdefault(name[0], {})[name[2:]] = data
    url = memory_place().put({"train.tar": tar_of({f"{name}.tar": tar_of(files) for name, files in inner.items()})})
    return f"{url}train.tar"


def shards_of_others() -> str:
    to = memory_place()
    shard(NUMBERS, to, max_shard_samples=70, seed=None)
    return to.url


SOURCES: dict[str, Callable[[], Any]] = {
    "folder": lambda: memory_place().put(FILES),
    "tar of tars": tar_of_tars,
    "gzip": lambda: f"{memory_place().put({'all.tar.gz': gzip.compress(tar_of(FILES), 1)})}all.tar.gz",
    "shards": shards_of_others,
}


def written_order(source: Any, **given: Any) -> list[int]:
    """The source positions of all samples, in the order of the shards."""
    to = memory_place()
    shard(source, to, **given)
    return [int(sample["txt"]) for sample in read(to)]


def deviations(orders: list[list[int]]) -> float:
    """Standard deviations between the chi-square of source bin against output bin and that of uniform orders.

    For each order, a table whose sums are fixed: (bins - 1)^2 degrees of freedom. The cube root makes chi-square normal
    (E. B. Wilson and M. M. Hilferty, 1931).
    """
    chi_square, expected = 0.0, NUM_SAMPLES / NUM_BINS**2
    for order in orders:
        table = np.zeros((NUM_BINS, NUM_BINS))
        places = np.array(order) * NUM_BINS // NUM_SAMPLES, np.arange(NUM_SAMPLES) * NUM_BINS // NUM_SAMPLES
        np.add.at(table, places, 1)
        chi_square += float(((table - expected) ** 2 / expected).sum())
    freedom = (NUM_BINS - 1) ** 2 * len(orders) * NUM_SAMPLES / (NUM_SAMPLES - 1)
    spread = 2 / (9 * freedom)
    return float(((chi_square / freedom) ** (1 / 3) - (1 - spread)) / spread**0.5)


@pytest.mark.parametrize("kind", SOURCES)
def test_the_order_of_a_seed_does_not_depend_on_the_kind_of_source(kind: str) -> None:
    order = written_order(SOURCES[kind](), seed=3, max_shard_samples=170)
    assert sorted(order) == list(range(NUM_SAMPLES))
    assert order == written_order(NUMBERS, seed=3)


def test_the_order_is_uniform_and_source_neighbours_are_rarely_neighbours() -> None:
    orders = [written_order(NUMBERS, seed=seed) for seed in SEEDS]
    assert abs(deviations(orders)) < MAX_DEVIATIONS
    assert 0 < sum(int((np.diff(order) == 1).sum()) for order in orders) < 3 * len(SEEDS)  # one of 600 is expected
    ahead = tdr.IterableWrapper(range(NUM_SAMPLES)).shuffle_samples(buffer_size=NUM_SAMPLES // 4, seed=1)
    assert deviations([list(ahead)] * 8) > 10 * MAX_DEVIATIONS, "a shuffle of a window would not pass"


def test_another_seed_is_another_order_and_the_default_is_that_of_earlier_releases() -> None:
    orders = [tuple(written_order(NUMBERS, seed=seed)) for seed in (0, 1, -1, 2**70)]
    assert len(set(orders)) == len(orders)
    assert tuple(written_order(NUMBERS)) == orders[0]
    assert orders[0][:8] == (285, 27, 143, 507, 325, 141, 170, 208)


# Memory

MEASURED = r"""
import json, sys, threading
from pathlib import Path

from torchdata_remote import shard_dataset


def resident(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))


given = json.loads(sys.argv[1])
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
STATED_BYTES = (3 * 16 + 16) * MIB  # three windows of a quarter of a shard, and 16 MiB on their way out


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["files", "tar", "gz", "remote"])
def test_memory_is_a_few_windows_and_not_a_shard(tmp_path: Path, kind: str) -> None:
    """300 MB in shards of 64 MiB; over a network the first pass also has its buffer of 256 MiB."""
    chance, place = np.random.default_rng(0), Place(f"{tmp_path}/in/")
    files = {f"{index:06d}.bin": chance.bytes(100_000) for index in range(3_000)}
    data = tar_of(files)
    if kind == "files":
        source = place.put(files)
    else:
        ending = ".gz" * (kind == "gz")
        source = place.put({f"all.tar{ending}": gzip.compress(data, 1) if ending else data}) + f"all.tar{ending}"
    with scripted(lambda request: Response.of_object(request, data)) as server:
        given = {
            "source": f"{server.url}/all.tar" if kind == "remote" else source,
            "url_template": f"{tmp_path}/out/{{shard}}.tar",
            "max_shard_bytes": 64 * MIB,
        }
        done = subprocess.run(
            [sys.executable, "-c", MEASURED, json.dumps(given)],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin", "MALLOC_ARENA_MAX": "2"},
        )
    begun, peak = json.loads(done.stdout)
    assert peak - begun < 2 * STATED_BYTES + (256 * MIB if kind == "remote" else 0)
