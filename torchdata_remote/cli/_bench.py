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
from ..inspection.timeline import draw_timeline
from ..pipes.compose.recipes import stream_files, stream_shards
from ._shared import Commands, add_command, add_storage_options, count, printable, say

_LOOK_AT = 1_000  # URLs at the most, to see whether there are shards
_MEANINGS = {
    "list": "listing: keep an index of the files, or pack them into shards",
    "fetch": "the store and the network: more requests in flight, larger objects, or a cache",
    "read": "taking shards apart: more workers, or samples that are larger",
    "decode": "decoding: more workers, smaller images, or decoders.rgb(min_size=...)",
    "rest": "whoever takes the samples, which here is nobody: data come faster than they are counted",
}


def add(commands: Commands) -> None:
    """Tell the command line of this command."""
    parser = add_command(
        commands,
        "bench",
        _run,
        does="read a data set for some seconds, and tell where the time goes: shards or loose files, in one process, "
        "as stream_shards() and stream_files() read them. What is waited for longest is the bottleneck.",
        example="bench s3://bucket/train/ --seconds 10 --plot bench.png",
    )
    parser.add_argument("url", help="folder of shards or of files, manifest, glob, or one shard")
    parser.add_argument("--seconds", type=_seconds, default=10.0, metavar="S", help="how long (default: %(default)g)")
    parser.add_argument(
        "--max-in-flight", type=count, metavar="N", help="requests at once (default: 16 for shards, 32 for files)"
    )
    parser.add_argument("--no-decode", action="store_true", help="hand on bytes as they are")
    parser.add_argument("--json", action="store_true", help="print one line of JSON instead of a table")
    parser.add_argument(
        "--plot", metavar="FILE", help="draw requests and decoding over time, and how long requests took, as PNG"
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


def _run(chosen: argparse.Namespace) -> int:
    spans: list[Span] = []
    chain = _chain(chosen)  # for which it is looked what lies there
    before, began_s = stats(), time.perf_counter()
    num_samples, ended = 0, True
    with watched(spans.append):
        for _ in chain:
            num_samples += 1  # wanted behind the loop
            if time.perf_counter() - began_s >= chosen.seconds:
                ended = False
                break
        did = stats() - before
    if not num_samples:
        raise RemoteDataError(f"{printable(chosen.url)}: there are no samples.")
    if chosen.json:
        say(did.as_json())
    else:
        took = f"{num_samples:,} samples in {did.elapsed_s:.2f} s" + (", which are all" if ended else "")
        say(f"{took}: {num_samples / did.elapsed_s:,.0f}/s, {did.fetch.num_bytes / did.elapsed_s / 1e6:,.1f} MB/s")
        say(str(did))
        say(f"waited for longest: {did.bottleneck} ({_MEANINGS[did.bottleneck]})")
        say(_latencies(spans))
    if chosen.plot:
        try:
            draw_timeline(spans, chosen.plot, title=printable(chosen.url))
        except (OSError, ValueError) as error:
            raise RemoteDataError(f"{printable(chosen.plot)}: {error}") from error
    return 0


def _chain(chosen: argparse.Namespace) -> Iterator[Sample]:
    limits = {} if chosen.max_in_flight is None else {"max_in_flight": chosen.max_in_flight}
    if _has_shards(chosen):
        samples = stream_shards(chosen.url, seed=None, storage_options=chosen.storage_options, **limits)
    else:
        samples = stream_files(chosen.url, seed=None, storage_options=chosen.storage_options, **limits)
    return iter(samples if chosen.no_decode else samples.decode_sample())


def _is_one(url: str) -> bool:
    return is_archive_name(url) or base_name(url) == MANIFEST_NAME


def _has_shards(chosen: argparse.Namespace) -> bool:
    """Whether there are shards among the first objects."""
    if _is_one(chosen.url):
        return True
    listed = list_source(
        chosen.url, pattern=None, recursive=True, options=StorageOptions(chosen.storage_options), retry=RetryPolicy()
    )
    return any(base_name(url).endswith(".tar") for url, _ in zip(listed, range(_LOOK_AT), strict=False))


def _latencies(spans: list[Span]) -> str:
    took_ms = sorted(1e3 * (span.end_s - span.start_s) for span in spans if span.stage == FETCH.name)
    if len(took_ms) < 2:
        return f"requests: {len(took_ms)}"
    cuts = quantiles(took_ms, n=100, method="inclusive")
    return f"requests: median {cuts[49]:.1f} ms, 95 % within {cuts[94]:.1f} ms, slowest {took_ms[-1]:.1f} ms"
