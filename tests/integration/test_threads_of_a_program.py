"""A program that ends, or is interrupted, while threads handle items of ``parallel_map``."""

from __future__ import annotations

import subprocess
import sys

_SCRIPT = """
import os, signal, threading
from torchdata_remote import IterableWrapper

{function}

items = iter(IterableWrapper(range(100)).parallel_map(function, num_threads=2))
print(next(items), flush=True)
{then}
"""


def _run(function: str, then: str = "") -> tuple[int, str, str]:
    script = _SCRIPT.format(function=function, then=then)
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    return ended.returncode, ended.stdout, ended.stderr


def test_program_ends_while_items_are_handled() -> None:
    """Threads that work outside of Python do not keep it from ending, nor do they report anything."""
    function = """
import zlib

def function(number):
    return len(zlib.compress(bytes(10_000_000), 9)) and number
"""
    assert _run(function) == (0, "0\n", "")


_HANGING = """
started = threading.Event()

def function(number):
    if number:
        started.set()
        threading.Event().wait()
    return number
"""


def test_program_ends_with_a_function_that_hangs() -> None:
    """Its thread is left behind."""
    assert _run(_HANGING, "started.wait(30)") == (0, "0\n", "")


def test_ctrl_c_ends_the_wait_for_a_function_that_hangs() -> None:
    """The signal arrives while the consumer waits for a thread."""
    then = """
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    next(items)
except KeyboardInterrupt:
    print("interrupted")
"""
    assert _run(_HANGING, then) == (0, "0\ninterrupted\n", "")
