"""How well are samples mixed that lie sorted by class, one class a shard?

    python benchmarks/shuffle_quality.py [--quick] [--seeds 5] [--plot docs/images/shuffle_quality.png]

The worst case: a reader of one shard after another sees one class after another. Measured is one pass over local shards
in one process, for several seeds, in batches as a training would take them, against a full shuffle of all samples,
which no stream can do. WebDataset has a buffer of the same number of samples, filled before the first one leaves it.
Beside it stand the time to the first batch, read from local disk, and Python's peak memory, for samples of 1.5 kB; the
same for samples of 94 kB and a slow store is measured by ``bench_defaults.py``. The plot needs matplotlib; without
webdataset its row is left out.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
from report import environment, print_table, spread
from torch.utils.data.datapipes.iter import IterableWrapper

import torchdata_remote as tdr

Samples = Callable[["Data", int, bool], Iterable[Any]]
Order = npt.NDArray[np.int64]  # of an epoch: which sample of the sorted data was handed out at each position
NUM_CLASSES, BATCH_SAMPLES, CONTENT_BYTES = 50, 256, 1_500
OURS, THEIRS, REFERENCE = "#2f6db3", "#d9660f", "#6b6b6b"  # colors
_COLUMNS, _DRAWN_SAMPLES = 3, 9_000  # of the plot
ALL_SHARDS = 1_000_000  # for WebDataset's buffer of shards


@dataclass(frozen=True)
class Data:
    """Sorted samples: all of class 0, all of class 1, and so on, a shard for each class."""

    folder: str
    num_classes: int
    shard_samples: int

    @property
    def num_samples(self) -> int:
        return self.num_classes * self.shard_samples

    @property
    def urls(self) -> list[str]:
        return [f"{self.folder}/{shard:06d}.tar" for shard in range(self.num_classes)]


@dataclass(frozen=True)
class Method:
    """A way to shuffle.

    Args:
        shown: its name.
        samples: reads an epoch; the flag decides whether shards are shuffled first or read as listed. ``None`` for a
            full shuffle.
        color: in the plot.
    """

    shown: str
    samples: Samples | None
    color: str


def default(data: Data, seed: int, shuffle_shards: bool) -> Iterable[Any]:
    if shuffle_shards:
        return tdr.stream_shards(data.urls, seed=seed)
    listed = tdr.stream_shards(data.urls, shuffle=False, interleave=16)
    return listed.shuffle_samples(buffer_size=10_000, max_buffer_bytes=64 << 20, seed=seed)


def ours(*, interleave: int = 1, buffer: int = 0) -> Samples:
    def samples(data: Data, seed: int, shuffle_shards: bool) -> Iterable[Any]:
        pipe: Any = IterableWrapper(data.urls)
        if shuffle_shards:
            pipe = pipe.shuffle_shards(seed=seed)
        pipe = pipe.async_prefetch(interleave=interleave).shard_tar_reader(interleave=interleave)
        if buffer:
            pipe = pipe.shuffle_samples(buffer_size=buffer, seed=seed)
        chain: Iterable[Any] = pipe
        return chain

    return samples


def webdataset(buffer: int) -> Samples:
    def samples(data: Data, seed: int, shuffle_shards: bool) -> Iterable[Any]:
        import webdataset

        shards = webdataset.WebDataset(data.urls, shardshuffle=ALL_SHARDS if shuffle_shards else False, seed=seed)
        shuffled: Iterable[Any] = shards.shuffle(buffer, initial=buffer, seed=seed)
        return shuffled

    return samples


def full_shuffle(data: Data, seed: int) -> Order:
    return np.random.default_rng(seed).permutation(data.num_samples)


def as_order(data: Data, samples: Iterable[Any]) -> Order:
    order = np.fromiter((int(sample["__key__"]) for sample in samples), np.int64)
    if not np.array_equal(np.sort(order), np.arange(data.num_samples)):
        raise RuntimeError("Not each sample exactly once: the figures mean nothing.")
    return order


def order_of(method: Method, data: Data, seed: int, shuffle_shards: bool) -> Order:
    """The order of an epoch."""
    if method.samples is None:
        return full_shuffle(data, seed)
    return as_order(data, method.samples(data, seed, shuffle_shards))


def cost_of(method: Method, data: Data) -> tuple[float | None, float | None]:
    """Milliseconds to the first batch, and the peak of Python's memory in an epoch, in MB."""
    if method.samples is None:
        return None, None
    start = time.perf_counter()
    samples = iter(method.samples(data, 0, True))
    for _ in islice(samples, BATCH_SAMPLES):
        pass
    first_s = time.perf_counter() - start
    del samples
    tracemalloc.start()
    try:
        for _ in method.samples(data, 0, True):
            pass
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return first_s * 1e3, peak_bytes / 1e6


def methods(buffer: int, interleave: int, wide: int) -> list[Method]:
    return [
        Method("default", default, OURS),
        Method('shuffle="shards"', ours(), OURS),
        Method(f"interleave {interleave}", ours(interleave=interleave), OURS),
        Method(f"buffer {buffer:,}", ours(buffer=buffer), OURS),
        Method(f"interleave {interleave} + buffer {buffer:,}", ours(interleave=interleave, buffer=buffer), OURS),
        Method(f"interleave {wide} + buffer {buffer:,}", ours(interleave=wide, buffer=buffer), OURS),
        Method(f"WebDataset's buffer {buffer:,}", webdataset(buffer), THEIRS),
        Method("full shuffle", None, REFERENCE),
    ]


def batches_of_classes(order: Order, data: Data) -> npt.NDArray[np.int64]:
    """How many samples of each class are in each full batch: B x C."""
    num_batches = len(order) // BATCH_SAMPLES
    classes = (order // data.shard_samples)[: num_batches * BATCH_SAMPLES].reshape(num_batches, BATCH_SAMPLES)
    return np.stack([np.bincount(batch, minlength=data.num_classes) for batch in classes])


def batch_entropy(order: Order, data: Data) -> float:
    """Mean entropy of the labels in a batch, in bits."""
    share = batches_of_classes(order, data) / BATCH_SAMPLES
    return float(-(share * np.log2(share, where=share > 0, out=np.zeros_like(share))).sum(axis=1).mean())


def classes_in_batch(order: Order, data: Data) -> float:
    """Mean number of classes in a batch."""
    return float((batches_of_classes(order, data) > 0).sum(axis=1).mean())


def same_neighbours(order: Order, data: Data) -> float:
    """Share of samples that are followed by one of their own class."""
    classes = order // data.shard_samples
    return float((classes[1:] == classes[:-1]).mean())


def rank_correlation(order: Order) -> float:
    """Spearman's, of a sample's position in the output and in the sorted data; both are ranks already."""
    return abs(float(np.corrcoef(np.arange(len(order)), order)[0, 1]))


@dataclass(frozen=True)
class Quality:
    """What several seeds showed of a method."""

    order: Order  # of the first seed
    entropy_ratio: list[float]
    num_classes: list[float]
    same_neighbours: list[float]
    correlation: list[float]
    correlation_listed: list[float]  # with shards in the order in which they are listed
    first_ms: float | None
    peak_mb: float | None


def measure(method: Method, data: Data, seeds: range) -> Quality | None:
    try:
        orders = [order_of(method, data, seed, True) for seed in seeds]
    except ModuleNotFoundError as error:
        print(f"{method.shown} not measured: {error}\n")
        return None
    listed = [order_of(method, data, seed, False) for seed in seeds]
    full = [full_shuffle(data, seed) for seed in seeds]
    return Quality(
        orders[0],
        [batch_entropy(a, data) / batch_entropy(b, data) for a, b in zip(orders, full, strict=True)],
        [classes_in_batch(order, data) for order in orders],
        [same_neighbours(order, data) for order in orders],
        [rank_correlation(order) for order in orders],
        [rank_correlation(order) for order in listed],
        *cost_of(method, data),
    )


COLUMNS = (
    "entropy, ratio to full (min to max)",
    "classes in a batch",
    "next of the same class, %",
    "rank correlation",
    "shards as listed",
    "first batch, ms",
    "peak MB",
)


def print_found(found: dict[str, Quality]) -> None:
    rows = [("method", *COLUMNS)]
    for name, quality in found.items():
        rows.append(
            (
                name,
                spread(quality.entropy_ratio, 3),
                spread(quality.num_classes, 1),
                f"{100 * median(quality.same_neighbours):.1f}",
                f"{median(quality.correlation):.3f}",
                f"{median(quality.correlation_listed):.3f}",
                "-" if quality.first_ms is None else f"{quality.first_ms:,.0f}",
                "-" if quality.peak_mb is None else f"{quality.peak_mb:,.1f}",
            )
        )
    print_table(rows)


def draw(found: dict[str, Quality], colors: dict[str, str], data: Data, path: str) -> None:
    """A panel for each method, and bars."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    plt.rcParams.update({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False})
    rows = math.ceil((len(found) + 1) / _COLUMNS)  # the bars are the last panel
    figure, grid = plt.subplots(rows, _COLUMNS, figsize=(16, 4.3 * rows), squeeze=False)
    figure.set_layout_engine("constrained", h_pad=0.12, wspace=0.03)
    panels, (bars, *unused) = grid.flat[: len(found)], grid.flat[len(found) :]
    heading: dict[str, Any] = {"loc": "left", "fontsize": 12.5, "fontweight": "bold"}
    some = np.sort(
        np.random.default_rng(0).choice(data.num_samples, min(_DRAWN_SAMPLES, data.num_samples), replace=False)
    )
    for panel, (name, quality) in zip(panels, found.items(), strict=True):
        classes = quality.order[some] // data.shard_samples
        panel.scatter(some / 1000, classes, s=9, marker="|", c=colors[name], linewidths=0.6, alpha=0.55)
        panel.set_title(name, color=colors[name], **heading)
        panel.set(xlim=(0, data.num_samples / 1000), ylim=(-1, data.num_classes))
    for panel in unused:
        panel.axis("off")
    for panel in grid[:, 0]:
        panel.set_ylabel("class")
    for panel in panels[-_COLUMNS:]:
        panel.set_xlabel("position in the epoch, thousands of samples")

    for row, (name, quality) in enumerate(found.items()):
        ratio = median(quality.entropy_ratio)
        bars.barh(row, ratio, height=0.42, color=colors[name])
        bars.text(0, row - 0.27, name, va="bottom")
        bars.text(ratio + 0.015, row, f"{ratio:.2f}", va="center")
    bars.set(xlim=(0, 1.12), ylim=(len(found) - 0.6, -0.75), yticks=[], xlabel="ratio to a full shuffle's")
    bars.spines["left"].set_visible(False)
    bars.set_title(f"entropy of labels in a batch of {BATCH_SAMPLES}", **heading)
    figure.suptitle(
        f"When samples of a class come during an epoch: {data.num_samples:,} samples, sorted by class, "
        f"in {data.num_classes} shards of one class each",
        fontsize=16,
    )
    figure.savefig(path, dpi=90)
    plt.close(figure)


def write(folder: str, num_classes: int, shard_samples: int) -> Data:
    content = bytes(CONTENT_BYTES)
    with tdr.ShardWriter(f"{folder}/{{shard:06d}}.tar", max_shard_samples=shard_samples) as writer:
        for i in range(num_classes * shard_samples):
            writer.write({"__key__": f"{i:06d}", "cls": i // shard_samples, "bin": content})
    return Data(folder, num_classes, shard_samples)


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--seeds", type=int, default=None, help="how many (5; with --quick, 1)")
    parser.add_argument("--quick", action="store_true", help="a tenth of each: shows that it runs")
    parser.add_argument("--plot", metavar="PATH", help="where a picture is drawn")
    args = parser.parse_args()
    num_seeds = args.seeds or (1 if args.quick else 5)
    shard_samples, buffer = (100, 500) if args.quick else (1_000, 5_000)
    compared = methods(buffer, interleave=8, wide=32)
    found: dict[str, Quality] = {}
    with tempfile.TemporaryDirectory(prefix="shuffle-quality-") as folder:
        data = write(folder, NUM_CLASSES, shard_samples)
        print(
            f"{data.num_samples:,} samples in {NUM_CLASSES} shards of one class each, batches of {BATCH_SAMPLES}, "
            f"{num_seeds} seed(s){', --quick: too small to mean anything' if args.quick else ''}\n"
            f"{environment({'torchdata_remote', 'webdataset'}, with_store=False)}\n"
        )
        for method in compared:
            if (quality := measure(method, data, range(num_seeds))) is not None:
                found[method.shown] = quality
    print_found(found)
    if args.plot:
        draw(found, {method.shown: method.color for method in compared}, data, args.plot)
        print(f"\ndrawn: {args.plot}")


if __name__ == "__main__":
    main()
