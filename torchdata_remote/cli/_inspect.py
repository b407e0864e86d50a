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
from ..inspection.contents import ShardContents, inspect_shard
from ._shared import Commands, add_command, add_storage_options, count_or_none, printable, say

_MOST_LABELS = 20


def add(commands: Commands) -> None:
    """Tell the command line of this command."""
    parser = add_command(
        commands,
        "inspect",
        _run,
        does="look into a tar shard: members, keys, sizes, labels, first samples. Headers are read by ranged requests, "
        "and what lies between them is not; a compressed shard is read as a whole. Of a folder, or a manifest, the "
        "first shard is looked into, and the manifest is summed up.",
        example="inspect --samples 3 s3://bucket/train/000000.tar",
    )
    parser.add_argument("url", help="shard, folder of shards, or manifest")
    parser.add_argument(
        "--samples", type=count_or_none, default=5, metavar="N", help="first samples to tell of (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_storage_options(parser)


def _run(chosen: argparse.Namespace) -> int:
    found = find_shards(chosen.url, StorageOptions(chosen.storage_options), RetryPolicy())
    contents = inspect_shard(found.shards[0], num_samples=chosen.samples, storage_options=chosen.storage_options)
    if chosen.json:
        extensions = {name: one._asdict() for name, one in contents.extensions.items()}
        shard = {**dataclasses.asdict(contents), "extensions": extensions}
        say(json.dumps({"url": redact(chosen.url), "set": _summary(found), "shard": shard}, indent=1))
        return 0
    if found.manifest_url is not None or len(found.shards) > 1:
        _say_set(_summary(found))
    _say_shard(contents)
    return 0


def _summary(found: ShardSet) -> dict[str, Any]:
    """What is known of all shards without reading one."""
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


def _say_set(summary: dict[str, Any]) -> None:
    manifest = summary["manifest_url"]
    say(printable(manifest) if manifest is not None else "no manifest: torchdata-remote manifest FOLDER writes it")
    parts = [f"{summary['num_shards']:,} shards"]
    parts += [
        f"{summary[f'num_{what}']:,} {what}" for what in ("samples", "bytes") if summary[f"num_{what}"] is not None
    ]
    say("  " + ", ".join(parts))
    for what in ("samples", "bytes"):
        spread = summary[f"shard_{what}"]
        if spread is not None:
            say(f"  {what} a shard: {spread['min']:,} to {spread['max']:,}, median {spread['median']:,.0f}")
    say()


def _say_shard(contents: ShardContents) -> None:
    say(printable(contents.url))
    say(f"  {contents.num_bytes:,} bytes, {contents.num_samples:,} samples, {contents.num_members:,} members")
    if contents.passed_over:
        say("  passed over: " + ", ".join(f"{kind} {number:,}" for kind, number in contents.passed_over.items()))
    for reason, number in contents.bad_members.items():
        say(f"  left out: {number:,} members that cannot be part of a sample: {printable(reason)} (on_bad_member=)")
    part = contents.fetched_bytes / max(1, contents.num_bytes)
    say(f"  read for this: {contents.fetched_bytes:,} bytes ({part:.2%}) by {contents.num_requests:,} requests")
    for note in contents.notes:
        say(f"  note: {note}")
    say()
    say(f"  {'extension':<16}{'members':>12}{'min bytes':>16}{'median':>16}{'max':>16}")
    for extension, sizes in contents.extensions.items():
        numbers = f"{sizes.num_members:>12,}{sizes.min_bytes:>16,}{sizes.median_bytes:>16,.0f}{sizes.max_bytes:>16,}"
        say(f"  {printable(extension):<16}{numbers}")
    if contents.labels:
        _say_labels(contents.labels)
    if contents.first:
        say()
        say("  first samples")
    for sample in contents.first:
        sizes_of_it = ", ".join(f"{printable(name)} {size:,}" for name, size in sample["bytes"].items())
        say(f"  {printable(sample['key'])}: {sizes_of_it}")


def _say_labels(labels: dict[str, int]) -> None:
    often = sorted(labels.items(), key=lambda item: (-item[1], item[0]))
    more = "" if len(often) <= _MOST_LABELS else f", and {len(often) - _MOST_LABELS:,} more"
    say()
    say(f"  {len(labels):,} labels (cls), from {often[0][1]:,} to {often[-1][1]:,} samples each; the most frequent:")
    say("  " + ", ".join(f"{printable(label)}: {number:,}" for label, number in often[:_MOST_LABELS]) + more)
