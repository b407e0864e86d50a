"""``torchdata-remote top``: a table, JSON or metrics for Prometheus of a training that records itself."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import CycloptsError, Parameter
from cyclopts.validators import Number

from ..core.stats import FOLDER_EVERY_S, STATS_VARIABLE
from ..errors import RemoteDataError
from .shared import AsJson, aligned, print_line, printable

if TYPE_CHECKING:
    from ..inspection.training_stats import ProcessStats, RecordedStats, TrainingStats

_HOME, _CLEAR, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[2J", "\x1b[K", "\x1b[J"
_COLUMNS = (
    "rank",
    "worker",
    "samples/s",
    "MB/s",
    "requests/s",
    "retries",
    "waits",
    "most for",
    "latest line",
    "process",
)
_ALIGNMENT = ">>>>>>><<<"
_SCALARS = ("samples_per_s", "megabytes_per_s", "requests_per_s")
_PREFIX, _LABELS = "torchdata_remote", ("rank", "worker", "host", "pid")
_COUNTERS = {
    "items": ("items", "Items that a stage produced: URLs, objects, samples, decoded values."),
    "num_bytes": ("received_bytes", "Bytes that a stage received."),
    "wait_s": ("wait_seconds", "Seconds that the consumer waited for a stage."),
    "busy_s": ("busy_seconds", "Seconds of work, of all threads together."),
    "requests": ("requests", "Requests that were sent."),
    "retries": ("retries", "Requests that failed and were sent again."),
}


def top(
    path: tuple[str, ...] = (),
    *,
    once: bool = False,
    as_json: AsJson = False,
    every_s: Annotated[float, Parameter(validator=Number(gt=0, lte=3600))] = 2.0,
    prometheus: str | None = None,
) -> None:
    """Show what the ranks and workers of a running training do, and what they wait for.

    Each process records it if TORCHDATA_REMOTE_STATS=FOLDER is in its environment. Ctrl-C ends the view.

    example: torchdata-remote top stats/

    Args:
        path: folders of *.jsonl, files of record_stats, or globs; $TORCHDATA_REMOTE_STATS by default
        once: print one table, as where the output is no terminal
        as_json: print the numbers once, as one line of JSON
        every_s: seconds between views
        prometheus: [HOST:]PORT, serve the counters to Prometheus at /metrics until Ctrl-C; the host is 127.0.0.1 by
            default
    """
    from ..inspection.training_stats import RecordedStats

    if prometheus is not None and (once or as_json):
        raise CycloptsError(msg="--prometheus serves until Ctrl-C: choose it, or --once, or --json.")
    paths = path or tuple(filter(None, [os.environ.get(STATS_VARIABLE)]))
    if not paths:
        raise RemoteDataError(
            f"No recordings are named. Start the training with {STATS_VARIABLE}=FOLDER in the environment of all "
            "ranks, then: torchdata-remote top FOLDER"
        )
    recorded, title, is_terminal = RecordedStats(*paths), printable(" ".join(paths)), sys.stdout.isatty()
    if as_json:
        print_line(json.dumps(recorded.now().as_dict()))
    elif once or (prometheus is None and not is_terminal):
        now = recorded.now()
        if not now.processes:
            found = printable("; ".join(now.notes) or "no file has a line of statistics")
            raise RemoteDataError(
                f"{title}: {found}. A process writes its first line {FOLDER_EVERY_S:g} s after it has begun to read, "
                f"if {STATS_VARIABLE} was in its environment."
            )
        for line in _table(now, title):
            print_line(line)
    else:
        with contextlib.suppress(KeyboardInterrupt):
            if prometheus is not None:
                title = f"{title}, {_serve(recorded, prometheus)}"
            sys.stdout.write(_CLEAR if is_terminal else f"{title}\n")
            while True:
                if is_terminal:
                    _draw(recorded.now(), title)
                sys.stdout.flush()
                time.sleep(every_s)


def _table(now: TrainingStats, title: str, *, num_lines: int | None = None) -> list[str]:
    """Return the lines of a table: title, a row for each process, the total, notes, the verdict.

    Args:
        now: the statistics.
        title: of the table.
        num_lines: of the terminal. If there are too many processes, those that wait most are shown.
    """
    end = ["", *map(printable, (*now.notes, now.verdict))]
    shown = list(now.processes)
    hidden = 0 if num_lines is None else max(0, len(shown) - max(1, num_lines - len(end) - 5))
    if hidden:
        shown = sorted(shown, key=lambda one: (one.state != "stalled", -one.recent.as_scalars("")["waiting"]))[:-hidden]
    total = ("all", "", *_numbers(now.as_scalars(""), sum(one.retries for one in now.processes)), "", "")
    head, *rows, last = aligned([_COLUMNS, *map(_row, shown), total], _ALIGNMENT)
    more = [f"... and {hidden} processes that wait less"] * (hidden > 0)
    running = sum(one.state == "running" for one in now.processes)
    return [f"{title}: {running} of {len(now.processes)} processes run", "", head, *rows, *more, last, *end]


def _row(one: ProcessStats) -> tuple[str, ...]:
    rank, worker = ("-" if number is None else str(number) for number in (one.rank, one.worker))
    state = "" if one.state == "running" else f"{one.state} "
    numbers = _numbers(one.recent.as_scalars(""), one.retries)
    return rank, worker, *numbers, f"{state}{one.age_s:.0f} s", printable(f"{one.host}:{one.pid}")


def _numbers(scalars: dict[str, float], retries: int) -> tuple[str, ...]:
    rates = (f"{scalars[name]:,.{0 if scalars[name] >= 100 else 1}f}" for name in _SCALARS)
    most = max((name for name in scalars if name.startswith("waiting_")), key=lambda name: scalars[name])
    longest = f"{most.removeprefix('waiting_')} {min(1.0, scalars[most]):.0%}" if scalars[most] >= 0.005 else "-"
    return *rates, f"{retries:,}", f"{scalars['waiting']:.0%}", longest


def _draw(now: TrainingStats, title: str) -> None:
    """Write over the lines that the terminal shows, in one piece, so that nothing flickers."""
    size = os.get_terminal_size(sys.stdout.fileno())
    columns, lines = size.columns or 80, (size.lines or 24) - 1
    shown = [f"{line[:columns]}{_CLEAR_LINE}\n" for line in _table(now, title, num_lines=lines)[:lines]]
    encoding = sys.stdout.encoding or "ascii"
    sys.stdout.write("".join([_HOME, *shown, _CLEAR_BELOW]).encode(encoding, "backslashreplace").decode(encoding))


def _serve(recorded: RecordedStats, address: str) -> str:
    """Serve metrics in a thread; returns the URL."""
    try:
        from prometheus_client import CollectorRegistry, start_http_server
    except ImportError as error:
        raise RemoteDataError(f"--prometheus: {error}. Install: pip install 'torchdata_remote[service]'") from error
    host, _, port = address.rpartition(":")
    host = host.strip("[]") or "127.0.0.1"
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_collector(recorded))
    try:
        server, _ = start_http_server(int(port), addr=host, registry=registry)
    except (OSError, OverflowError, ValueError) as error:
        raise RemoteDataError(f"--prometheus {address}: expected [HOST:]PORT that is free: {error}.") from error
    return f"http://{f'[{host}]' if ':' in host else host}:{server.server_port}/metrics"


def _collector(recorded: RecordedStats) -> Any:
    """Make what reads the recordings when it is scraped. A process that has ended has no series."""
    from prometheus_client.core import CounterMetricFamily, Metric
    from prometheus_client.registry import Collector

    from ..core.stats import stages

    class TrainingCollector(Collector):
        def collect(self) -> Iterator[Metric]:
            processes = [one for one in recorded.now().processes if one.state == "running"]
            samples = CounterMetricFamily(f"{_PREFIX}_samples", "Samples that were read.", labels=_LABELS)
            elapsed = CounterMetricFamily(f"{_PREFIX}_elapsed_seconds", "Since a process began.", labels=_LABELS)
            counters = {
                name: CounterMetricFamily(f"{_PREFIX}_{shown}", text, labels=(*_LABELS, "stage"))
                for name, (shown, text) in _COUNTERS.items()
            }
            for one in processes:
                labels = ["" if (own := getattr(one, name)) is None else str(own) for name in _LABELS]
                samples.add_metric(labels, one.total.samples)
                elapsed.add_metric(labels, one.total.elapsed_s)
                for stage, name in product(stages, counters):
                    counters[name].add_metric([*labels, stage.name], getattr(getattr(one.total, stage.name), name))
            yield from (samples, elapsed, *counters.values())

    return TrainingCollector()
