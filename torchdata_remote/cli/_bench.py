"""``torchdata-remote bench``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Generator
from dataclasses import replace
from inspect import signature
from typing import Any

from ..core.options import RetryPolicy, StorageOptions
from ..core.recording import Stats, stats
from ..core.stats import watched
from ..core.urls import redact
from ..errors import RemoteDataError
from ..fetch.listing.shard_set import base_name
from ..fetch.listing.sources import list_source
from ..formats.manifest import MANIFEST_NAME
from ..formats.nested import is_archive_name
from ..formats.sample import Sample
from ..inspection import Trace, draw_timeline, require_plot, save_plot, shortened, verdict
from ..pipes import stream_files, stream_shards
from ._bench_reader import FIRST_SAMPLE_S, Reader
from ._shared import Commands, add_command, add_storage_options, count, positive_seconds, print_line, printable

_MAX_LISTED = 1_000  # URLs, to find out whether there are shards


def add(commands: Commands) -> None:
    """Add this command's parser."""
    parser = add_command(
        commands,
        "bench",
        _run,
        description="read a dataset for some seconds and report where the time is spent: shards or loose files, in "
        "one process, as stream_shards() and stream_files() read them. The last line names the stage with "
        "the longest waits, and what to change.",
        example="bench s3://bucket/train/ --seconds 10 --plot bench.png",
    )
    parser.add_argument("url", help="folder of shards or of files, manifest, glob, or one shard")
    parser.add_argument(
        "--seconds",
        type=positive_seconds,
        default=10.0,
        metavar="S",
        help="how long; the first sample is waited for longer, at most "
        f"{FIRST_SAMPLE_S:g} s. After the time, or Ctrl-C, what was read so far is reported (default: %(default)g)",
    )
    parser.add_argument(
        "--max-in-flight",
        type=count,
        metavar="N",
        help="requests at once (default: "
        f"{_default_in_flight(stream_shards)} for shards, {_default_in_flight(stream_files)} for files)",
    )
    parser.add_argument("--no-decode", action="store_true", help="leave members as bytes")
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one line of JSON: the counters of each stage, url, num_samples, complete, "
        "bottleneck, verdict, and percentiles as request_ms",
    )
    parser.add_argument(
        "--plot",
        metavar="FILE",
        help="draw requests, waits and throughput over time, and the durations of requests; the extension is the "
        "format, such as .png",
    )
    add_storage_options(parser)


def _run(args: argparse.Namespace) -> int:
    if args.plot:
        require_plot(args.plot)
    chain, max_in_flight = _chain(args)  # lists the URL, which is not measured
    trace, before = Trace(), stats()
    with watched(trace.take, consumer=bool(args.plot)):
        reader = Reader(chain, trace, args.seconds)
        interrupted = reader.run()
        spent = replace(stats() - before, elapsed_s=reader.elapsed_s())
        waiting_s = trace.take_open_waits()
    num_samples, ended = len(trace.samples_s), reader.ended
    if ended and not num_samples:
        raise RemoteDataError(f"{printable(args.url)}: no samples found.")
    result = verdict(spent, max_in_flight=max_in_flight, waiting_s=waiting_s)
    total = f"{num_samples:,} samples in {spent.elapsed_s:.2f} s" + (", the whole dataset" if ended else "")
    rates = f"{num_samples / spent.elapsed_s:,.0f}/s, {spent.fetch.num_bytes / spent.elapsed_s / 1e6:,.1f} MB/s"
    if args.json:
        print_line(json.dumps(_document(args, trace, spent, result, complete=ended)))
    else:
        print_line(f"{total}: {rates}")
        print_line(str(spent))
        print_line(_durations(trace))
        print_line(result)
    if args.plot:
        subtitle = f"{shortened(printable(redact(args.url)), 60)}: {total}, {rates}"
        figure = draw_timeline(trace, spent, title=result, subtitle=subtitle, max_in_flight=max_in_flight)
        save_plot(figure, args.plot)
    if interrupted:
        raise KeyboardInterrupt
    if not num_samples:
        raise RemoteDataError(f"{printable(args.url)}: no sample arrived in {spent.elapsed_s:.1f} s.")
    return 0


def _document(args: argparse.Namespace, trace: Trace, spent: Stats, result: str, *, complete: bool) -> dict[str, Any]:
    percentiles = trace.percentiles()
    return {
        "url": redact(args.url),
        "num_samples": len(trace.samples_s),
        "complete": complete,
        "bottleneck": spent.bottleneck,
        "verdict": result,
        "request_ms": None if percentiles is None else percentiles._asdict(),
        **json.loads(spent.as_json()),
    }


def _chain(args: argparse.Namespace) -> tuple[Generator[Sample, None, None], int]:
    """The samples, and how many requests may run at once."""
    stream: Any = stream_shards if has_shards(args.url, args.storage_options) else stream_files
    max_in_flight = args.max_in_flight or _default_in_flight(stream)
    samples = stream(args.url, shuffle=False, storage_options=args.storage_options, max_in_flight=max_in_flight)
    return iter(samples if args.no_decode else samples.decode_sample()), max_in_flight


def _default_in_flight(stream: Callable[..., Any]) -> Any:
    return signature(stream).parameters["max_in_flight"].default


def _is_one(url: str) -> bool:
    return is_archive_name(url) or base_name(url) == MANIFEST_NAME


def has_shards(url: str, storage_options: dict[str, Any]) -> bool:
    """Return whether there are shards among the first objects that a URL names."""
    if _is_one(url):
        return True
    listed = list_source(
        url, pattern=None, recursive=True, options=StorageOptions(storage_options), retry=RetryPolicy()
    )
    return any(base_name(url).endswith(".tar") for url, _ in zip(listed, range(_MAX_LISTED), strict=False))


def _durations(trace: Trace) -> str:
    found = trace.percentiles()
    if found is None:
        return "no requests"
    values = ", ".join(f"{name} {value:,.1f} ms" for name, value in found._asdict().items())
    return f"{len(trace.requests):,} requests: {values}"
