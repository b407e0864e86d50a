"""How much is read correctly from a store with many faults, and how fast, by this package and by other clients?

    python benchmarks/bench_storm.py [--rounds 3] [--passes 3] [--peers ours obstore ...]

Three times (``--passes``) 40 shards of 50 samples, 16 reads at once, from nginx (apt-get install nginx
libnginx-mod-http-lua) through ``torchdata_remote.testing.FaultyStore``. Every client retries as it does by default. A
sample counts if all its bytes are right. Peers are on PyPI: pip install s3fs s3torchconnector.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

from slow_store import slow_store

import torchdata_remote as tdr
from torchdata_remote.testing import Faults, FaultyStore

NUM_SHARDS, SHARD_SAMPLES, SAMPLE_BYTES = 40, 50, 20_000
IN_FLIGHT, LATENCY_S, LIMIT_S = 16, 0.001, 60
REGION, BUCKET = "us-east-1", "shards"
NAMES = [f"{number:06d}.tar" for number in range(NUM_SHARDS)]
STORMS = {
    "20 % {503, 500, reset, early end}": Faults.storm(0.2),
    "50 % {503, 500, reset, early end}": Faults.storm(0.5),
    "5 % cut without Content-Length": Faults(cut_without_length=0.05),
    "5 % reset in the body": Faults(reset_in_body=0.05),
}


def in_threads(read: Callable[[str], bytes]) -> Iterator[tuple[str, bytes | Exception]]:
    def attempt(name: str) -> tuple[str, bytes | Exception]:
        try:
            return name, read(name)
        except Exception as error:  # noqa: BLE001  # what a client raises is what is counted
            return name, error

    with ThreadPoolExecutor(IN_FLIGHT) as threads:
        yield from threads.map(attempt, NAMES)


def ours(endpoint_url: str) -> Iterator[tuple[str, bytes | Exception]]:
    from torch.utils.data.datapipes.iter import IterableWrapper

    options = {"endpoint_url": endpoint_url, "key": "k", "secret": "s"}
    urls = IterableWrapper([f"s3://{BUCKET}/{name}" for name in NAMES])
    for url, stream in urls.async_prefetch(max_in_flight=IN_FLIGHT, storage_options=options):
        try:
            yield url.rpartition("/")[2], stream.read()
        except OSError as error:  # noqa: PERF203
            yield url, error


def obstore_alone(endpoint_url: str) -> Iterator[tuple[str, bytes | Exception]]:
    import obstore
    from obstore.store import S3Store

    store = S3Store(
        BUCKET,
        endpoint=endpoint_url,
        region=REGION,
        access_key_id="k",
        secret_access_key="s",
        client_options={"allow_http": True},
    )
    return in_threads(lambda name: bytes(obstore.get(store, name).bytes()))


def s3torchconnector(endpoint_url: str) -> Iterator[tuple[str, bytes | Exception]]:
    from s3torchconnector import S3ClientConfig, S3MapDataset

    config = S3ClientConfig(force_path_style=True)
    urls = [f"s3://{BUCKET}/{name}" for name in NAMES]
    dataset = S3MapDataset.from_objects(urls, region=REGION, endpoint=endpoint_url, s3client_config=config)
    return in_threads(lambda name: bytes(dataset[NAMES.index(name)].read()))


def s3fs_open(endpoint_url: str) -> Iterator[tuple[str, bytes | Exception]]:
    import s3fs

    files = s3fs.S3FileSystem(endpoint_url=endpoint_url, key="k", secret="s")

    def read(name: str) -> bytes:
        with files.open(f"{BUCKET}/{name}", "rb") as file:
            data: bytes = file.read()
            return data

    return in_threads(read)


def s3fs_cat(endpoint_url: str) -> Iterator[tuple[str, bytes | Exception]]:
    import s3fs

    files = s3fs.S3FileSystem(endpoint_url=endpoint_url, key="k", secret="s")
    found: dict[str, Any] = files.cat([f"{BUCKET}/{name}" for name in NAMES], on_error="return")
    for path, data in found.items():
        yield path.rpartition("/")[2], data


PEERS: dict[str, tuple[str, Callable[[str], Iterator[tuple[str, bytes | Exception]]], tuple[str, ...]]] = {
    "ours": ("torchdata_remote", ours, ("torch.utils.data.datapipes.iter", "obstore.store", "botocore.session")),
    "obstore": ("obstore", obstore_alone, ("obstore.store",)),
    "s3torchconnector": ("s3torchconnector S3MapDataset", s3torchconnector, ("s3torchconnector",)),
    "s3fs-open": ("s3fs open", s3fs_open, ("s3fs",)),
    "s3fs-cat": ("s3fs cat", s3fs_cat, ("s3fs",)),
}


def member(index: int) -> bytes:
    return hashlib.shake_128(b"%d" % index).digest(SAMPLE_BYTES)


def samples_of(data: bytes) -> Iterator[tuple[str, bytes]]:
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            for info in archive:
                file = archive.extractfile(info)
                yield info.name, b"" if file is None else file.read()
    except tarfile.TarError:
        return


def run(peer: str, endpoint_url: str, num_passes: int) -> None:
    """In a process of its own: read all, count what is right."""
    _, read, modules = PEERS[peer]
    for module in modules:
        import_module(module)
    start = time.perf_counter()
    results = [result for _ in range(num_passes) for result in read(endpoint_url)]
    seconds = time.perf_counter() - start
    right = raised = 0
    for _, data in results:
        if isinstance(data, bytes):
            right += sum(member(int(name[:6])) == content for name, content in samples_of(data))
        else:
            raised += 1
    print("\n" + json.dumps({"seconds": seconds, "right": right, "raised": raised}), flush=True)
    os._exit(0)


def measured(peer: str, behind: str, faults: Faults, seed: int, num_passes: int) -> dict[str, Any] | None:
    """The figures that a peer's process prints; ``None`` if it does not end in time."""
    with FaultyStore(behind, faults, seed=seed) as store:
        environment = {**os.environ, "AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "no_proxy": "127.0.0.1"}
        command = [sys.executable, __file__, "--passes", str(num_passes), "--run", peer, store.endpoint_url]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=environment, check=True)
        except subprocess.TimeoutExpired:
            return None
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return answer


def shown(readings: list[dict[str, Any] | None], num_passes: int) -> str:
    ended = [reading for reading in readings if reading is not None]
    if not ended:
        return f"not one of {len(readings)} ended within {LIMIT_S} s"
    seconds = [reading["seconds"] for reading in ended]
    right, raised = min(reading["right"] for reading in ended), max(reading["raised"] for reading in ended)
    hung = f", {len(readings) - len(ended)} of {len(readings)} did not end" if len(ended) < len(readings) else ""
    return (
        f"{median(seconds):6.1f} s ({min(seconds):.1f} to {max(seconds):.1f})  "
        f"{right:,} of {num_passes * NUM_SHARDS * SHARD_SAMPLES:,} samples right, {raised} shards raised{hung}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        peer, endpoint_url = args.run
        run(peer, endpoint_url, args.passes)
    with tempfile.TemporaryDirectory(prefix="bench-storm-") as folder:
        with tdr.ShardWriter(f"{folder}/{BUCKET}/{{shard:06d}}.tar", max_shard_samples=SHARD_SAMPLES) as writer:
            for index in range(NUM_SHARDS * SHARD_SAMPLES):
                writer.write({"__key__": f"{index:06d}", "bin": member(index)})
        with slow_store(Path(folder), latency_s=LATENCY_S) as behind:
            for storm, faults in STORMS.items():
                print(f"\n{storm}; least samples right and most shards raised of {args.rounds} rounds")
                rounds = [
                    {peer: measured(peer, behind.endpoint_url, faults, seed, args.passes) for peer in args.peers}
                    for seed in range(args.rounds)
                ]
                for peer in args.peers:
                    print(
                        f"{PEERS[peer][0]:30s} {shown([readings[peer] for readings in rounds], args.passes)}",
                        flush=True,
                    )
                ratios = [
                    here["seconds"] / there["seconds"]
                    for readings in rounds
                    if (here := readings.get("ours")) and (there := readings.get("obstore"))
                ]
                if ratios:
                    print(f"time, ours of obstore's: {median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
