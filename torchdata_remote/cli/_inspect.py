"""``torchdata-remote inspect``."""

from __future__ import annotations

import argparse
import dataclasses
import json
from statistics import median
from typing import Any

from ..core.options import RetryPolicy, StorageOptions
from ..core.urls import redact
from ..fetch.listing.shard_set import ShardSet, find_shards
from ..inspection import ShardContents, inspect_shard
from ._shared import Commands, add_command, add_storage_options, count_or_none, print_line, printable

_MAX_LABELS = 20


def add(commands: Commands) -> None:
    """Add this command's parser."""
    parser = add_command(
        commands,
        "inspect",
        _run,
        description="inspect a tar shard: members, keys, sizes, labels, first samples. Only headers are read, by "
        "ranged requests; a compressed shard is read as a whole. For a folder or a manifest the first "
        "shard is inspected, and the manifest is summarized.",
        example="inspect --samples 3 s3://bucket/train/000000.tar",
    )
    parser.add_argument("url", help="shard, folder of shards, or manifest")
    parser.add_argument(
        "--samples", type=count_or_none, default=5, metavar="N", help="first samples to show (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_storage_options(parser)


def _run(args: argparse.Namespace) -> int:
    found = find_shards(args.url, StorageOptions(args.storage_options), RetryPolicy())
    contents = inspect_shard(found.shards[0], num_samples=args.samples, storage_options=args.storage_options)
    if args.json:
        extensions = {name: one._asdict() for name, one in contents.extensions.items()}
        shard = {**dataclasses.asdict(contents), "extensions": extensions}
        print_line(json.dumps({"url": redact(args.url), "set": _summary(found), "shard": shard}, indent=1))
        return 0
    if found.manifest_url is not None or len(found.shards) > 1:
        _print_set(_summary(found))
    _print_shard(contents)
    return 0


def _summary(found: ShardSet) -> dict[str, Any]:
    """Summarize all shards without reading one."""
    sizes = [one.size for one in found.shards if one.size is not None]
    samples = [one.num_samples for one in found.shards if one.num_samples is not None]
    return {
        "manifest_url": None if found.manifest_url is None else redact(found.manifest_url),
        "num_shards": len(found.shards),
        "num_bytes": sum(sizes) if len(sizes) == len(found.shards) else None,
        "num_samples": sum(samples) if len(samples) == len(found.shards) else None,
        "shard_bytes": _spread(sizes),
        "shard_samples": _spread(samples),
    }


def _spread(numbers: list[int]) -> dict[str, float] | None:
    return {"min": min(numbers), "median": median(numbers), "max": max(numbers)} if numbers else None


def _print_set(summary: dict[str, Any]) -> None:
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


def _print_shard(contents: ShardContents) -> None:
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
        print_line(f"  note: {note}")
    print_line()
    print_line(f"  {'extension':<16}{'members':>12}{'min bytes':>16}{'median':>16}{'max':>16}")
    for extension, sizes in contents.extensions.items():
        numbers = f"{sizes.num_members:>12,}{sizes.min_bytes:>16,}{sizes.median_bytes:>16,.0f}{sizes.max_bytes:>16,}"
        print_line(f"  {printable(extension):<16}{numbers}")
    if contents.labels:
        _print_labels(contents.labels)
    if contents.first:
        print_line()
        print_line("  first samples")
    for sample in contents.first:
        member_sizes = ", ".join(f"{printable(name)} {size:,}" for name, size in sample["bytes"].items())
        print_line(f"  {printable(sample['key'])}: {member_sizes}")


def _print_labels(labels: dict[str, int]) -> None:
    frequent = sorted(labels.items(), key=lambda item: (-item[1], item[0]))
    more = "" if len(frequent) <= _MAX_LABELS else f", and {len(frequent) - _MAX_LABELS:,} more"
    print_line()
    print_line(
        f"  {len(labels):,} labels (cls), from {frequent[0][1]:,} to {frequent[-1][1]:,} samples each; "
        "the most frequent:"
    )
    print_line("  " + ", ".join(f"{printable(label)}: {number:,}" for label, number in frequent[:_MAX_LABELS]) + more)
