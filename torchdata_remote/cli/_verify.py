"""``torchdata-remote verify``."""

from __future__ import annotations

import argparse
import json

from ..inspection.verification import Fault, verify_shards
from ._shared import Commands, add_command, add_storage_options, printable, say


def add(commands: Commands) -> None:
    """Tell the command line of this command."""
    parser = add_command(
        commands,
        "verify",
        _run,
        does="compare every shard of a folder with the manifest and its index. All bytes are read: sizes, MD5, CRC-32, "
        "numbers of samples and every header are compared; so is which shards there are. Each fault is a line, and "
        "the exit status is 1 if there is one.",
        example="verify s3://bucket/train/",
    )
    parser.add_argument("url", help="folder of shards, or its manifest")
    parser.add_argument("--json", action="store_true", help="print JSON, at the end")
    add_storage_options(parser)


def _run(chosen: argparse.Namespace) -> int:
    def tell(url: str, faults: list[Fault]) -> None:
        for fault in faults:
            say(f"{printable(fault.url)}: {printable(fault.what)}")

    found = verify_shards(
        chosen.url,
        on_checked=(lambda url, faults: None) if chosen.json else tell,
        storage_options=chosen.storage_options,
    )
    if chosen.json:
        say(json.dumps({**vars(found), "faults": [fault._asdict() for fault in found.faults]}, indent=1))
    else:
        for reason, number in found.bad_members.items():
            say(f"{number:,} members cannot be part of a sample: {printable(reason)} (on_bad_member=)")
        number = len(found.faults)
        result = "all as the manifest says" if not number else f"{number:,} fault{'s' if number > 1 else ''}"
        say(f"{found.num_samples:,} samples in {found.num_shards:,} shards, {found.num_bytes:,} bytes read: {result}")
    return 1 if found.faults else 0
