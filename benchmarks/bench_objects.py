"""How fast are loose objects of 94 kB read, by this package and by others, on a store that answers after 20 ms?

    python benchmarks/bench_objects.py [--quick] [--rounds 5] [--peers ours-32 s3fs-128 ...]

Single processes, no DataLoader workers. The latency is assumed and made by nginx (apt-get install nginx
libnginx-mod-http-lua); server and reader share the machine. Sides alternate by rounds, each in a process of its own.
Peers come from PyPI: pip install s3fs s3torchconnector torchdata 'litdata[extra]'. Slow ones read fewer objects.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from pathlib import Path

from measure import Job
from object_peers import PEERS
from report import Round, Side, Target, arguments, compare, faster, print_report
from slow_store import SlowStore, slow_store

LATENCY_S, OBJECT_BYTES, NUM_OBJECTS, QUICK_OBJECTS, BUCKET = 0.020, 94_000, 2_048, 256, "objects"
LITTLES_LAW_PER_S = 32 / LATENCY_S  # so many answers can 32 in flight get each second
SIDES = {  # name: peer, in flight, fraction of the objects
    "ours-32": ("ours", 32, 1),
    "ours-128": ("ours", 128, 1),
    "ours-512": ("ours", 512, 1),
    "s3fs-32": ("s3fs", 32, 1),
    "s3fs-128": ("s3fs", 128, 1),
    "s3fs-default": ("s3fs-default", 128, 2),
    "s3torchconnector": ("s3torchconnector", 1, 8),
    "s3torchconnector-32": ("s3torchconnector-threads", 32, 1),
    "s3torchconnector-128": ("s3torchconnector-threads", 128, 1),
    "torchdata": ("torchdata", 1, 16),
    "litdata-32": ("litdata", 32, 1),
    "litdata-128": ("litdata", 128, 1),
    "ceiling-32": ("ceiling", 32, 1),
    "ceiling-128": ("ceiling", 128, 1),
    "ceiling-512": ("ceiling", 512, 1),
    "ours-unlisted-128": ("ours-unlisted", 128, 1),
    "ours-braces-128": ("ours-braces", 128, 1),
    "ours-http-128": ("ours-http", 128, 1),
}
QUICK = ("ours-32", "ours-128", "ours-512", "s3fs-128", "s3torchconnector-32", "ceiling-32", "ceiling-128")


def of_littles_law(readings: Round) -> float | None:
    return readings["ours-32"].samples_per_s / LITTLES_LAW_PER_S if "ours-32" in readings else None


def cpu(ours: str, theirs: str) -> Callable[[Round], float | None]:
    """How many times as much processor time one side takes for an object as another one."""

    def value(readings: Round) -> float | None:
        if ours not in readings or theirs not in readings:
            return None
        one, other = readings[ours], readings[theirs]
        return (one.cpu_s / one.samples) / (other.cpu_s / other.samples)

    return value


TARGETS = (
    Target("ours, 32 in flight, of Little's law", of_littles_law, 0.85),
    *(
        target
        for number in (32, 128, 512)
        for target in (
            Target(
                f"ours, {number} in flight, against obstore in threads",
                faster(f"ours-{number}", f"ceiling-{number}"),
                0.85,
            ),
            Target("its processor time", cpu(f"ours-{number}", f"ceiling-{number}"), 1.5, at_most=True),
        )
    ),
    *(
        Target(f"ours, {shown}, against listed", faster(f"ours-{kind}-128", "ours-128"), 0.95)
        for kind, shown in (("unlisted", "no listing"), ("braces", "brace range"), ("http", "http"))
    ),
    Target("ours, 128 in flight, against s3fs at its best", faster("ours-128", "s3fs-32", "s3fs-128"), 7),
    Target("ours, 128 in flight, against s3fs as it comes", faster("ours-128", "s3fs-default")),
)


def write_objects(folder: Path, num_objects: int) -> list[str]:
    folder.mkdir()
    source, names = random.Random(0), [f"{i:06d}.jpg" for i in range(num_objects)]
    for name in names:
        (folder / name).write_bytes(source.randbytes(OBJECT_BYTES))
    return names


def side(name: str, names: list[str], store: SlowStore) -> Side:
    peer, in_flight, fraction = SIDES[name]
    some = names[: len(names) // fraction]
    sizes = [OBJECT_BYTES] * len(some)
    job = Job(store.endpoint_url, BUCKET, some, sizes, len(some), sum(sizes), in_flight)
    return Side(name, peer, job, samples=len(some), of_samples=len(names))


def main() -> None:
    args = arguments(str(__doc__).splitlines()[0], tuple(SIDES))
    num_objects = QUICK_OBJECTS if args.quick else NUM_OBJECTS
    with tempfile.TemporaryDirectory(prefix="bench-objects-") as folder:
        names = write_objects(Path(folder) / BUCKET, num_objects)
        with slow_store(Path(folder), latency_s=LATENCY_S) as store:
            sides = [side(name, names, store) for name in args.peers or (QUICK if args.quick else SIDES)]
            results = compare("object_peers", sides, store, args.rounds)
    title = f"{num_objects:,} objects of {OBJECT_BYTES:,} bytes, {LATENCY_S * 1000:.0f} ms to each answer, {args.shown}"
    print_report(title, PEERS, sides, results, TARGETS)


if __name__ == "__main__":
    main()
