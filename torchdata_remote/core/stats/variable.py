"""The environment variable that makes each process record its counters."""

from __future__ import annotations

import os

STATS_VARIABLE = "TORCHDATA_REMOTE_STATS"
"""Environment variable with the folder to which each process that reads records its counters."""


def make_folder_absolute() -> None:
    """Resolve a relative folder against the working directory, for this process and those that it starts.

    Called when the package is imported: frameworks such as Hydra change the directory before the first sample is read.
    """
    folder = os.environ.get(STATS_VARIABLE)
    if folder and "://" not in folder and not os.path.isabs(folder):
        os.environ[STATS_VARIABLE] = os.path.abspath(folder)
