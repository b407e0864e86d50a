"""``torchdata-remote push``."""

from __future__ import annotations

import argparse

from ..core.urls import redact
from ..service.transfer import push
from ._shared import Commands, print_line, printable
from ._transfer import add_transfer_command, run_transfer


def add(commands: Commands) -> None:
    """Add this command's parser."""
    add_transfer_command(
        commands,
        "push",
        _run,
        description="copy a folder into a dataset of a service; only files that the dataset does not have. An "
        "interrupted push resumes when it is started again.",
        example="push /data/photos datasets://storage:8080/photos",
        positional={
            "folder": "copied with all folders below it",
            "url": "datasets://host:port/name, or a folder in it; created if it does not exist",
        },
        delete="remove files from the dataset that the folder does not have",
    )


def _run(args: argparse.Namespace) -> int:
    summary = run_transfer(args, push, args.folder, args.url, verb="sent")
    print_line(f"{printable(redact(args.url))}: {summary}")
    return 0
