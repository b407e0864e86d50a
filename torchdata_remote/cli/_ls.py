"""``torchdata-remote ls``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator

from ..core.options import RetryPolicy, StorageOptions
from ..core.urls import RemoteUrl, redact
from ..errors import EmptyListingError
from ..fetch.listing.sources import find_object, list_source
from ._shared import Commands, add_command, add_storage_options, print_line, printable
from ._text_table import aligned


def add(commands: Commands) -> None:
    """Add this command's parser."""
    parser = add_command(
        commands,
        "ls",
        _run,
        description="list objects: bytes, number of samples if the URL is that of a manifest, URL. An empty listing is "
        "an error.",
        example="ls --recursive s3://bucket/train/",
    )
    parser.add_argument(
        "url", help="folder or prefix, glob, brace range, manifest, or one object; [*] is a literal star"
    )
    parser.add_argument("--recursive", action="store_true", help="enter the folders below a prefix")
    parser.add_argument("--long", action="store_true", help="show etags too")
    parser.add_argument(
        "--json",
        action="store_true",
        help="print a line of JSON for each object: url, num_bytes, num_samples, etag; null is unknown",
    )
    parser.add_argument("--pattern", help="glob that base names match, or paths below the URL if it has a slash")
    add_storage_options(parser)
    parser.set_defaults(quiet=sys.stdout.isatty())  # its lines are progress enough


def _run(args: argparse.Namespace) -> int:
    options, retry = StorageOptions(args.storage_options), RetryPolicy()
    listed = list_source(args.url, pattern=args.pattern, recursive=args.recursive, options=options, retry=retry)
    found = (_sized(one, options, retry) if one.size is None else one for one in listed)
    if args.json:
        _print_json(found)
    else:
        _print_table(found, long=args.long)
    return 0


def _sized(url: RemoteUrl, options: StorageOptions, retry: RetryPolicy) -> RemoteUrl:
    found = find_object(url, options, retry)
    if found is None:
        raise EmptyListingError(f"{redact(url)}: there is no such object.", url=redact(url))
    return found


def _print_json(found: Iterable[RemoteUrl]) -> None:
    for url in found:
        line = {"url": redact(url), "num_bytes": url.size, "num_samples": url.num_samples, "etag": url.etag}
        print_line(json.dumps(line))


def _print_table(found: Iterable[RemoteUrl], *, long: bool) -> None:
    num_objects = num_bytes = num_samples = 0

    def rows() -> Iterator[tuple[str, ...]]:
        nonlocal num_objects, num_bytes, num_samples
        yield "bytes", "samples", *(["etag"] if long else []), "url"
        for url in found:
            num_objects += 1
            num_bytes += url.size or 0
            num_samples += url.num_samples or 0
            size = "?" if url.size is None else f"{url.size:,}"
            samples = "" if url.num_samples is None else f"{url.num_samples:,}"
            yield size, samples, *([printable(url.etag or "-")] if long else []), printable(redact(url))

    for line in aligned(rows(), ">><<" if long else ">><"):
        print_line(line)
    samples = f", {num_samples:,} samples" if num_samples else ""
    print_line(f"{num_bytes:,} bytes in {num_objects:,} objects{samples}")
