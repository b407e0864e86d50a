"""Let a process record itself once it reads, if the environment asks for it."""

from __future__ import annotations

import os
import sys

from .variable import STATS_VARIABLE, on_first_work


def record_if_asked() -> None:
    """Record this process, and those that it forks, from their first piece of work on.

    Called when the package is imported. A relative folder is resolved against the working directory now, for this
    process and those that it starts: frameworks such as Hydra change it before the first sample is read.
    """
    folder = os.environ.get(STATS_VARIABLE)
    if folder and "://" not in folder and not os.path.isabs(folder):
        os.environ[STATS_VARIABLE] = os.path.abspath(folder)
    on_first_work[:] = [_record]


def _record() -> None:
    # A program without torch, such as `torchdata-remote ls`, is no training
    if os.environ.get(STATS_VARIABLE) and "torch" in sys.modules:
        from .recording import record_in_folder  # it imports torch

        record_in_folder(os.environ[STATS_VARIABLE])
