"""``torchdata-remote index``."""

from __future__ import annotations

import argparse

from ..core.options import RetryPolicy, StorageOptions
from ..core.urls import redact
from ..fetch.listing.index_file import write_index
from ..fetch.listing.sources import list_source
from ._shared import Commands, add_command, add_quiet, add_storage_options, print_line, printable


def add(commands: Commands) -> None:
    """Add this command's parser."""
    parser = add_command(
        commands,
        "index",
        _run,
        description="write the paths of all objects below a URL as a JSON array. Datasets accept it as index=, so "
        "that millions of objects are listed once. It holds keys of the bucket, or paths below a local "
        "folder.",
        example="index s3://bucket/train/ -o train.json.gz",
    )
    parser.add_argument("url", help="folder or prefix, glob, or brace range")
    parser.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="INDEX",
        help="URL or path to write; compressed by gzip if it ends in .gz",
    )
    parser.add_argument("--pattern", help="glob that base names match, or paths below the URL if it has a slash")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing index")
    add_quiet(parser)
    add_storage_options(parser)


def _run(args: argparse.Namespace) -> int:
    options, retry = StorageOptions(args.storage_options), RetryPolicy()
    objects = list_source(args.url, pattern=args.pattern, recursive=True, options=options, retry=retry)
    num_objects = write_index(args.output, objects, args.url, options=options, overwrite=args.overwrite)
    print_line(f"{num_objects:>10,} objects: {printable(redact(args.output))} written")
    return 0
