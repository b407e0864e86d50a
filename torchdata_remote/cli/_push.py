"""``torchdata-remote push``."""

from __future__ import annotations

import argparse

from ..core.urls import redact
from ..service.transfer import push
from ._shared import Commands, add_command, printable, say
from ._transfer import add_transfer_options, shown_progress, store_options, summary


def add(commands: Commands) -> None:
    """Tell the command line of this command."""
    parser = add_command(
        commands,
        "push",
        _run,
        does="copy a folder into a data set of a service; only what it does not have. Asked again, it goes on where it "
        "was stopped.",
        example="push /data/photos datasets://storage:8080/photos",
    )
    parser.add_argument("folder", help="with all that is below it")
    parser.add_argument("url", help="datasets://host:port/name, or a folder in it; made if it is not there")
    parser.add_argument("--delete", action="store_true", help="remove what the folder does not have from the data set")
    add_transfer_options(parser)


def _run(chosen: argparse.Namespace) -> int:
    with shown_progress("push") as on_progress:
        done = push(
            chosen.folder,
            chosen.url,
            storage_options=store_options(chosen),
            max_in_flight=chosen.max_in_flight,
            on_progress=on_progress,
            delete=chosen.delete,
        )
    say(f"{printable(redact(chosen.url))}: {summary(done, 'sent')}")
    return 0
