"""``torchdata-remote ls``."""

from __future__ import annotations

import argparse
import sys

from ..core.urls import redact
from ..fetch.listing.shard_set import list_objects
from ._shared import Commands, add_command, add_storage_options, print_line, printable


def add(commands: Commands) -> None:
    """Add this command's parser."""
    parser = add_command(
        commands,
        "ls",
        _run,
        description="list objects: bytes, number of samples if a manifest beside them has it, URL. An empty listing "
        "is an error.",
        example="ls --recursive s3://bucket/train/",
    )
    parser.add_argument(
        "url", help="folder or prefix, glob, brace range, manifest, or one object; [*] is a literal star"
    )
    parser.add_argument("--recursive", action="store_true", help="enter the folders below a prefix")
    parser.add_argument("--long", action="store_true", help="show etags too")
    parser.add_argument("--pattern", help="glob that base names match, or paths below the URL if it has a slash")
    add_storage_options(parser)
    parser.set_defaults(quiet=sys.stdout.isatty())  # its lines are progress enough


def _run(args: argparse.Namespace) -> int:
    found = list_objects(args.url, pattern=args.pattern, recursive=args.recursive, storage_options=args.storage_options)
    num_objects = num_bytes = num_samples = 0
    for url in found:
        num_objects += 1
        num_bytes += url.size or 0
        num_samples += url.num_samples or 0
        samples = "" if url.num_samples is None else f"{url.num_samples:,}"
        etag = f"{printable(url.etag or '-'):<34}  " if args.long else ""
        size = "?" if url.size is None else f"{url.size:,}"
        print_line(f"{size:>17}  {samples:>11}  {etag}{printable(redact(url))}")
    samples = f", {num_samples:,} samples" if num_samples else ""
    print_line(f"{num_bytes:>17,}  bytes in {num_objects:,} objects{samples}")
    return 0
