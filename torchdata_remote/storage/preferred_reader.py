"""Read by obstore, and by a more tolerant transport where obstore fails."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ..core.urls import redact
from ..errors import TransientStorageError
from .errors import mark_host_known
from .protocol import Answer, RedirectWithoutLocationError, UnreadableResponseError, UnsupportedByTransportError

Read = Callable[[str, int, int | None, str | None], Answer]
MAX_UNREADABLE = 8  # consecutive responses that only the fallback can read; then obstore is not used any more
_log = logging.getLogger("torchdata_remote")


class PreferredReader:
    """Reads an object by the preferred transport, or by the fallback if the preferred one cannot.

    Args:
        url: of the bucket or host, for the log.
        preferred: reads by obstore.
        fallback: reads by another transport, which shows the headers of every response.
        can_express: whether obstore can request exactly this path; ``None`` to use the fallback only.
    """

    def __init__(self, url: str, preferred: Read, fallback: Read, can_express: Callable[[str], bool] | None) -> None:
        self._url, self._preferred, self._fallback, self._can_express = redact(url), preferred, fallback, can_express
        self._is_throttled = False  # the last response was 429 or 503; obstore does not show its Retry-After
        self._num_unreadable = 0  # consecutive

    def __call__(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        """Read like ``Store.read``."""
        if self._can_express is not None and self._can_express(path) and not self._is_throttled:
            try:
                answer = self._preferred(path, start, end, etag)
            except UnreadableResponseError as error:
                self._num_unreadable += 1
                if self._num_unreadable >= MAX_UNREADABLE:
                    self._give_up(f"sends responses that obstore cannot read ({error})")
            except RedirectWithoutLocationError:
                self._give_up("is not in the configured region")
            except UnsupportedByTransportError as error:
                self._give_up(f"cannot be read by obstore ({error})")
            except TransientStorageError as error:
                if error.overloaded:
                    self._is_throttled = True  # the next request uses the fallback, which shows Retry-After
                raise
            else:
                self._num_unreadable = 0
                mark_host_known(self._url)
                return answer
        self._is_throttled = False
        return self.read_by_fallback(path, start, end, etag)

    def read_by_fallback(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        """Read like ``Store.read``, by the fallback."""
        answer = self._fallback(path, start, end, etag)
        mark_host_known(self._url)
        return answer

    def _give_up(self, why: str) -> None:
        if self._can_express is not None:
            self._can_express = None
            _log.warning("%s %s: it is read without obstore, more slowly", self._url, why)
