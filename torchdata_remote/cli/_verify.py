"""``torchdata-remote verify``."""

from __future__ import annotations

import argparse
import json

from ..fetch.listing.shard_set import base_name
from ..formats.key_index import companion_urls
from ..formats.manifest import MANIFEST_NAME
from ..inspection import Fault, verify_shards
from ._shared import Commands, add_command, add_quiet, add_storage_options, print_line, printable


def add(commands: Commands) -> None:
    """Add this command's parser."""
    parser = add_command(
        commands,
        "verify",
        _run,
        description="compare every shard of a folder with the manifest, its index and its keys. All bytes are read: "
        "sizes, MD5, CRC-32, numbers of samples and every header are compared, and the listing too. Each fault is a "
        "line; the exit status is 1 if there are any.",
        example="verify s3://bucket/train/",
    )
    parser.add_argument("url", help="folder of shards, or its manifest")
    parser.add_argument(
        "--json",
        action="store_true",
        help="print one JSON document at the end: manifest_url, num_shards, num_samples, num_bytes, faults, "
        "bad_members, num_links",
    )
    add_quiet(parser)
    add_storage_options(parser)


def _run(args: argparse.Namespace) -> int:
    width = 0

    def report(url: str, faults: list[Fault]) -> None:
        nonlocal width
        own = 0 if base_name(url) == MANIFEST_NAME else max(map(len, map(printable, companion_urls(url))))
        width = max([width, own, *(len(printable(fault.url)) for fault in faults)])
        for fault in faults:
            print_line(f"{printable(fault.url):<{width}}  {printable(fault.what)}")

    found = verify_shards(
        args.url,
        on_checked=(lambda url, faults: None) if args.json else report,
        progress=not args.quiet,
        storage_options=args.storage_options,
    )
    if args.json:
        print_line(json.dumps({**vars(found), "faults": [fault._asdict() for fault in found.faults]}, indent=1))
    else:
        for reason, number in found.bad_members.items():
            print_line(f"{number:,} members cannot be part of a sample: {printable(reason)} (on_bad_member=)")
        if found.num_links:
            print_line(f"{found.num_links:,} links, which readers leave out (tar --hard-dereference --dereference)")
        number = len(found.faults)
        result = "no faults" if not number else f"{number:,} fault{'s' if number > 1 else ''}"
        print_line(
            f"{found.num_samples:,} samples in {found.num_shards:,} shards, {found.num_bytes:,} bytes read: {result}"
        )
    return 1 if found.faults else 0
