"""A process that ends while a ``thread_loader`` makes batches."""

from __future__ import annotations

import subprocess
import sys

EXITING = """
import threading
from tests.loaders.thread.test_batches_ahead import loader_of

release = threading.Event()
waiting, busy = iter(loader_of(4_000)), iter(loader_of(4_000, lambda number: number == 7 and release.wait(60)))
print(next(waiting), next(busy))
threading.Timer(0.1, release.set).start()
"""


def test_a_process_exits_while_batches_are_made() -> None:
    """At once and without a message: one thread waits for its consumer, one is in a function."""
    done = subprocess.run([sys.executable, "-c", EXITING], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[0, 1, 2, 3] [0, 1, 2, 3]\n", "")
