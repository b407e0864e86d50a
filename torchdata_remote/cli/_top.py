"""``torchdata-remote top``."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from functools import partial
from glob import glob

from ..core.stats import FOLDER_EVERY_S, STATS_VARIABLE
from ..errors import RemoteDataError
from ..inspection.recorded_stats import RecordedStats
from ._shared import Commands, add_command, port, positive_seconds, print_line, printable
from ._top_table import table

_HOME, _CLEAR, _CLEAR_LINE, _CLEAR_BELOW = "\x1b[H", "\x1b[2J", "\x1b[K", "\x1b[J"


def add(commands: Commands) -> None:
    """Add this command's parser."""
    parser = add_command(
        commands,
        "top",
        _run,
        description="show what the ranks and workers of a running training do, and what they wait for. Each process "
        f"records it if {STATS_VARIABLE}=FOLDER is in its environment. Ctrl-C ends the view.",
        example="top stats/",
    )
    parser.add_argument(
        "path",
        nargs="*",
        help=f"folders of *.jsonl, files of record_stats, or globs (default: ${STATS_VARIABLE})",
    )
    output = parser.add_mutually_exclusive_group()
    parser.add_argument("--once", action="store_true", help="print one table, as where the output is no terminal")
    output.add_argument("--json", action="store_true", help="print the numbers once, as one line of JSON")
    parser.add_argument(
        "--every-s",
        type=partial(positive_seconds, at_most=3600),
        default=2.0,
        metavar="S",
        help="seconds between views (default: %(default)g)",
    )
    output.add_argument(
        "--prometheus",
        type=_address,
        metavar="[HOST:]PORT",
        help="serve the counters to Prometheus at /metrics until Ctrl-C; the default host is 127.0.0.1",
    )


def _address(text: str) -> tuple[str, int]:
    host, _, number = text.rpartition(":")
    try:
        return host.strip("[]") or "127.0.0.1", port(number)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(
            f"expected PORT or HOST:PORT, such as 0.0.0.0:9400, got {text!r}: {error}"
        ) from None


def _run(args: argparse.Namespace) -> int:
    if args.once and args.prometheus is not None:
        args.parser.error("argument --once: not allowed with argument --prometheus")
    paths = args.path or [path for path in [os.environ.get(STATS_VARIABLE)] if path]
    if not paths:
        raise RemoteDataError(
            f"No recordings are named. Start the training with {STATS_VARIABLE}=FOLDER in the environment of all "
            "ranks, then: torchdata-remote top FOLDER"
        )
    recorded, title = RecordedStats(*paths), printable(" ".join(paths))
    is_terminal = sys.stdout.isatty()
    if args.once or args.json or (args.prometheus is None and not is_terminal):
        return _print_once(recorded, paths, title, as_json=args.json)
    with contextlib.suppress(KeyboardInterrupt):
        if args.prometheus is not None:
            title = f"{title}, {_serve(recorded, *args.prometheus)}"
        if is_terminal:
            sys.stdout.write(_CLEAR)
        else:
            print_line(title)
        while True:
            if is_terminal:
                _draw(table(recorded.now(), title, **_size()))
            sys.stdout.flush()
            time.sleep(args.every_s)
    return 0


def _print_once(recorded: RecordedStats, paths: list[str], title: str, *, as_json: bool) -> int:
    now = recorded.now()
    if as_json:
        print_line(json.dumps(now.as_dict()))
        return 0
    if not now.processes:
        absent = "no such file or folder"
        missing = [path for path in paths if not os.path.exists(path) and not glob(path)]
        notes = [*(f"{path}: {absent}" for path in missing), *now.notes]
        found = absent if missing == paths else "; ".join(notes) or "no file has a line of statistics"
        raise RemoteDataError(
            f"{title}: {printable(found)}. A process writes its first line {FOLDER_EVERY_S:g} s after it has begun to "
            f"read, if {STATS_VARIABLE} was in its environment."
        )
    for line in table(now, title):
        print_line(line)
    return 0


def _serve(recorded: RecordedStats, host: str, port: int) -> str:
    """Serve metrics in a thread; returns the URL."""
    try:
        from ._top_metrics import serve_metrics  # prometheus_client is optional
    except ImportError as error:
        raise RemoteDataError(f"--prometheus: {error}. Install: pip install 'torchdata_remote[service]'") from error
    try:
        port = serve_metrics(recorded, host, port)
    except OSError as error:
        raise RemoteDataError(f"--prometheus {host}:{port}: {error.strerror or error}.") from error
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"


def _size() -> dict[str, int]:
    """Return what fits on the terminal, whose size may change."""
    try:
        columns, lines = os.get_terminal_size(sys.stdout.fileno())
    except OSError:
        columns, lines = 0, 0
    return {"columns": columns or 80, "lines": (lines or 24) - 1}


def _draw(lines: list[str]) -> None:
    """Write over the lines that the terminal shows, in one piece, so that nothing flickers."""
    encoding = sys.stdout.encoding or "ascii"
    frame = _HOME + "".join(f"{line}{_CLEAR_LINE}\n" for line in lines) + _CLEAR_BELOW
    sys.stdout.write(frame.encode(encoding, "backslashreplace").decode(encoding))
