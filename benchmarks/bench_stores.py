"""How fast are Google Cloud Storage, Azure, and S3 as companies have it, against gcsfs, adlfs, and plain S3?

    python benchmarks/bench_stores.py [--quick] [--rounds 5] [--peers ours-loose-128-gs gcsfs-cat ...]

Loose objects of 94 kB, and tar shards of 64 MiB, from one nginx that answers as each of the stores after 20 ms, over
connections of 60 MB/s (slow_store.py). Server, proxy and reader share the machine. Sides alternate by
rounds, each in a process of its own. Needs nginx with Lua and tinyproxy; peers: pip install -e '.[bench-stores]'. Slow
ones read fewer objects.

S3 as companies have it: TLS by a private CA, through an http proxy (CONNECT), each request with a key of SSE-C and
x-amz-request-payer. With few requests in flight the latency limits, with many the processors: TLS costs them twice on
this machine, in the server too, and the proxy copies each byte once more.
"""

from __future__ import annotations

import base64
import random
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from connect_proxy import connect_proxy, has_proxy
from measure import MIB, Job
from report import Side, Target, arguments, compare, faster, print_report
from slow_store import SlowStore, slow_store
from store_peers import PART_BYTES, PEERS

import torchdata_remote as tdr

LATENCY_S, CONNECTION_BYTES_PER_S, OBJECT_BYTES = 0.020, 60_000_000, 94_000
NUM_OBJECTS, NUM_SHARDS, SHARD_SAMPLES = 2_048, 12, 700
QUICK_OBJECTS, QUICK_SHARDS, QUICK_SHARD_SAMPLES = 128, 2, 60
LOOSE, SHARDS = "loose", "shards"
FEW, MANY = ((LOOSE, 8), (SHARDS, 4)), ((LOOSE, 128), (SHARDS, 16))  # in flight
STORES, COMPANIES = ("s3", "gs", "az"), ("tls", "proxy", "headers", "company")
SIDES = {  # name: peer, bucket, store, in flight, fraction of the objects
    **{f"ours-loose-128-{store}": (f"ours-loose-{store}", LOOSE, store, 128, 1) for store in STORES},
    **{f"ours-shards-16-{store}": (f"ours-shards-{store}", SHARDS, store, 16, 1) for store in STORES},
    **{
        f"{name}-{peer}": (f"{name}-{peer}", bucket, store, in_flight, fraction)
        for name, store in (("gcsfs", "gs"), ("adlfs", "az"))
        for peer, bucket, in_flight, fraction in (
            ("cat", LOOSE, 128, 2),
            ("gather", LOOSE, 64, 2),
            ("ranges", SHARDS, 16, 2),
            ("through-loose", LOOSE, 128, 2),
            ("through-shards", SHARDS, 16, 2),
        )
    },
    **{f"{name}-open": (f"{name}-open", LOOSE, store, 1, 8) for name, store in (("gcsfs", "gs"), ("adlfs", "az"))},
    **{
        f"ours-{bucket}-{in_flight}-{store}": (f"ours-{bucket}-{store}", bucket, store, in_flight, 1)
        for bucket, in_flight in (*FEW, *MANY)
        for store in ("s3", *COMPANIES)
    },
}
QUICK = (
    *(f"ours-{what}-{store}" for what in ("loose-128", "shards-16") for store in STORES),
    *("gcsfs-gather", "adlfs-gather", "gcsfs-ranges", "adlfs-ranges", "ours-loose-8-s3", "ours-loose-8-company"),
)


def targets() -> tuple[Target, ...]:
    found = []
    for store, peer in (("gs", "gcsfs"), ("az", "adlfs")):
        for what, in_flight in ((LOOSE, 128), (SHARDS, 16)):
            same = faster(f"ours-{what}-{in_flight}-{store}", f"{peer}-through-{what}")
            found.append(Target(f"{what}, {store}, against the same through {peer}", same, 5))
        best = faster(f"ours-loose-128-{store}", f"{peer}-cat", f"{peer}-gather")
        found += [
            Target(f"loose objects, {store}, against {peer} at its best", best, None),
            Target(
                f"loose objects, {store}, against {peer}'s open",
                faster(f"ours-loose-128-{store}", f"{peer}-open"),
                None,
            ),
            Target(
                f"shards, {store}, against {peer} at its best",
                faster(f"ours-shards-16-{store}", f"{peer}-ranges"),
                None,
            ),
            Target(f"loose objects, {store}, against s3", faster(f"ours-loose-128-{store}", "ours-loose-128-s3"), 0.9),
            Target(f"shards, {store}, against s3", faster(f"ours-shards-16-{store}", "ours-shards-16-s3"), 0.9),
        ]
    shown = {
        "company": "CA, proxy, SSE-C and requester pays",
        "tls": "CA alone",
        "proxy": "proxy alone",
        "headers": "SSE-C and requester pays alone",
    }
    for bucket, in_flight, limit in (*((*one, "latency") for one in FEW), *((*one, "processors") for one in MANY)):
        for store, options in shown.items():
            value = faster(f"ours-{bucket}-{in_flight}-{store}", f"ours-{bucket}-{in_flight}-s3")
            name = f"s3 with {options}, against plain: {bucket}, {in_flight} in flight, which {limit} limit"
            found.append(Target(name, value, 0.9 if store == "company" and limit == "latency" else None))
    return tuple(found)


def write(folder: Path, *, num_objects: int, num_shards: int, shard_samples: int) -> dict[str, list[tuple[str, int]]]:
    """Write objects and shards; returns name and bytes of each."""
    (folder / LOOSE).mkdir()
    source, names = random.Random(0), [f"{i:06d}.jpg" for i in range(num_objects)]
    for name in names:
        (folder / LOOSE / name).write_bytes(source.randbytes(OBJECT_BYTES))
    with tdr.ShardWriter(f"{folder}/{SHARDS}/{{shard:06d}}.tar", max_shard_samples=shard_samples) as writer:
        for i in range(num_shards * shard_samples):
            writer.write({"__key__": f"{i:06d}", "jpg": source.randbytes(OBJECT_BYTES)})
    shards = [(shard.url.rpartition("/")[2], shard.num_bytes) for shard in writer.shards]
    return {LOOSE: [(name, OBJECT_BYTES) for name in names], SHARDS: shards}


def company_options(store: str, server: SlowStore, ca: Path, proxy: str) -> dict[str, Any]:
    """Options of S3 behind a private CA, a proxy, and a bucket with a key and a payer; or with one of them."""
    is_all = store == "company"
    options: dict[str, Any] = {"endpoint_url": server.endpoint_url}
    if is_all or store == "tls":
        options |= {"endpoint_url": server.https_url, "client_kwargs": {"verify": str(ca)}}
    if is_all or store == "proxy":
        options["config_kwargs"] = {"proxies": {"http": proxy, "https": proxy}}
    if is_all or store == "headers":
        key = base64.b64encode(bytes(range(32))).decode()
        options |= {
            "requester_pays": True,
            "s3_additional_kwargs": {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": key},
        }
    return options


def side(
    name: str, written: dict[str, list[tuple[str, int]]], shard_samples: int, server: SlowStore, ca: Path, proxy: str
) -> Side:
    peer, bucket, store, in_flight, fraction = SIDES[name]
    objects = written[bucket][: max(1, len(written[bucket]) // fraction)]
    names, sizes = [name for name, _ in objects], [size for _, size in objects]
    samples, of_samples = len(objects), len(written[bucket])
    expected = samples, sum(sizes)
    if bucket == SHARDS:
        samples, of_samples = samples * shard_samples, of_samples * shard_samples
        if peer.startswith("ours") or "through" in peer:
            expected = samples, samples * OBJECT_BYTES
        elif peer.endswith("ranges"):
            expected = sum(-(-size // PART_BYTES) for size in sizes), sum(sizes)
    scheme = store if store in STORES else "s3"
    options: dict[str, Any] = {"gs": server.gs_options, "az": server.az_options}.get(store, {})
    needs_proxy = store in ("proxy", "company")
    if store in COMPANIES:
        options = company_options(store, server, ca, proxy)
    missing = "squid is not here: apt-get install squid" if needs_proxy and not proxy else ""
    job = Job(server.endpoint_url, bucket, names, sizes, *expected, in_flight, scheme, options, missing)
    return Side(name, peer, job, samples=samples, of_samples=of_samples)


def certificates(folder: Path) -> tuple[Path, Path]:
    """Write a CA, and the key and the certificate of 127.0.0.1 that it signed."""
    import trustme

    authority, ca, server = trustme.CA(), folder / "ca.pem", folder / "server.pem"
    authority.cert_pem.write_to_path(ca)
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(server)
    return ca, server


def main() -> None:
    args = arguments(str(__doc__).splitlines()[0], tuple(SIDES))
    num_objects, num_shards, shard_samples = NUM_OBJECTS, NUM_SHARDS, SHARD_SAMPLES
    if args.quick:
        num_objects, num_shards, shard_samples = QUICK_OBJECTS, QUICK_SHARDS, QUICK_SHARD_SAMPLES
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-stores-")))
        secrets = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-stores-ca-")))
        written = write(folder, num_objects=num_objects, num_shards=num_shards, shard_samples=shard_samples)
        ca, certificate = certificates(secrets)
        server = stack.enter_context(
            slow_store(
                folder,
                latency_s=LATENCY_S,
                connection_bytes_per_s=CONNECTION_BYTES_PER_S,
                certificate=certificate,
            )
        )
        proxy = stack.enter_context(connect_proxy()) if has_proxy() else ""
        names = args.peers or (QUICK if args.quick else SIDES)
        sides = [side(name, written, shard_samples, server, ca, proxy) for name in names]
        results = compare("store_peers", sides, server, args.rounds)
    title = (
        f"{num_objects:,} objects of {OBJECT_BYTES:,} bytes, {num_shards} shards of "
        f"{written[SHARDS][0][1] / MIB:.0f} MiB, {LATENCY_S * 1000:.0f} ms to each answer, "
        f"{CONNECTION_BYTES_PER_S / 1e6:.0f} MB/s a connection, {args.shown}"
    )
    print_report(title, PEERS, sides, results, targets())


if __name__ == "__main__":
    main()
