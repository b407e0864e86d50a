"""Plots of a shard's contents and of a run. matplotlib is optional."""

from __future__ import annotations

import contextlib
import os
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..core.files import require_replaceable
from ..core.recording import Stats
from ..core.stats import DECODE, FETCH, LIST, READ, Span
from ..errors import RemoteDataError
from .pictures import save_picture
from .shards import Histogram, ShardContents, ordered_classes
from .trace import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DPI = 100
_NEED_LATEX = {"pgf"}
# Okabe and Ito's palette, which colour-blind readers can tell apart
_COLOURS = {"list": "#cc79a7", "fetch": "#0072b2", "read": "#009e73", "decode": "#e69f00", "rest": "#b3b3b3"}
_MAX_CLASSES = 30  # more names cannot be read
_NAME_CHARACTERS, _TITLE_CHARACTERS = 24, 80
_SHOWN_REQUESTS = 30  # one after the other, so that a bar is wide enough to be seen
_MAX_BINS, _MOMENTS = 60, 2_000
_LINES = {"p50": "-", "p90": "--", "p99": ":"}


def require_plot(path: str) -> None:
    """Raise unless a plot can be drawn and written to a file; to be called before the work that it shows.

    Raises:
        RemoteDataError: if matplotlib is missing or cannot be imported, the file's folder does not exist, or its format
            is unknown.
    """
    # Plots have a canvas of their own. matplotlib cannot be imported where this names a backend that it does not know
    backend = os.environ.pop("MPLBACKEND", None)
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise RemoteDataError("--plot needs matplotlib: pip install 'torchdata_remote[plot]'") from error
    except Exception as error:  # such as of a library that it needs, or of a configuration file
        raise RemoteDataError(f"--plot: matplotlib cannot be imported: {type(error).__name__}: {error}") from error
    finally:
        if backend is not None:
            os.environ["MPLBACKEND"] = backend
    extension = os.path.splitext(path)[1].lower().removeprefix(".")
    known = Figure().canvas.get_supported_filetypes().keys() - _NEED_LATEX
    if extension not in known:
        raise RemoteDataError(
            f"{path}: no picture format has the extension {extension!r}. Use a name such as out.png; known are "
            f"{', '.join(sorted(known))}."
        )
    require_replaceable(path)


@contextlib.contextmanager
def _plain_text() -> Iterator[None]:
    """Draw text in this block without LaTeX, whatever the user's ``matplotlibrc`` says: names are no LaTeX."""
    from matplotlib import rc_context

    with rc_context({"text.usetex": False}):
        yield


def save_plot(figure: Figure, path: str) -> None:
    """Write a figure to a file, in the format of its extension. An existing file is replaced when it is complete.

    Raises:
        RemoteDataError: if it cannot be written.
    """
    with warnings.catch_warnings(), _plain_text():
        # Names may have characters that the font does not: they are drawn as boxes
        warnings.filterwarnings("ignore", "Glyph", UserWarning)
        save_picture(figure.savefig, path)


def shortened(text: str, max_characters: int) -> str:
    """Shorten a text in its middle.

    Example:
        >>> shortened("s3://bucket/a/long/path/train/", 20)
        's3://bucke.../train/'
    """
    kept = max_characters - 3
    if len(text) <= max_characters:
        return text
    return f"{text[: kept - kept // 2 + 1]}...{text[len(text) - kept // 2 + 1 :]}"


@_plain_text()
def draw_contents(contents: ShardContents, *, title: str) -> Figure:
    """Draw how many samples each class has, and the histogram of the samples' sizes.

    Args:
        contents: of the shard.
        title: such as its URL.
    """
    from matplotlib.figure import Figure

    counts = contents.labels or contents.folders
    num_bars = len(counts) if len(counts) <= _MAX_CLASSES else 0
    figure = Figure(figsize=(12, max(4.2, 1.6 + 0.24 * num_bars)), dpi=_DPI, layout="constrained")
    facts = f"{contents.num_samples:,} samples, {contents.num_bytes:,} bytes"
    figure.suptitle(f"{shortened(title, _TITLE_CHARACTERS)}: {facts}", fontsize=14, parse_math=False)
    classes, sizes = figure.subplots(1, 2)
    counted = sum(counts.values())
    among = f", of {counted:,} of {contents.num_samples:,} samples" if 0 < counted < contents.num_samples else ""
    classes.set_title(f"{len(counts):,} {'classes' if contents.labels else 'folders of keys'}{among}")
    _draw_classes(classes, counts, contents.class_names)
    sizes.set_title("Bytes of a sample")
    _draw_sizes(sizes, contents.sample_bytes)
    return figure


def _draw_classes(axes: Axes, counts: Mapping[str, int], class_names: Mapping[str, str]) -> None:
    if not counts:
        _say(axes, "no classes: no cls members, no folders in keys")
        return
    if len(counts) > _MAX_CLASSES:
        axes.plot(range(1, len(counts) + 1), sorted(counts.values(), reverse=True), color=_COLOURS["fetch"])
        axes.set(xlabel="class, the most frequent first", ylabel="samples", ylim=(0, None), xlim=(1, len(counts)))
        axes.grid(alpha=0.3)
        return
    ordered = ordered_classes(counts)
    names = [f"{label}  {class_names[label]}" if label in class_names else label for label in ordered]
    bars = axes.barh(range(len(ordered)), list(ordered.values()), color=_COLOURS["fetch"])
    axes.bar_label(bars, [f"{number:,}" for number in ordered.values()], padding=3)
    axes.set_yticks(range(len(ordered)), [shortened(name, _NAME_CHARACTERS) for name in names], parse_math=False)
    axes.invert_yaxis()
    axes.locator_params(axis="x", integer=True)
    axes.set_xlabel("samples")
    axes.margins(x=0.1)


def _draw_sizes(axes: Axes, found: Histogram | None) -> None:
    if found is None:
        _say(axes, "no samples")
        return
    axes.stairs(found.counts, found.edges, fill=True, color=_COLOURS["decode"])
    if len({high - low for low, high in zip(found.edges, found.edges[1:], strict=False)}) > 1:
        axes.set_xscale("symlog", base=2, linthresh=1)
        axes.set_xticks(found.edges, [f"{edge:,}" for edge in found.edges], rotation=30)
    else:
        axes.locator_params(axis="x", integer=True, min_n_ticks=1)
        axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.locator_params(axis="y", integer=True)
    axes.set(xlabel="bytes of all members together", ylabel="samples", ylim=(0, None))


def _say(axes: Axes, text: str) -> None:
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes)
    axes.set_axis_off()


@_plain_text()
def draw_timeline(trace: Trace, spent: Stats, *, title: str, subtitle: str, max_in_flight: int) -> Figure:
    """Draw a run: its beginning in detail, the throughput of all of it, and the durations of all requests.

    Args:
        trace: of the run.
        spent: its counters.
        title: such as the verdict.
        subtitle: such as what was read.
        max_in_flight: requests at once that were allowed.
    """
    from matplotlib.figure import Figure

    # The beginning: until the first sample, and some requests after it
    durations = trace.percentiles()
    first_s = trace.samples_s[0] if trace.samples_s else spent.elapsed_s
    later_s = _SHOWN_REQUESTS * durations["p50"] / 1e3 if durations else spent.elapsed_s
    shown_s = min(spent.elapsed_s, trace.detailed_until_s, first_s + later_s)
    figure = Figure(figsize=(12, 8.5), dpi=_DPI, layout="constrained")
    figure.suptitle("\n".join(textwrap.wrap(title, _TITLE_CHARACTERS)), fontsize=15, fontweight="bold")
    panels: dict[str, Axes] = figure.subplot_mosaic(
        [["consumer", "consumer"], ["requests", "requests"], ["throughput", "durations"]],
        height_ratios=(1.5, 2.4, 2),
    )
    panels["consumer"].set_title(subtitle, fontsize=11, parse_math=False)
    _draw_consumer(panels["consumer"], trace.consumer, spent, shown_s)
    _draw_requests(panels["requests"], [span for span in trace.requests if span.start_s < shown_s], max_in_flight)
    panels["requests"].set_xlabel(f"seconds: the first {shown_s:.3g} of {spent.elapsed_s:.3g}")
    for name in ("consumer", "requests"):
        panels[name].set_xlim(0, shown_s)
        panels[name].grid(axis="x", alpha=0.3)
        panels[name].set_axisbelow(True)
    _draw_throughput(panels["throughput"], trace, spent.elapsed_s)
    _draw_durations(panels["durations"], trace.requests, durations)
    return figure


def _draw_consumer(axes: Axes, spans: Sequence[Span], spent: Stats, shown_s: float) -> None:
    """Draw which stage each moment was spent in: that of the innermost span."""
    import numpy as np

    moments = np.linspace(0, shown_s, _MOMENTS)
    stage_of = np.full(_MOMENTS, "rest", object)
    for stage in (READ, DECODE, FETCH, LIST):  # the outer ones first
        for span in spans:
            if span.stage == stage.name:
                stage_of[slice(*np.searchsorted(moments, (span.start_s, span.end_s)))] = stage.name
    labels = []
    for row, (name, colour) in enumerate(_COLOURS.items()):
        axes.fill_between(moments, row - 0.4, row + 0.4, where=stage_of == name, color=colour, step="post", linewidth=0)
        took_s = spent.rest_s if name == "rest" else getattr(spent, name).wait_s
        what = f"wait: {name}" if name in (LIST.name, FETCH.name) else name
        labels.append(f"{what} {100 * took_s / max(spent.elapsed_s, 1e-9):.0f} %")
    axes.set(yticks=range(len(labels)), yticklabels=labels, ylim=(len(labels) - 0.4, -0.6))
    axes.set_ylabel("the loop's time\n(% of the whole run)")
    axes.tick_params(axis="x", labelbottom=False)


def _draw_requests(axes: Axes, spans: Sequence[Span], max_in_flight: int) -> None:
    """Draw requests in as few rows as possible, so that those of a row do not overlap."""
    rows: list[list[Span]] = []
    for span in sorted(spans, key=lambda span: span.start_s):
        free = next((row for row in rows if row[-1].end_s <= span.start_s), None)
        if free is None:
            rows.append(free := [])
        free.append(span)
    for number, row in enumerate(rows, 1):
        widths = [(span.start_s, span.end_s - span.start_s) for span in row]
        axes.broken_barh(widths, (number - 0.4, 0.8), facecolor=_COLOURS["fetch"], edgecolor="white", linewidth=0.5)
    most = max(max_in_flight, len(rows))
    axes.set(ylim=(0.4, most + 0.6), ylabel=f"requests\n({max_in_flight} allowed at once)")
    axes.locator_params(axis="y", integer=True, min_n_ticks=1)


def _draw_throughput(axes: Axes, trace: Trace, elapsed_s: float) -> None:
    import numpy as np

    edges = np.linspace(0, elapsed_s, min(_MAX_BINS, max(4, len(trace.samples_s) // 4)) + 1)
    width_s = edges[1] - edges[0]
    # The trace began before ``elapsed_s`` did
    samples = np.histogram(np.minimum(np.array(trace.samples_s), elapsed_s), edges)[0]
    axes.stairs(samples / width_s, edges, fill=True, color=_COLOURS["rest"])
    axes.set(title="Throughput of the whole run", xlabel="seconds", ylabel="samples/s", xlim=(0, elapsed_s))
    axes.set_ylim(0, None)
    # As if each request brought its bytes evenly
    arrived = sum(
        (np.interp(edges, [one.start_s, one.end_s], [0, one.num_bytes]) for one in trace.requests), np.zeros(len(edges))
    )
    beside: Any = axes.twinx()
    beside.stairs(np.diff(arrived) / width_s / 1e6, edges, color=_COLOURS["fetch"], linewidth=1.5)
    beside.set_ylim(0, None)
    beside.set_ylabel("MB/s from the store", color=_COLOURS["fetch"])
    beside.tick_params(axis="y", labelcolor=_COLOURS["fetch"])


def _draw_durations(axes: Axes, requests: Sequence[Span], durations: Mapping[str, float]) -> None:
    if not durations:
        _say(axes, "no requests")
        return
    last_ms = min(1.02 * durations["max"], 2.5 * durations["p99"])
    took_ms = [1e3 * (span.end_s - span.start_s) for span in requests]
    axes.hist(took_ms, bins=_MAX_BINS, range=(0, last_ms), color=_COLOURS["fetch"])
    axes.set(title=f"How long {len(took_ms):,} requests took", ylabel="requests", xlim=(0, last_ms))
    axes.set_xlabel(f"ms; the slowest took {durations['max']:,.1f}")
    for name, style in _LINES.items():
        label = f"{name} {durations[name]:,.1f} ms"
        axes.axvline(durations[name], color="black", linewidth=1.2, linestyle=style, label=label)
    axes.legend()
