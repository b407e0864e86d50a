"""Plot the classes and the sizes of a shard's samples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from .contents import ShardContents
from .histograms import Histogram
from .plots import COLOURS, DPI, plain_text, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MAX_BARS = 30  # more names cannot be read
_NAME_CHARACTERS, _TITLE_CHARACTERS = 24, 80


def ordered_classes(counts: Mapping[str, int]) -> dict[str, int]:
    """Sort classes by their number; by name if one of them is not a number.

    Example:
        >>> list(ordered_classes({"10": 3, "9": 4})), list(ordered_classes({"b": 1, "1": 2}))
        (['9', '10'], ['1', 'b'])
    """
    numbers = all(label.isascii() and label.isdigit() for label in counts)
    return dict(sorted(counts.items(), key=lambda item: (int(item[0]) if numbers else 0, item[0])))


@plain_text()
def draw_contents(contents: ShardContents, *, title: str) -> Figure:
    """Draw how many samples each class has, and the histogram of the samples' sizes.

    Args:
        contents: of the shard.
        title: such as its URL.
    """
    from matplotlib.figure import Figure

    counts = contents.labels or contents.folders
    num_bars = len(counts) if len(counts) <= _MAX_BARS else 0
    figure = Figure(figsize=(12, max(4.2, 1.6 + 0.24 * num_bars)), dpi=DPI, layout="constrained")
    facts = f"{contents.num_samples:,} samples, {contents.num_bytes:,} bytes"
    figure.suptitle(f"{shortened(title, _TITLE_CHARACTERS)}: {facts}", fontsize=14, parse_math=False)
    classes, sizes = figure.subplots(1, 2)
    _draw_classes(classes, contents, counts)
    _draw_sizes(sizes, contents.sample_bytes)
    return figure


def _draw_classes(axes: Axes, contents: ShardContents, counts: Mapping[str, int]) -> None:
    from matplotlib.ticker import MaxNLocator

    kind = "classes" if contents.labels else "folders of keys"
    counted = sum(counts.values())
    among = f", of {counted:,} of {contents.num_samples:,} samples" if 0 < counted < contents.num_samples else ""
    axes.set_title(f"{len(counts):,} {kind}{among}")
    if not counts:
        _say(axes, "no classes: no cls members, no folders in keys")
        return
    if len(counts) > _MAX_BARS:
        axes.plot(range(1, len(counts) + 1), sorted(counts.values(), reverse=True), color=COLOURS["fetch"])
        axes.set(xlabel="class, the most frequent first", ylabel="samples", ylim=(0, None), xlim=(1, len(counts)))
        axes.grid(alpha=0.3)
        return
    ordered = ordered_classes(counts)
    names = [f"{label}  {contents.class_names[label]}" if label in contents.class_names else label for label in ordered]
    bars = axes.barh([str(number) for number in range(len(ordered))], list(ordered.values()), color=COLOURS["fetch"])
    axes.bar_label(bars, [f"{number:,}" for number in ordered.values()], padding=3)
    axes.set_yticks(range(len(ordered)), [shortened(name, _NAME_CHARACTERS) for name in names], parse_math=False)
    axes.invert_yaxis()
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("samples")
    axes.margins(x=0.1)


def _draw_sizes(axes: Axes, found: Histogram | None) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.set_title("Bytes of a sample")
    if found is None:
        _say(axes, "no samples")
        return
    growing = len({high - low for low, high in zip(found.edges, found.edges[1:], strict=False)}) > 1
    axes.stairs(found.counts, found.edges, fill=True, color=COLOURS["decode"])
    if growing:
        axes.set_xscale("symlog", base=2, linthresh=1)
        axes.set_xticks(found.edges, [f"{edge:,}" for edge in found.edges], rotation=30)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:,.0f}"))
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set(xlabel="bytes of all members together", ylabel="samples", ylim=(0, None))


def _say(axes: Axes, text: str) -> None:
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes)
    axes.set_axis_off()
