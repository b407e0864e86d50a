"""Calls that are made a little later: once, and before the process ends."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest

from tests.support.waiting import wait_for
from torchdata_remote.fetch.cache import later as later_module
from torchdata_remote.fetch.cache.later import Later


def test_a_call_that_waits_is_not_made_twice() -> None:
    """The next one may wait as soon as the first one is under way."""
    later, made, go_on = Later(), list[str](), threading.Event()

    def first() -> None:
        later.call(lambda: made.append("third"), 0)
        wait_for(lambda: made == ["third"])
        made.append("first")
        go_on.set()

    later.call(first, 0.05)
    later.call(lambda: made.append("second"), 0)
    assert go_on.wait(60)
    assert made == ["third", "first"]


def test_without_threads_a_call_is_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the system allows no more."""

    def refuse(*arguments: object, **options: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(later_module, "ForkSafeThread", refuse)
    made = list[int]()
    for number in range(2):
        Later().call(lambda number=number: made.append(number), 60)  # type: ignore[misc]
    assert made == [0, 1]


@pytest.mark.system
@pytest.mark.parametrize("daemon", [False, True])
def test_a_process_that_ends_makes_its_calls_without_waiting(daemon: bool) -> None:
    """Also those that a thread asked for which ends with the process, and those that ask for another one."""
    code = f"""
import threading
from torchdata_remote.fetch.cache.later import Later
later = Later()
def first():
    print("first", flush=True)
    later.call(lambda: print("second", flush=True), 60)
thread = threading.Thread(target=later.call, args=(first, 60), daemon={daemon})
thread.start()
thread.join()
"""
    start = time.monotonic()
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert ended.stdout.split() == ["first", "second"]
    assert time.monotonic() - start < 30
