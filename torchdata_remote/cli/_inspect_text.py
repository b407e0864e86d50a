"""What ``torchdata-remote inspect`` prints."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import pairwise
from typing import Any

from ..formats.images import IMAGE_FORMATS
from ..inspection import ShardContents, ordered_classes
from ._shared import print_line, printable
from ._text_table import aligned, bar

_MAX_CLASSES = 20
_CONTENTS = {**{name: f"{kind} image" for name, kind in IMAGE_FORMATS.items()}, "json": "JSON", "npy": "NumPy array"}


def print_set(summary: Mapping[str, Any]) -> None:
    """Print what is known of all shards."""
    manifest = summary["manifest_url"]
    print_line(
        printable(manifest) if manifest is not None else "no manifest. Write it: torchdata-remote manifest FOLDER"
    )
    parts = [f"{summary['num_shards']:,} shards"]
    parts += [
        f"{summary[f'num_{what}']:,} {what}" for what in ("samples", "bytes") if summary[f"num_{what}"] is not None
    ]
    print_line("  " + ", ".join(parts))
    for what in ("samples", "bytes"):
        spread = summary[f"shard_{what}"]
        if spread is not None:
            print_line(f"  {what} a shard: {spread['min']:,} to {spread['max']:,}, median {spread['median']:,.0f}")
    print_line()


def print_shard(contents: ShardContents) -> None:
    """Print what is in a shard."""
    print_line(printable(contents.url))
    print_line(f"  {contents.num_bytes:,} bytes, {contents.num_samples:,} samples, {contents.num_members:,} members")
    if contents.passed_over:
        print_line(
            "  not part of samples: " + ", ".join(f"{kind} {number:,}" for kind, number in contents.passed_over.items())
        )
    for reason, number in contents.bad_members.items():
        print_line(
            f"  left out: {number:,} members that cannot be part of a sample: {printable(reason)} (on_bad_member=)"
        )
    fraction = contents.fetched_bytes / max(1, contents.num_bytes)
    print_line(
        f"  read for this: {contents.fetched_bytes:,} bytes ({fraction:.2%}) by {contents.num_requests:,} requests"
    )
    for note in contents.notes:
        print_line(f"  note: {printable(note)}")
    _print_members(contents)
    _print_first(contents)
    _print_classes(contents)
    _print_sizes(contents)


def _print_members(contents: ShardContents) -> None:
    rows = [("member", "count", "min bytes", "median", "max", "content")]
    for name, sizes in contents.extensions.items():
        content = _labels(contents) if name == "cls" else _CONTENTS.get(name.rpartition(".")[2].lower(), "")
        numbers = (
            f"{sizes.num_members:,}",
            f"{sizes.min_bytes:,}",
            f"{sizes.median_bytes:,.0f}",
            f"{sizes.max_bytes:,}",
        )
        rows.append((printable(name), *numbers, content))
    _print_table(rows, "<>>>><")


def _labels(contents: ShardContents) -> str:
    """What the ``cls`` members are."""
    if not contents.labels:
        return ""
    sizes = contents.extensions["cls"]
    lengths = _bytes(sizes.min_bytes) if sizes.min_bytes == sizes.max_bytes else f"up to {_bytes(sizes.max_bytes)}"
    labels = list(ordered_classes(contents.labels))
    values = _quoted(labels[0]) if len(labels) == 1 else f"{_quoted(labels[0])} to {_quoted(labels[-1])}"
    return f"the class as text, {lengths} each: {values}"


def _print_first(contents: ShardContents) -> None:
    rows = []
    for sample in contents.first:
        members = []
        for name, size in sample["bytes"].items():
            label = sample["label"] if name == "cls" else None
            content = "" if label is None else f" {_quoted(label)}{_in_brackets(contents.class_names.get(label))}"
            members.append(f"{printable(name)}{content}, {_bytes(size)}")
        rows.append((printable(sample["key"]), *members))
    if rows:
        columns = max(map(len, rows))
        padded = [(*row, *[""] * (columns - len(row))) for row in rows]
        _print_table([("first samples", *[""] * (columns - 1)), *padded], "<" * columns)


def _print_classes(contents: ShardContents) -> None:
    counts = contents.labels or contents.folders
    if not counts:
        return
    kind = "classes (cls)" if contents.labels else "folders of keys"
    notes = ["names from classes.json"] if contents.class_names else []
    shown, rest = ordered_classes(counts), []
    if len(counts) > _MAX_CLASSES:
        notes.append("the most frequent:")
        by_number = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        shown, rest = dict(by_number[:_MAX_CLASSES]), by_number[_MAX_CLASSES:]
    print_line()
    print_line("  " + "; ".join([f"{len(counts):,} {kind}, {_each(counts.values())}", *notes]))
    most = max(counts.values())
    rows = []
    for label, number in shown.items():
        name = [printable(contents.class_names.get(label, ""))] if contents.class_names else []
        rows.append((printable(label), *name, f"{number:,}", bar(number, most)))
    _print_table(rows, "><><" if contents.class_names else "<><", before=False)
    if rest:
        print_line(f"  and {len(rest):,} more, {_each([number for _, number in rest])}")


def _each(numbers: Collection[int]) -> str:
    least, most = min(numbers), max(numbers)
    return f"{least:,} samples each" if least == most else f"{least:,} to {most:,} samples each"


def _print_sizes(contents: ShardContents) -> None:
    if contents.sample_bytes is None:
        return
    edges, most = contents.sample_bytes.edges, max(contents.sample_bytes.counts)
    rows = []
    for (low, high), number in zip(pairwise(edges), contents.sample_bytes.counts, strict=True):
        upto = ("to", f"{high - 1:,}") if high - low > 1 else ("", "")
        rows.append((f"{low:,}", *upto, f" {number:,}", f" {bar(number, most)}"))
    print_line()
    print_line("  bytes of a sample, all its members together")
    _print_table(rows, "><>><", before=False, gap=" ")


def _print_table(rows: Iterable[tuple[str, ...]], alignment: str, *, before: bool = True, gap: str = "  ") -> None:
    if before:
        print_line()
    for line in aligned(rows, alignment, gap=gap):
        print_line("  " + line)


def _quoted(label: str) -> str:
    return f'"{printable(label)}"'


def _in_brackets(name: str | None) -> str:
    return "" if name is None else f" ({printable(name)})"


def _bytes(number: int) -> str:
    return f"{number:,} byte" + "s" * (number != 1)
