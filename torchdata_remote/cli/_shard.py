"""``torchdata-remote shard``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from ..core.urls import split_url
from ..sharding import shard_dataset
from ._bad_members import CHOICES, HELP, bad_member_choice, policy_of
from ._label_forms import LABEL_OPTIONS, labeller
from ._manifest import print_shard, print_total
from ._options_file import Option, flag, imported, integer, mapping, read_options, seed_number, text
from ._shared import Commands, add_command

_OPTIONS = (
    Option("max_shard_bytes", integer(1), "N", "limit of a shard in bytes, headers and padding included"),
    Option("max_shard_samples", integer(1), "N", "limit of samples in a shard"),
    Option(
        "seed",
        seed_number,
        "N|none",
        "of the random order of all samples (default: 0); none keeps the order of the source",
    ),
    Option("num_workers", integer(0), "N", "worker processes (default: 0, this process writes)"),
    Option("pattern", text, "GLOB", "which files of the source are used"),
    Option("split_name", text, "first|last", "dot at which names of files are split into key and extension"),
    Option("on_bad_member", bad_member_choice, CHOICES, HELP),
    Option("append", flag, None, "add shards to existing ones"),
    Option("overwrite", flag, None, "replace existing shards"),
    Option("resume", flag, None, "start over instead of resuming an interrupted job"),
    Option("quiet", flag, None, "no progress bar, and no line for each shard"),
    Option("provenance", flag, None, "write the origin of each sample beside the shards"),
    Option("storage_options", mapping, "JSON", "for the stores, in fsspec's vocabulary"),
    Option("source_options", mapping, "JSON", "for the source's store, if they differ"),
    *LABEL_OPTIONS,
    Option("transform", text, "MODULE:FUNCTION", "sample -> sample, or None to leave it out"),
)
_POSITIONAL = (Option("source", text, None, ""), Option("template", text, None, ""))


def add(commands: Commands, arguments: Sequence[str]) -> None:
    """Add this command's parser; with ``--options``, source and template may be in the file."""
    from_file = any(word.partition("=")[0] == "--options" for word in arguments)
    parser = add_command(
        commands,
        "shard",
        lambda args: _run(args, parser),
        description="write a dataset to tar shards, in a random order of all its samples. An interrupted job resumes "
        "when it is started again.",
        example="shard photos/ 's3://bucket/train/{shard:06d}.tar' --labels parent-directory --num-workers 4",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    settings: dict[str, Any] = {"nargs": "?"} if from_file else {}
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help="folder of files, tar, tar of tars, or shards; URL, glob or brace range; [*] is a literal star",
        **settings,
    )
    parser.add_argument(
        "template", metavar="TEMPLATE", help="URL of the shards, such as s3://bucket/train/{shard:06d}.tar", **settings
    )
    parser.add_argument(
        "--options",
        metavar="FILE",
        help="JSON or TOML with any of these options, and source and template: max_shard_bytes = 100_000_000. The "
        "command line takes precedence.",
    )
    for option in _OPTIONS:
        option.add_to(parser)


def _run(args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    options = dict(vars(args))
    path = options.pop("options", None)
    known = (*_POSITIONAL, *_OPTIONS)
    try:
        from_file = {} if path is None else read_options(path, known)
        options = {**from_file, **{option.name: options[option.name] for option in known if option.name in options}}
        missing = [argument.name for argument in _POSITIONAL if argument.name not in options]
        if missing:
            parser.error(f"no {' and no '.join(missing)}, neither on the command line nor in {path}")
        if options.get("append") and options.get("overwrite"):
            parser.error("--append adds to existing shards, and --overwrite replaces them: choose one")
        source, template = options.pop("source"), options.pop("template")
        stores = _stores(source, template, options)
        labels = labeller(options, lambda url: stores.get(split_url(url)[0]))
        if labels is not None:
            options["labels"] = labels
        if "transform" in options:
            options["transform"] = imported(options["transform"])
    except argparse.ArgumentTypeError as error:
        parser.error(str(error))
    quiet = options.pop("quiet", False)
    policy, counter = policy_of(options.get("on_bad_member", "raise"))
    if "on_bad_member" in options:
        options["on_bad_member"] = policy
    shards = shard_dataset(source, template, progress=not quiet, **options)
    for shard in [] if quiet else shards:
        print_shard(shard)
    counter.print_total()
    print_total(shards)
    return 0


def _stores(source: str, template: str, options: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return storage options by scheme; those of the source take precedence."""
    stores = {split_url(template)[0]: options.get("storage_options", {})}
    if "source_options" in options:
        stores[split_url(source)[0]] = options["source_options"]
    return stores
