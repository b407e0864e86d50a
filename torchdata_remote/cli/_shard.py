"""``torchdata-remote shard``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from ..core.urls import split_url
from ..sharding.shard_dataset import shard_dataset
from ._bad_members import CHOICES, HELP, bad_member_choice, policy_of
from ._label_forms import LABEL_OPTIONS, labeller
from ._manifest import say_shard, say_total
from ._options_file import Option, flag, imported, integer, mapping, read_options, seed_number, text
from ._shared import Commands, add_command

_OPTIONS = (
    Option("max_shard_bytes", integer(1), "N", "limit of a shard in bytes, headers and padding included"),
    Option("max_shard_samples", integer(1), "N", "limit of samples in a shard"),
    Option("seed", seed_number, "N|none", "of the random order of all samples (default: 0); none keeps the source's"),
    Option("num_workers", integer(0), "N", "processes that write (default: 0, this one)"),
    Option("pattern", text, "GLOB", "which files of the source are taken"),
    Option("on_bad_member", bad_member_choice, CHOICES, HELP),
    Option("append", flag, None, "add shards to those that are there"),
    Option("overwrite", flag, None, "replace what is there"),
    Option("resume", flag, None, "begin anew, where a job like this one was stopped"),
    Option("quiet", flag, None, "show no progress, and no line for each shard"),
    Option("provenance", flag, None, "write beside the shards where each sample came from"),
    Option("storage_options", mapping, "JSON", "for the stores, in fsspec's vocabulary"),
    Option("source_options", mapping, "JSON", "for the source's store, if others"),
    *LABEL_OPTIONS,
    Option("transform", text, "MODULE:FUNCTION", "sample -> sample, or None to leave it out"),
)
_PLACES = (Option("source", text, None, ""), Option("template", text, None, ""))


def add(commands: Commands, given: Sequence[str]) -> None:
    """Tell the command line of this command; source and template may be left out where a file may tell them."""
    from_file = any(word.partition("=")[0] == "--options" for word in given)
    parser = add_command(
        commands,
        "shard",
        lambda chosen: _run(chosen, parser),
        does="write a data set into tar shards, in a random order of all its samples. A job that was stopped goes on "
        "when it is started again.",
        example="shard photos/ 's3://bucket/train/{shard:06d}.tar' --labels parent-directory --num-workers 4",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    places: dict[str, Any] = {"nargs": "?"} if from_file else {}
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help="folder of files, tar, tar of tars, or shards; URL, glob or brace range; [*] is a star of a name",
        **places,
    )
    parser.add_argument(
        "template", metavar="TEMPLATE", help="URL of the shards, such as s3://bucket/train/{shard:06d}.tar", **places
    )
    parser.add_argument(
        "--options",
        metavar="FILE",
        help="JSON or TOML with any of these options, and source and template: max_shard_bytes = 100_000_000. What "
        "the command line says wins.",
    )
    for option in _OPTIONS:
        option.add_to(parser)


def _run(chosen: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    options = dict(vars(chosen))
    path = options.pop("options", None)
    known = (*_PLACES, *_OPTIONS)
    try:
        from_file = {} if path is None else read_options(path, known)
        options = {**from_file, **{option.name: options[option.name] for option in known if option.name in options}}
        missing = [place.name for place in _PLACES if place.name not in options]
        if missing:
            parser.error(f"no {' and no '.join(missing)}, neither on the command line nor in {path}")
        if options.get("append") and options.get("overwrite"):
            parser.error("--append adds to the shards that are there, and --overwrite replaces them: choose one")
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
    policy, counting = policy_of(options.get("on_bad_member", "raise"))
    if "on_bad_member" in options:
        options["on_bad_member"] = policy
    shards = shard_dataset(source, template, progress=not quiet, **options)
    for shard in [] if quiet else shards:
        say_shard(shard)
    counting.say_total()
    say_total(shards)
    return 0


def _stores(source: str, template: str, options: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Storage options by scheme: those of the source go before those of the shards."""
    stores = {split_url(template)[0]: options.get("storage_options", {})}
    if "source_options" in options:
        stores[split_url(source)[0]] = options["source_options"]
    return stores
