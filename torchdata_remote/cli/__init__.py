"""Command line ``torchdata-remote``: a function for each command, which imports what it calls when it runs.

Exit status: 0 for success, 1 for a fault of the data or the store, 2 for a wrong command line, 130 for Ctrl-C.
"""

from __future__ import annotations

from collections.abc import Sequence

_SIGINT_STATUS = 130  # as shells report it


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    try:
        # Imported here, as is what commands call, so that Ctrl-C meanwhile ends it like any other
        from .app import run

        return run(arguments)
    except KeyboardInterrupt:
        return _SIGINT_STATUS
