"""``torchdata-remote bench``."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from statistics import quantiles

from ..core.options import RetryPolicy, StorageOptions
from ..core.stats.counters import FETCH, Span, watched
from ..core.stats.report import stats
from ..errors import RemoteDataError
from ..fetch.listing.shard_set import base_name
from ..fetch.listing.sources import list_source
from ..formats.manifest import MANIFEST_NAME
from ..formats.nested import is_archive_name
from ..formats.sample import Sample
from ..inspection import draw_timeline
from ..pipes import stream_files, stream_shards
from ._shared import Commands, add_command, add_storage_options, count, print_line, printable

_MAX_LISTED = 1_000  # URLs, to find out whether there are shards
_MEANINGS = {
    "list": "listing: keep an index of the files, or pack them into shards",
    "fetch": "the store and the network: more requests in flight, larger objects, or a cache",
    "read": "parsing shards: more workers, or larger samples",
    "decode": "decoding: more workers, smaller images, or decoders.rgb(min_size=...)",
    "rest": "the consumer, which only counts here: samples arrive faster than they are counted",
}


def add(commands: Commands) -> None:
    """Add this command's parser."""
    parser = add_command(
        commands,
        "bench",
        _run,
        description="read a dataset for some seconds and report where the time is spent: shards or loose files, in "
        "one process, as stream_shards() and stream_files() read them. The stage with the longest waits "
        "is the bottleneck.",
        example="bench s3://bucket/train/ --seconds 10 --plot bench.png",
    )
    parser.add_argument("url", help="folder of shards or of files, manifest, glob, or one shard")
    parser.add_argument("--seconds", type=_seconds, default=10.0, metavar="S", help="how long (default: %(default)g)")
    parser.add_argument(
        "--max-in-flight", type=count, metavar="N", help="requests at once (default: 16 for shards, 32 for files)"
    )
    parser.add_argument("--no-decode", action="store_true", help="leave members as bytes")
    parser.add_argument("--json", action="store_true", help="print one line of JSON instead of a table")
    parser.add_argument(
        "--plot", metavar="FILE", help="draw requests and decoding over time, and request durations, as PNG"
    )
    add_storage_options(parser)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number of seconds, got {text!r}")
    return seconds


def _run(args: argparse.Namespace) -> int:
    spans: list[Span] = []
    chain = _chain(args)  # lists the URL, which is not measured
    before, began_s = stats(), time.perf_counter()
    num_samples, ended = 0, True
    with watched(spans.append):
        for _ in chain:
            num_samples += 1  # used after the loop
            if time.perf_counter() - began_s >= args.seconds:
                ended = False
                break
        spent = stats() - before
    if not num_samples:
        raise RemoteDataError(f"{printable(args.url)}: no samples found.")
    if args.json:
        print_line(spent.as_json())
    else:
        total = f"{num_samples:,} samples in {spent.elapsed_s:.2f} s" + (", the whole dataset" if ended else "")
        megabytes_per_s = spent.fetch.num_bytes / spent.elapsed_s / 1e6
        print_line(f"{total}: {num_samples / spent.elapsed_s:,.0f}/s, {megabytes_per_s:,.1f} MB/s")
        print_line(str(spent))
        print_line(f"longest waits: {spent.bottleneck} ({_MEANINGS[spent.bottleneck]})")
        print_line(_latencies(spans))
    if args.plot:
        try:
            draw_timeline(spans, args.plot, title=printable(args.url))
        except (OSError, ValueError) as error:
            raise RemoteDataError(f"{printable(args.plot)}: {error}") from error
    return 0


def _chain(args: argparse.Namespace) -> Iterator[Sample]:
    limits = {} if args.max_in_flight is None else {"max_in_flight": args.max_in_flight}
    if _has_shards(args):
        samples = stream_shards(args.url, seed=None, storage_options=args.storage_options, **limits)
    else:
        samples = stream_files(args.url, seed=None, storage_options=args.storage_options, **limits)
    return iter(samples if args.no_decode else samples.decode_sample())


def _is_one(url: str) -> bool:
    return is_archive_name(url) or base_name(url) == MANIFEST_NAME


def _has_shards(args: argparse.Namespace) -> bool:
    """Return whether there are shards among the first objects."""
    if _is_one(args.url):
        return True
    listed = list_source(
        args.url, pattern=None, recursive=True, options=StorageOptions(args.storage_options), retry=RetryPolicy()
    )
    return any(base_name(url).endswith(".tar") for url, _ in zip(listed, range(_MAX_LISTED), strict=False))


def _latencies(spans: list[Span]) -> str:
    took_ms = sorted(1e3 * (span.end_s - span.start_s) for span in spans if span.stage == FETCH.name)
    if len(took_ms) < 2:
        return f"requests: {len(took_ms)}"
    cuts = quantiles(took_ms, n=100, method="inclusive")
    return f"requests: median {cuts[49]:.1f} ms, 95 % within {cuts[94]:.1f} ms, slowest {took_ms[-1]:.1f} ms"
