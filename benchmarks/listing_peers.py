"""What lists a bucket in ``bench_listing.py``: each in a process of its own.

    python benchmarks/listing_peers.py ours s3://bucket/ < /dev/null

Prints the number of keys, CPU seconds, seconds, and bytes of memory, from the first request for a page to the last key.
A short listing comes first, so that no client is made while the clock runs; its requests are not counted. Keys are kept
in a list, as users do.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any


def ours(url: str) -> Callable[[], Iterable[Any]]:
    """The package on the import path: this one, or an earlier commit."""
    from torch.utils.data.datapipes.iter import IterableWrapper

    from torchdata_remote.pipes import ListRemote

    pipe = ListRemote(IterableWrapper([url]))
    return lambda: pipe


def by_obstore(url: str) -> Callable[[], Iterable[Any]]:
    import obstore
    from obstore.store import S3Store

    store = S3Store(url.split("/")[2], endpoint=os.environ["AWS_ENDPOINT_URL"])
    return lambda: (one for page in obstore.list(store, chunk_size=1_000) for one in page)


def by_s3fs(url: str) -> Callable[[], Iterable[Any]]:
    import s3fs

    filesystem = s3fs.S3FileSystem(endpoint_url=os.environ["AWS_ENDPOINT_URL"], use_listings_cache=False)
    return lambda: filesystem.find(url.removeprefix("s3://"), detail=True).values()


def by_boto3(url: str) -> Callable[[], Iterable[Any]]:
    import boto3  # type: ignore[import-untyped]

    client = boto3.client("s3")
    pages = client.get_paginator("list_objects_v2")
    return lambda: (one for page in pages.paginate(Bucket=url.split("/")[2]) for one in page["Contents"])


PEERS = {"ours": ours, "before": ours, "obstore": by_obstore, "s3fs": by_s3fs, "boto3": by_boto3}
WHOLE = {"s3fs"}  # lists everything before it returns something


def memory_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS:"))


def main() -> None:
    name, url = sys.argv[1:]
    make = PEERS[name](url)
    if name not in WHOLE:
        list(islice(make(), 5))
    else:
        make = PEERS[name](url)
    request = urllib.request.Request(f"{os.environ['AWS_ENDPOINT_URL']}/__requests", method="DELETE")
    urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10).close()
    gc.collect()
    idle_bytes, cpu_s, start_s = memory_bytes(), time.process_time(), time.perf_counter()
    found = list(make())
    answer = {
        "keys": len(found),
        "cpu_s": time.process_time() - cpu_s,
        "seconds": time.perf_counter() - start_s,
        "bytes": memory_bytes() - idle_bytes,
    }
    print("\n" + json.dumps(answer), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
