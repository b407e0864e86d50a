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


READ_AT_EXIT = """
import atexit
iterators = []

@atexit.register
def read_on():
    try:
        print(sum(1 for _ in iterators[0]))
    except Exception as error:
        print(type(error).__name__, error)

from tests.loaders.thread.test_batches_ahead import loader_of

iterators.append(iter(loader_of(4_000)))
print(next(iterators[0]))
"""


def test_reading_on_after_the_threads_have_ended_is_an_error() -> None:
    """A function that was registered before the package is imported is called after the threads were ended."""
    done = subprocess.run(
        [sys.executable, "-c", READ_AT_EXIT], capture_output=True, text=True, timeout=120, check=False
    )
    first, last = done.stdout.splitlines()
    assert (done.returncode, first, done.stderr) == (0, "[0, 1, 2, 3]", "")
    assert last.startswith("PoolClosedError Nothing is fetched once the interpreter shuts down")
