"""The picture of ``bench_training``: images per second, and the time to the first batch, of each loader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

OURS, USUAL, FAST = "#2f6db3", "#d9660f", "#f0b98d"  # colors
LABELS = {
    "ours": "torchdata_remote, thread_loader",
    "ours-workers": "torchdata_remote, stateful_loader",
    "webdataset": "WebDataset",
    "litdata": "LitData, its own format",
    "litdata-raw": "LitData, loose files",
    "mosaicml": "MosaicML streaming, its own format",
    "image-folder": "image folder over s3fs, 8 workers",
    "s3torchconnector": "S3MapDataset of s3torchconnector",
    "dali": "DALI, its file reader, on the CPU",
}
_FAST = "-cv2"  # end of the name of a side with simplejpeg and OpenCV


def draw(speeds: Mapping[str, Sequence[float]], first_batches: Mapping[str, Sequence[float]], path: str) -> None:
    """A bar for each side, with its least and largest figure.

    Args:
        speeds: images per second of each side, in each round.
        first_batches: seconds from the start of a process to its first batch, imports included.
        path: of the picture.
    """
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt
    from matplotlib.patches import Patch

    plt.rcParams.update({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False})
    sides = {name: [side for side in (name, name + _FAST) if side in speeds] for name in LABELS}
    shown = sorted((name for name in LABELS if sides[name]), key=lambda name: -median(speeds[sides[name][0]]))
    started = sorted((name for name in shown if name in first_batches), key=lambda name: median(first_batches[name]))
    figure, (left, right) = plt.subplots(1, 2, figsize=(15, 0.62 * len(shown) + 1.8), width_ratios=(1.35, 1))
    figure.set_layout_engine("constrained", w_pad=0.15, h_pad=0.12)
    heading: dict[str, Any] = {"loc": "left", "fontsize": 13, "fontweight": "bold"}
    for row, name in enumerate(shown):
        height = 0.36 if len(sides[name]) > 1 else 0.5
        for number, side in enumerate(sides[name]):
            at = row + 0.38 * (number - (len(sides[name]) - 1) / 2)
            _bar(left, at, speeds[side], FAST if side != name else _color(name), "{:,.0f}", height)
    left.set_title("images per second", **heading)
    for row, name in enumerate(started):
        _bar(right, row, first_batches[name], _color(name), "{:.1f}", 0.5)
    right.set_title("seconds to the first batch", **heading)
    for panel, names in ((left, shown), (right, started)):
        panel.set(yticks=range(len(names)), ylim=(len(shown) - 0.4, -0.6), xticks=[])
        panel.set_yticklabels([LABELS[name] for name in names])
        panel.tick_params(left=False)
        panel.spines[["left", "bottom"]].set_visible(False)
    kinds = {OURS: "decode_image", USUAL: "its usual decoder", FAST: "the same with simplejpeg and OpenCV"}
    left.legend([Patch(color=color) for color in kinds], list(kinds.values()), loc="lower right", frameon=False)
    figure.suptitle(
        "From a bucket to batches of 64 augmented images: JPEGs of 94 kB, random crops of 224, 2 cores", fontsize=15
    )
    figure.savefig(path, dpi=90)
    plt.close(figure)


def _color(name: str) -> str:
    return OURS if name.startswith("ours") else USUAL


def _bar(panel: Any, row: float, values: Sequence[float], color: str, digits: str, height: float) -> None:
    middle = median(values)
    panel.barh(row, middle, height=height, color=color)
    panel.plot([min(values), max(values)], [row, row], color="#333333", linewidth=1)
    panel.annotate(
        digits.format(middle), (max(values), row), xytext=(5, 0), textcoords="offset points", va="center", fontsize=10
    )
