"""Commands about speed and cost: ``bench`` and ``cost``."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from contextvars import copy_context
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Literal

from ..core.options import FetchOptions, RetryPolicy, StorageOptions
from ..core.urls import redact
from ..errors import RemoteDataError
from .shared import AsJson, Count, CountOrNone, Json, Price, Seconds, aligned, list_objects, print_line, printable

if TYPE_CHECKING:
    from ..core.urls import RemoteUrl
    from ..inspection.trace import Trace

_MAX_LISTED = 1_000  # URLs, to find out whether there are shards
_FIRST_SAMPLE_S = 10.0  # that the first sample is waited for, if the time to read is shorter
_CLOSE_S = 0.5  # until the last samples are counted
_MAX_REQUESTS = 16
# As stream_shards and stream_files have them, without importing them
_IN_FLIGHT = {"shards": 16, "files": 64}
_INTERLEAVE = 16


def bench(
    url: str,
    *,
    seconds: Seconds = 10.0,
    max_in_flight: Count | None = None,
    no_decode: bool = False,
    as_json: AsJson = False,
    plot: str | None = None,
    storage_options: Json = None,
) -> None:
    """Read a dataset for some seconds and report where the time is spent.

    Shards or loose files are read in one process, as stream_shards() and stream_files() read them. The last line names
    the stage with the longest waits, and what to change. After the time, or Ctrl-C, what was read so far is reported.

    example: torchdata-remote bench s3://bucket/train/ --seconds 10 --plot bench.png

    Args:
        url: folder of shards or of files, manifest, glob, or one shard
        seconds: how long; the first sample is waited for longer, at most 10 s
        max_in_flight: requests at once; by default 16 for shards, 64 for files
        no_decode: leave members as bytes
        as_json: print one line of JSON: the counters of each stage, url, num_samples, complete, bottleneck, verdict,
            and percentiles as request_ms
        plot: picture to write, of requests, waits and throughput over time, and of the durations of requests; the
            extension is the format, such as .png
        storage_options: JSON for the store, in fsspec's vocabulary, such as {"endpoint_url": "http://host:9000"}
    """
    from dataclasses import replace

    from .. import stream_files, stream_shards
    from ..core.recording import stats
    from ..core.stats import watched
    from ..inspection.plots import draw_timeline, require_plot, save_plot, shortened
    from ..inspection.trace import Trace, verdict

    if plot is not None:
        require_plot(plot)
    kind = "shards" if _has_shards(url, storage_options) else "files"
    stream: Any = stream_shards if kind == "shards" else stream_files
    in_flight = max_in_flight or _IN_FLIGHT[kind]
    samples = stream(url, shuffle=False, storage_options=storage_options, max_in_flight=in_flight)
    chain = iter(samples if no_decode else samples.decode_sample())  # lists the URL, which is not measured
    trace, before = Trace(), stats()
    with watched(trace.take, consumer=plot is not None):
        reader = _Reader(chain, trace, seconds)
        interrupted = reader.run()
        spent = replace(stats() - before, elapsed_s=reader.elapsed_s)
        waiting_s = trace.take_open_waits()
    num_samples, shown = len(trace.samples_s), printable(redact(url))
    if reader.ended and not num_samples:
        raise RemoteDataError(f"{shown}: no samples found.")
    result = verdict(spent, max_in_flight=in_flight, waiting_s=waiting_s)
    percentiles = trace.percentiles()
    total = f"{num_samples:,} samples in {spent.elapsed_s:.2f} s" + (", the whole dataset" if reader.ended else "")
    rates = f"{num_samples / spent.elapsed_s:,.0f}/s, {spent.fetch.num_bytes / spent.elapsed_s / 1e6:,.1f} MB/s"
    if as_json:
        document = {
            "url": redact(url),
            "num_samples": num_samples,
            "complete": reader.ended,
            "bottleneck": spent.bottleneck,
            "verdict": result,
            "request_ms": percentiles,
            **spent.as_dict(),
        }
        print_line(json.dumps(document))
    else:
        print_line(f"{total}: {rates}")
        print_line(str(spent))
        durations = ", ".join(f"{name} {value:,.1f} ms" for name, value in percentiles.items())
        print_line(f"{len(trace.requests):,} requests: {durations}" if percentiles else "no requests")
        print_line(result)
    if plot is not None:
        subtitle = f"{shortened(shown, 60)}: {total}, {rates}"
        save_plot(draw_timeline(trace, spent, title=result, subtitle=subtitle, max_in_flight=in_flight), plot)
    if interrupted:
        raise KeyboardInterrupt
    if not num_samples:
        raise RemoteDataError(f"{shown}: no sample arrived in {spent.elapsed_s:.1f} s.")


def _has_shards(url: str, storage_options: dict[str, Any] | None) -> bool:
    """Return whether there are shards among the first objects that a URL names."""
    from ..fetch.listing.shard_set import base_name
    from ..formats.manifest import MANIFEST_NAME
    from ..formats.nested import is_archive_name

    if is_archive_name(url) or base_name(url) == MANIFEST_NAME:
        return True
    return any(base_name(url).endswith(".tar") for url in islice(list_objects(url, storage_options), _MAX_LISTED))


class _Reader:
    """Takes samples in a thread: neither the time limit nor Ctrl-C waits for one that does not come.

    Args:
        chain: of samples.
        trace: is told of each.
        seconds: to read for.
    """

    def __init__(self, chain: Any, trace: Trace, seconds: float) -> None:
        self._chain, self._trace = chain, trace
        self._began_s, self._seconds = time.perf_counter(), seconds
        self.ended = False
        self.elapsed_s = 0.0  # until the last sample
        self._error: BaseException | None = None

    def _work(self) -> None:
        try:
            with closing(self._chain):  # so that the last samples are counted
                for _ in self._chain:
                    self._trace.took_sample()
                    if time.perf_counter() - self._began_s >= self._seconds:
                        break
                else:
                    self.ended = True
                self.elapsed_s = time.perf_counter() - self._began_s
        except BaseException as error:  # noqa: BLE001  # raised again by `run`
            self._error = error

    def run(self) -> bool:
        """Read until there are no more samples or the time is over; returns whether Ctrl-C ended it."""
        from ..core.threads import ForkSafeThread

        in_context = copy_context().run  # progress bars are hidden there
        thread = ForkSafeThread(target=in_context, args=(self._work,), name="torchdata_remote", daemon=True)
        interrupted = False
        try:
            thread.start()
            thread.join(min(self._seconds, threading.TIMEOUT_MAX))
            if not self._trace.samples_s:
                thread.join(max(0.0, _FIRST_SAMPLE_S - self._seconds))
        except KeyboardInterrupt:
            interrupted = True
        self._seconds = 0.0
        thread.join(_CLOSE_S)
        if self._error is not None:
            raise self._error
        self.elapsed_s = self.elapsed_s or time.perf_counter() - self._began_s
        return interrupted


def cost(
    url: list[str],
    *,
    read_as: Literal["shards", "files"] | None = None,
    epochs: Count = 1,
    ranks: Count = 1,
    workers: CountOrNone = 0,
    listed_by: Literal["rank", "worker", "rank-0", "once"] = "rank",
    in_order: bool = False,
    max_in_flight: Count | None = None,
    part_bytes: Count | None = None,
    price_get: Price | None = None,
    price_list: Price | None = None,
    price_gb_out: Price | None = None,
    as_json: AsJson = False,
    storage_options: Json = None,
) -> None:
    """Count the requests and bytes of an epoch, of all ranks and workers together, and what they cost.

    The source is listed once, and its objects are not read: the requests for them follow from their sizes. Requests
    that a fault repeats are not counted.

    example: torchdata-remote cost s3://bucket/train/ --ranks 64 --workers 8 --price-get 0.40 --price-list 5.00

    Args:
        url: folder of shards or of files, manifest, glob, brace range, or one object; several of them
        read_as: how it is read; as shards if there are any, by default
        epochs: passes
        ranks: of the job
        workers: processes of each rank
        listed_by: who lists in each epoch: each rank for its workers, as stateful_loader and thread_loader do; each
            worker, as torch's DataLoader does; rank 0 for all (list_in_rank_0); or each rank once for all epochs
            (list_once)
        in_order: without a shuffle, as with shuffle=False
        max_in_flight: requests at once, which part sizes depend on
        part_bytes: length of the parts of large objects
        price_get: of a million GETs or HEADs, in any currency
        price_list: of a million LISTs
        price_gb_out: of 10^9 bytes read
        as_json: print one line of JSON: url, read_as, epochs, ranks, workers, num_objects, object_bytes, part_bytes,
            requests, num_bytes, num_unknown, price, sent
        storage_options: JSON for the store, in fsspec's vocabulary, such as {"endpoint_url": "http://host:9000"}
    """
    from ..core.threads import ordered_map
    from ..fetch.listing.sources import find_object
    from ..formats.nested import is_archive_name
    from ..storage import counted_requests

    options, retry, slots = StorageOptions(storage_options), RetryPolicy(), ranks * max(1, workers)
    with counted_requests() as sent:
        with counted_requests() as listing:
            objects = list(chain.from_iterable(list_objects(one, storage_options) for one in url))
        tars = list(filter(is_archive_name, objects))
        read_as = read_as or ("shards" if tars else "files")
        objects = tars or objects if read_as == "shards" else objects
        tasks = [partial(find_object, str(one), options, retry) for one in objects if one.size is None]
        asked: Iterator[RemoteUrl | None] = iter(list(ordered_map(tasks, max_threads=_MAX_REQUESTS)))
    sizes = [getattr(next(asked), "size", None) if one.size is None else one.size for one in objects]
    if len(objects) < slots and not all(one.num_samples for one in objects):
        readers = f"{slots} readers ({ranks} ranks, {workers} workers each)"
        raise RemoteDataError(f"{len(objects)} {read_as} for {readers}: shards need a manifest to be split by samples.")
    interleave = _INTERLEAVE if read_as == "shards" and not in_order else 1
    fetch = FetchOptions(max_in_flight or _IN_FLIGHT[read_as], part_bytes, interleave=interleave)
    gets = sum(map(partial(_num_gets, fetch.actual_part_bytes()), objects, sizes))
    if len(objects) < slots:  # ranges of samples, each with a GET of the index
        gets += 2 * slots - len(objects)
    num_bytes = sum(size or 0 for size in sizes)
    listings = {"rank": ranks, "worker": slots, "rank-0": 1, "once": ranks}[listed_by]
    listings *= 1 if listed_by == "once" else epochs
    requests = {kind: listing.sent[kind] * listings for kind in ("list", "get", "head")}
    requests["get"] += gets * epochs
    read_bytes = listing.num_bytes * listings + num_bytes * epochs
    prices = (price_list, price_get, price_get, price_gb_out)
    price: dict[str, float] | None = None
    if any(one is not None for one in prices):
        numbers = {**requests, "bytes": read_bytes / 1_000}
        price = {name: numbers[name] * (one or 0.0) / 1e6 for name, one in zip(numbers, prices, strict=True)}
        price["total"] = sum(price.values())
    document: dict[str, Any] = {
        "url": [redact(one) for one in url],
        "read_as": read_as,
        "epochs": epochs,
        "ranks": ranks,
        "workers": workers,
        "num_objects": len(objects),
        "object_bytes": num_bytes,
        "part_bytes": fetch.actual_part_bytes(),
        "requests": requests,
        "num_bytes": read_bytes,
        "num_unknown": sizes.count(None),
        "price": price,
        "sent": {kind: sent.sent[kind] for kind in requests},
    }
    if as_json:
        print_line(json.dumps(document))
        return
    _print_cost(document)


def _num_gets(part_bytes: int, one: RemoteUrl, size: int | None) -> int:
    """Return the GETs that read an object once."""
    from ..fetch.session import FIRST_BYTES
    from ..formats.nested import is_archive_name

    if one.checksums is not None:  # a part is whole blocks
        part_bytes = max(1, part_bytes // one.checksums.block_bytes) * one.checksums.block_bytes
    if one.size is not None or is_archive_name(one):
        return max(1, -(-(size or 0) // part_bytes))
    # The first response reports the size; an empty object is then requested as a whole
    return 2 if size == 0 else 1 + max(0, -(-((size or 0) - min(part_bytes, FIRST_BYTES)) // part_bytes))


def _print_cost(found: dict[str, Any]) -> None:
    urls, price = found["url"], found["price"]
    shown = printable(urls[0]) + (f" and {len(urls) - 1} more" if len(urls) > 1 else "")
    job = ", ".join(f"{name} {found[name]:,}" for name in ("epochs", "ranks", "workers"))
    what = f"{found['num_objects']:,} {found['read_as']}, {found['object_bytes']:,} bytes"
    print_line(f"{shown}: {what}; {job}, parts of {found['part_bytes']:,} bytes")
    numbers = {**found["requests"], "bytes": found["num_bytes"]}
    rows = [
        ["", "number"],
        *([name.upper() if name in found["sent"] else name, f"{n:,}"] for name, n in numbers.items()),
    ]
    if price is not None:
        rows.append(["total", ""])
        for row, text in zip(rows, ["price", *(f"{value:,.4f}" for value in price.values())], strict=True):
            row.append(text)
    for line in aligned(rows, "<>>"[: len(rows[0])]):
        print_line(line)
    if found["num_unknown"]:
        print_line(f"The sizes of {found['num_unknown']:,} objects are unknown: each counts as one GET of no bytes.")
    own = ", ".join(f"{number:,} {kind.upper()}" for kind, number in found["sent"].items() if number)
    print_line(f"To find this out, the command sent {own or 'no requests'}.")
