"""Commands that show what there is: ``ls``, ``inspect``, ``verify`` and ``show``."""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, pairwise, zip_longest
from typing import TYPE_CHECKING, Any

from ..core.options import RetryPolicy, StorageOptions
from ..core.progress import hidden_unless
from ..core.urls import redact
from .shared import AsJson, Count, CountOrNone, Json, Seed, aligned, bar, list_objects, print_line, printable

if TYPE_CHECKING:
    from ..core.urls import RemoteUrl
    from ..fetch.listing.shard_set import ShardSet
    from ..inspection.shards import ShardContents
    from ..inspection.verification import Fault

_MAX_CLASSES = 20


def ls(
    url: str,
    *,
    recursive: bool = False,
    long: bool = False,
    as_json: AsJson = False,
    pattern: str | None = None,
    storage_options: Json = None,
) -> None:
    """List objects: bytes, number of samples if the URL is that of a manifest, URL.

    An empty listing is an error.

    example: torchdata-remote ls --recursive s3://bucket/train/

    Args:
        url: folder or prefix, glob, brace range, manifest, or one object; [*] is a literal star
        recursive: enter the folders below a prefix
        long: show etags too
        as_json: print a line of JSON for each object: url, num_bytes, num_samples, etag; null is unknown
        pattern: glob that base names match, or paths below the URL if it has a slash
        storage_options: JSON for the store, in fsspec's vocabulary, such as {"endpoint_url": "http://host:9000"}
    """
    from ..errors import EmptyListingError
    from ..fetch.listing.sources import find_object

    options, total = StorageOptions(storage_options), Counter[str]()

    def listed() -> Iterator[RemoteUrl]:
        for one in list_objects(url, storage_options, pattern=pattern, recursive=recursive):
            found = find_object(one, options, RetryPolicy()) if one.size is None else one
            if found is None:
                raise EmptyListingError(f"{redact(one)}: there is no such object.", url=redact(one))
            total.update(objects=1, bytes=found.size or 0, samples=found.num_samples or 0)
            yield found

    with hidden_unless(not sys.stdout.isatty()):  # its lines are progress enough
        if as_json:
            for one in listed():
                row = {"url": redact(one), "num_bytes": one.size, "num_samples": one.num_samples, "etag": one.etag}
                print_line(json.dumps(row))
            return
        head = ("bytes", "samples", *(["etag"] if long else []), "url")
        for line in aligned(chain([head], (_row(one, long=long) for one in listed())), ">><<" if long else ">><"):
            print_line(line)
    samples = f", {total['samples']:,} samples" if total["samples"] else ""
    print_line(f"{total['bytes']:,} bytes in {total['objects']:,} objects{samples}")


def _row(one: RemoteUrl, *, long: bool) -> tuple[str, ...]:
    size = "?" if one.size is None else f"{one.size:,}"
    samples = "" if one.num_samples is None else f"{one.num_samples:,}"
    return size, samples, *([printable(one.etag or "-")] if long else []), printable(redact(one))


def inspect(
    url: str,
    *,
    samples: CountOrNone = 5,
    as_json: AsJson = False,
    plot: str | None = None,
    storage_options: Json = None,
) -> None:
    """Inspect a tar shard: members, keys, sizes, classes, first samples.

    Only headers are read, by ranged requests; a compressed shard is read as a whole. For a folder or a manifest the
    first shard is inspected, and the manifest is summarized. Classes have the names of classes.json beside the shard.

    example: torchdata-remote inspect --samples 3 s3://bucket/train/000000.tar

    Args:
        url: shard, folder of shards, or manifest
        samples: first samples to show
        as_json: print one JSON document: url, set, shard
        plot: picture to write, with the histograms of classes and of sizes; the extension is the format
        storage_options: JSON for the store, in fsspec's vocabulary, such as {"endpoint_url": "http://host:9000"}
    """
    from dataclasses import asdict

    from ..fetch.listing.shard_set import find_shards
    from ..inspection.shards import inspect_shard

    if plot is not None:
        from ..inspection.plots import draw_contents, require_plot, save_plot

        require_plot(plot)
    found = find_shards(url, StorageOptions(storage_options), RetryPolicy())
    contents = inspect_shard(found.shards[0], num_samples=samples, storage_options=storage_options)
    if as_json:
        document = {"url": redact(url), "set": _summary(found), "shard": asdict(contents)}
        print_line(json.dumps(document, indent=1))
    else:
        if found.manifest_url is not None or len(found.shards) > 1:
            _print_set(_summary(found))
        _print_shard(contents)
    if plot is not None:
        save_plot(draw_contents(contents, title=printable(contents.url)), plot)


def _summary(found: ShardSet) -> dict[str, Any]:
    """Summarize all shards without reading one."""
    from statistics import median

    summary: dict[str, Any] = {
        "manifest_url": None if found.manifest_url is None else redact(found.manifest_url),
        "num_shards": len(found.shards),
    }
    for what, name in (("bytes", "size"), ("samples", "num_samples")):
        known = [number for one in found.shards if (number := getattr(one, name)) is not None]
        summary[f"num_{what}"] = sum(known) if len(known) == len(found.shards) else None
        spread = {"min": min(known), "median": median(known), "max": max(known)} if known else None
        summary[f"shard_{what}"] = spread
    return summary


def _print_set(summary: Mapping[str, Any]) -> None:
    print_line(printable(summary["manifest_url"] or "no manifest. Write it: torchdata-remote manifest FOLDER"))
    known = [
        f"{summary[f'num_{what}']:,} {what}" for what in ("samples", "bytes") if summary[f"num_{what}"] is not None
    ]
    print_line("  " + ", ".join([f"{summary['num_shards']:,} shards", *known]))
    for what in ("samples", "bytes"):
        if spread := summary[f"shard_{what}"]:
            print_line(f"  {what} a shard: {spread['min']:,} to {spread['max']:,}, median {spread['median']:,.0f}")
    print_line()


def _print_shard(contents: ShardContents) -> None:
    print_line(printable(contents.url))
    print_line(f"  {contents.num_bytes:,} bytes, {contents.num_samples:,} samples, {contents.num_members:,} members")
    if contents.passed_over:
        counts = (f"{kind} {number:,}" for kind, number in contents.passed_over.items())
        print_line(f"  not part of samples: {', '.join(counts)}")
    for reason, number in contents.bad_members.items():
        what = f"{number:,} members that cannot be part of a sample: {printable(reason)} (on_bad_member=)"
        print_line(f"  left out: {what}")
    fraction = contents.fetched_bytes / max(1, contents.num_bytes)
    requests = f"{contents.fetched_bytes:,} bytes ({fraction:.2%}) by {contents.num_requests:,} requests"
    print_line(f"  read for this: {requests}")
    for note in contents.notes:
        print_line(f"  note: {printable(note)}")
    rows = [
        (
            printable(name),
            f"{one.num_members:,}",
            f"{one.min_bytes:,}",
            f"{one.median_bytes:,.0f}",
            f"{one.max_bytes:,}",
        )
        for name, one in contents.extensions.items()
    ]
    _print_table([("member", "count", "min bytes", "median", "max"), *rows], "<>>>>")
    first = [(printable(sample["key"]), *_members_of(sample, contents.class_names)) for sample in contents.first]
    if first:
        _print_table(
            zip(*zip_longest(*first, fillvalue=""), strict=True), "<" * max(map(len, first)), title="first samples"
        )
    _print_classes(contents)
    _print_sizes(contents)


def _members_of(sample: Mapping[str, Any], class_names: Mapping[str, str]) -> Iterator[str]:
    for name, size in sample["bytes"].items():
        content = ""
        if name == "cls" and sample["label"] is not None:
            named = class_names.get(sample["label"])
            content = f' "{printable(sample["label"])}"' + ("" if named is None else f" ({printable(named)})")
        yield f"{printable(name)}{content}, {size:,} byte{'s' * (size != 1)}"


def _print_classes(contents: ShardContents) -> None:
    from ..inspection.shards import ordered_classes

    counts, names = contents.labels or contents.folders, contents.class_names
    if not counts:
        return
    title = f"{len(counts):,} {'classes (cls)' if contents.labels else 'folders of keys'}, {_each(counts.values())}"
    shown, most = ordered_classes(counts), max(counts.values())
    if len(counts) > _MAX_CLASSES:
        title += "; the most frequent:"
        shown = dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:_MAX_CLASSES])
    labels = [
        f"{printable(label)}  {printable(names[label])}" if label in names else printable(label) for label in shown
    ]
    rows = [(label, f"{number:,}", bar(number, most)) for label, number in zip(labels, shown.values(), strict=True)]
    _print_table(rows, "<><", title=title)


def _each(numbers: Collection[int]) -> str:
    least, most = min(numbers), max(numbers)
    return f"{least:,} samples each" if least == most else f"{least:,} to {most:,} samples each"


def _print_sizes(contents: ShardContents) -> None:
    if contents.sample_bytes is None:
        return
    edges, counts = contents.sample_bytes.edges, contents.sample_bytes.counts
    rows = []
    for (low, high), number in zip(pairwise(edges), counts, strict=True):
        upto = ("to", f"{high - 1:,}") if high - low > 1 else ("", "")
        rows.append((f"{low:,}", *upto, f" {number:,}", f" {bar(number, max(counts))}"))
    _print_table(rows, "><>><", title="bytes of a sample, all its members together", gap=" ")


def _print_table(rows: Iterable[Sequence[str]], alignment: str, *, title: str = "", gap: str = "  ") -> None:
    print_line()
    for line in chain([title] if title else [], aligned(rows, alignment, gap=gap)):
        print_line("  " + line)


def verify(url: str, *, as_json: AsJson = False, quiet: bool = False, storage_options: Json = None) -> int:
    """Compare every shard of a folder with the manifest, its index and its keys.

    All bytes are read: sizes, MD5, CRC-32, numbers of samples and every header are compared, and the listing too. Each
    fault is a line; the exit status is 1 if there are any.

    example: torchdata-remote verify s3://bucket/train/

    Args:
        url: folder of shards, or its manifest
        as_json: print one JSON document at the end: manifest_url, num_shards, num_samples, num_bytes, faults,
            bad_members, num_links
        quiet: no progress bar
        storage_options: JSON for the store, in fsspec's vocabulary, such as {"endpoint_url": "http://host:9000"}
    """
    from ..inspection.verification import verify_shards

    def report(fault: Fault) -> None:
        if not as_json:
            print_line(f"{printable(fault.url)}  {printable(fault.what)}")

    found = verify_shards(url, on_fault=report, progress=not quiet, storage_options=storage_options)
    number = len(found.faults)
    if as_json:
        print_line(json.dumps({**vars(found), "faults": [fault._asdict() for fault in found.faults]}, indent=1))
        return int(number > 0)
    for reason, count in found.bad_members.items():
        print_line(f"{count:,} members cannot be part of a sample: {printable(reason)} (on_bad_member=)")
    if found.num_links:
        print_line(f"{found.num_links:,} links, which readers leave out (tar --hard-dereference --dereference)")
    result = f"{number:,} fault{'s' * (number > 1)}" if number else "no faults"
    what = f"{found.num_samples:,} samples in {found.num_shards:,} shards, {found.num_bytes:,} bytes read"
    print_line(f"{what}: {result}")
    return int(number > 0)


def show(
    url: str,
    *,
    grid: str,
    num: Count = 36,
    columns: Count | None = None,
    cell_pixels: Count = 160,
    seed: Seed = None,
    as_json: AsJson = False,
    storage_options: Json = None,
) -> None:
    """Draw a contact sheet of images with their labels.

    Labels are class names if classes.json is beside the shards, else numbers, else keys. Only the images that are drawn
    are read.

    example: torchdata-remote show s3://bucket/train/ --grid out.png

    Args:
        url: folder of shards, manifest, glob, or one shard
        grid: picture to write, such as out.png
        num: images
        columns: images in a row; as many as rows by default
        cell_pixels: side of an image's cell
        seed: draw samples at random from all shards, instead of the first ones
        as_json: print one JSON document: grid, num_images, width, height, and url, key, label and caption of all images
        storage_options: JSON for the store, in fsspec's vocabulary, such as {"endpoint_url": "http://host:9000"}
    """
    from ..errors import LabelError
    from ..inspection.pictures import contact_sheet, pictures, save_picture
    from ..inspection.shards import class_names

    names: dict[str, str] | None = None
    cells, shown = [], []
    found = pictures(url, num_pictures=num, cell_pixels=cell_pixels, seed=seed, storage_options=storage_options)
    for picture in found:
        if names is None:
            try:
                names = class_names(picture.url, storage_options=storage_options)
            except LabelError as error:
                print(f"torchdata-remote: {error} Labels are shown without names.", file=sys.stderr)
                names = {}
        caption = picture.caption(names)
        cells.append((picture.image, caption))
        shown.append({"url": redact(picture.url), "key": picture.key, "label": picture.label, "caption": caption})
    sheet = contact_sheet(cells, num_columns=columns or math.ceil(math.sqrt(len(cells))), cell_pixels=cell_pixels)
    save_picture(sheet.save, grid)
    if as_json:
        sizes = {"num_images": len(cells), "width": sheet.width, "height": sheet.height}
        print_line(json.dumps({"grid": grid, **sizes, "images": shown}, indent=1))
    else:
        print_line(f"{len(cells):,} images, {sheet.width:,} x {sheet.height:,} pixels: {printable(grid)}")
