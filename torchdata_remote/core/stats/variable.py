"""The environment variable that makes each process record its counters, and when it starts to."""

from __future__ import annotations

from collections.abc import Callable

STATS_VARIABLE = "TORCHDATA_REMOTE_STATS"
"""Environment variable with the folder to which each process that reads records its counters."""

FOLDER_EVERY_S = 2.0
"""Seconds between the lines of a process in that folder: 10 MB in 8 hours."""

on_first_work: list[Callable[[], object]] = []
"""Called before the first piece of work of a process is counted; in a forked process again."""
