"""``torchdata-remote pull``."""

from __future__ import annotations

import argparse

from ..service.transfer import pull
from ._shared import Commands, add_command, printable, say
from ._transfer import add_transfer_options, shown_progress, store_options, summary


def add(commands: Commands) -> None:
    """Tell the command line of this command."""
    parser = add_command(
        commands,
        "pull",
        _run,
        does="copy a data set of a service into a folder; only what is not there. Asked again, it goes on where it was "
        "stopped; several that share the folder fetch each file once.",
        example="pull datasets://storage:8080/photos /datasets/photos",
    )
    parser.add_argument("url", help="datasets://host:port/name, or a folder in it")
    parser.add_argument("folder", help="made if it is not there")
    parser.add_argument("--delete", action="store_true", help="remove from the folder what nobody pulled, too")
    add_transfer_options(parser)


def _run(chosen: argparse.Namespace) -> int:
    with shown_progress("pull") as on_progress:
        done = pull(
            chosen.url,
            chosen.folder,
            storage_options=store_options(chosen),
            max_in_flight=chosen.max_in_flight,
            on_progress=on_progress,
            delete=chosen.delete,
        )
    say(f"{printable(chosen.folder)}: {summary(done, 'fetched')}")
    return 0
