"""Reading by obstore where it can, by a transport that bears more where it cannot."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ..core.urls import redact
from ..errors import TransientStorageError
from .errors import mark_host_known
from .protocol import Answer, RedirectWithoutLocationError, UnreadableResponseError

Read = Callable[[str, int, int | None, str | None], Answer]
MAX_UNREADABLE = 8  # answers in a row that only the other transport can read, until obstore is not asked any more
_log = logging.getLogger("torchdata_remote")


class PreferredReader:
    """Two ways to read an object; the second one is taken where the first one cannot.

    Args:
        url: of the bucket or host, for the log.
        preferred: reads by obstore.
        other: reads by another transport, which shows more of an answer.
        can_express: whether obstore asks for exactly this path; ``None`` if obstore is not to be used.
    """

    def __init__(self, url: str, preferred: Read, other: Read, can_express: Callable[[str], bool] | None) -> None:
        self._url, self._preferred, self._other, self._can_express = redact(url), preferred, other, can_express
        self._refused = False  # whether obstore was told to slow down, but does not show for how long
        self._num_unusable = 0  # in a row

    def __call__(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        """As ``Store.read``."""
        if self._can_express is not None and self._can_express(path) and not self._refused:
            try:
                answer = self._preferred(path, start, end, etag)
            except UnreadableResponseError as error:
                self._num_unusable += 1
                if self._num_unusable >= MAX_UNREADABLE:
                    self._give_up(f"answers in a way that obstore cannot read ({error})")
            except RedirectWithoutLocationError:
                self._give_up("is not in the configured region")
            except TransientStorageError as error:
                if error.overloaded:
                    self._refused = True  # the next request goes by the other transport, which shows Retry-After
                raise
            else:
                self._num_unusable = 0
                mark_host_known(self._url)
                return answer
        self._refused = False
        return self.read_by_fallback(path, start, end, etag)

    def read_by_fallback(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        """As ``Store.read``, by the other transport."""
        answer = self._other(path, start, end, etag)
        mark_host_known(self._url)
        return answer

    def _give_up(self, why: str) -> None:
        if self._can_express is not None:
            self._can_express = None
            _log.warning("%s %s: it is read without obstore, slowly", self._url, why)
