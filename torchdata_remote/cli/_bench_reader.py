"""Take samples for ``torchdata-remote bench``, for a limited time."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Generator
from contextlib import closing
from contextvars import copy_context

from ..core.threads import ForkSafeThread
from ..formats.sample import Sample
from ..inspection import Trace

FIRST_SAMPLE_S = 10.0
"""Seconds that the first sample is waited for, if the time to read is shorter."""
_CLOSE_S = 0.5  # until the last samples are counted


class Reader:
    """Takes samples in a thread: neither the time limit nor Ctrl-C waits for one that does not come.

    Args:
        chain: of samples.
        trace: is told of each.
        seconds: to read for.
    """

    def __init__(self, chain: Generator[Sample, None, None], trace: Trace, seconds: float) -> None:
        self._chain, self._trace, self._seconds = chain, trace, seconds
        self.ended = False
        self._error: BaseException | None = None
        self._stops = False
        self._done: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._began_s, self._ended_s = time.perf_counter(), 0.0

    def _work(self) -> None:
        try:
            with closing(self._chain):  # so that the last samples are counted
                for _ in self._chain:
                    self._trace.took_sample()
                    if self._stops or time.perf_counter() - self._began_s >= self._seconds:
                        break
                else:
                    self.ended = True
                self._ended_s = time.perf_counter()
        except BaseException as error:  # noqa: BLE001  # raised again by `run`
            self._error = error
        finally:
            self._done.put(None)

    def run(self) -> bool:
        """Read until there are no more samples or the time is over; returns whether Ctrl-C ended it."""
        interrupted = False
        in_context = copy_context().run  # progress bars are hidden there
        try:
            ForkSafeThread(target=in_context, args=(self._work,), name="torchdata_remote", daemon=True).start()
            if not self._is_done(self._seconds) and not self._trace.samples_s:
                self._is_done(FIRST_SAMPLE_S - self._seconds)
        except KeyboardInterrupt:
            interrupted = True
        self._stops = True
        self._is_done(_CLOSE_S)
        if self._error is not None:
            raise self._error
        return interrupted

    def _is_done(self, timeout_s: float) -> bool:
        try:
            self._done.get(timeout=min(max(0.0, timeout_s), threading.TIMEOUT_MAX))
        except queue.Empty:
            return False
        self._done.put(None)
        return True

    def elapsed_s(self) -> float:
        """Seconds until the last sample; until now if the next one does not come."""
        return (self._ended_s or time.perf_counter()) - self._began_s
