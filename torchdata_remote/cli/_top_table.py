"""The table of ``torchdata-remote top``."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from ..inspection.training_stats import ProcessStats, TrainingStats
from ._shared import printable

_LEFT = {"most for", "latest line", "process"}
# Left out one by one where the terminal is too narrow
_DISPENSABLE = ("process", "requests/s", "retries", "MB/s", "worker")
_GAP = "  "


def table(now: TrainingStats, title: str, *, columns: int | None = None, lines: int | None = None) -> list[str]:
    """Return the lines of a table: title, one row for each process, the total, notes, the verdict.

    Args:
        now: the statistics.
        title: of the table.
        columns: that a line may have; ``None`` for any number.
        lines: that there may be. If there are too many processes, those that wait most are shown.
    """
    running = sum(one.state == "running" for one in now.processes)
    end = [*map(printable, now.notes), *_wrapped(printable(now.verdict), columns)]
    if not now.processes:
        return _cut([title, "", *end], columns, lines)
    room = len(now.processes) if lines is None else max(1, lines - len(end) - 6)
    shown: Sequence[ProcessStats] = now.processes
    hidden = []
    if len(shown) > room:
        shown = sorted(shown, key=lambda one: (one.state != "stalled", -sum(one.waits.values())))[:room]
        hidden = [f"... and {len(now.processes) - len(shown)} processes that wait less"]
    rows = [_row(one) for one in shown]
    table = _aligned([*rows, _total(now)], columns)
    head = f"{title}: {running} of {len(now.processes)} processes run"
    return _cut([head, "", *table[:-1], *hidden, table[-1], "", *end], columns, lines)


def _row(one: ProcessStats) -> dict[str, str]:
    age = f"{one.age_s:.0f} s"
    row = {
        "rank": "-" if one.rank is None else str(one.rank),
        "worker": "-" if one.worker is None else str(one.worker),
        **_rates(one.recent.as_scalars("")),
        "retries": f"{one.retries:,}",
        **_waits(one.waits),
        "latest line": age if one.state == "running" else f"{one.state} {age}",
        "process": printable(str(one.pid) if one.host is None else f"{one.host}:{one.pid}"),
    }
    if one.state == "stalled":
        row.update(dict.fromkeys(("samples/s", "MB/s", "requests/s"), "-"))
    return row


def _total(now: TrainingStats) -> dict[str, str]:
    return {"rank": "all", **_rates(now.as_scalars("")), "retries": f"{now.retries:,}", **_waits(now.waits)}


def _rates(scalars: dict[str, float]) -> dict[str, str]:
    names = {"samples/s": "samples_per_s", "MB/s": "megabytes_per_s", "requests/s": "requests_per_s"}
    return {shown: f"{scalars[name]:,.{0 if scalars[name] >= 100 else 1}f}" for shown, name in names.items()}


def _waits(waits: dict[str, float]) -> dict[str, str]:
    most = max(waits, key=lambda name: waits[name])
    share = min(1.0, sum(waits.values()))
    return {"waits": f"{share:.0%}", "most for": f"{most} {min(1.0, waits[most]):.0%}" if waits[most] >= 0.005 else "-"}


def _aligned(rows: list[dict[str, str]], columns: int | None) -> list[str]:
    """Return a line for the names and one for each row; columns that do not fit are left out."""
    names = list(rows[0])
    widths = {name: max(len(name), *(len(row.get(name, "")) for row in rows)) for name in names}
    for name in _DISPENSABLE:
        if columns is None or sum(widths[name] for name in names) + len(_GAP) * (len(names) - 1) <= columns:
            break
        names.remove(name)
    lines = [{name: name for name in names}, *rows]
    return [
        _GAP.join(
            row.get(name, "").ljust(widths[name]) if name in _LEFT else row.get(name, "").rjust(widths[name])
            for name in names
        ).rstrip()
        for row in lines
    ]


def _wrapped(text: str, columns: int | None) -> list[str]:
    if columns is None:
        return [text]
    return textwrap.wrap(text, max(20, columns))


def _cut(found: list[str], columns: int | None, lines: int | None) -> list[str]:
    return [line if columns is None else line[:columns] for line in found[: lines or None]]
