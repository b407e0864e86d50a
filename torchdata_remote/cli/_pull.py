"""``torchdata-remote pull``."""

from __future__ import annotations

import argparse

from ..service.transfer import pull
from ._shared import Commands, print_line, printable
from ._transfer import add_transfer_command, run_transfer


def add(commands: Commands) -> None:
    """Add this command's parser."""
    add_transfer_command(
        commands,
        "pull",
        _run,
        description="copy a dataset of a service into a folder; only files that the folder does not have. An "
        "interrupted pull resumes when it is started again; several that share the folder fetch each file "
        "once.",
        example="pull datasets://storage:8080/photos /datasets/photos",
        positional={
            "url": "datasets://host:port/name, or a folder in it",
            "folder": "created if it does not exist",
        },
        delete="remove files from the folder that the dataset does not have, also those that were not pulled",
    )


def _run(args: argparse.Namespace) -> int:
    summary = run_transfer(args, pull, args.url, args.folder, verb="fetched")
    print_line(f"{printable(args.folder)}: {summary}")
    return 0
