"""Decide where further ranges of a listing begin: at names of folders that are known, or at guessed keys.

Each range costs one request more than a listing in one piece, because its last page contains keys of the next range, or
none; so does a request for names of folders. What was spent in vain so far, and what the open ranges may still spend,
is never more than a fifth of the pages that a listing in one piece would have needed for the same keys.
"""

from __future__ import annotations

from .folder_names import FolderNames, FolderRequest
from .key_range import RANGE_PAGES, KeyRange
from .key_space import key_ahead

PAGES_FOR_A_RANGE = 5
MAX_GUESSES = 16
_MIN_RANGE = 3  # pages; a shorter range is not worth its request
_MAX_RANGE = 1.5 * RANGE_PAGES  # longer ones are divided at a guessed key, if no name is near
_SPAN = 4 * RANGE_PAGES  # the distance of the first ranges, which have to pay for further ones


class Divider:
    """Divides the ranges of a listing.

    Args:
        ranges: of the listing; further ones are inserted.
        prefix: of the paths.
    """

    def __init__(self, ranges: list[KeyRange], prefix: str) -> None:
        self._ranges, self._prefix = ranges, prefix
        self._num_splits = 0
        self.names = FolderNames(prefix)
        self.asking: FolderRequest | None = None  # in flight
        self.num_requests = 0  # received
        self.num_pages = 0.0  # of a listing in one piece, with the same keys
        self.num_guesses = 1.0  # to make at once: more, the more of the latest ones were right
        self.min_pages = 1  # for a guess: more, the more of the latest ones were too near

    def _may_spend(self) -> bool:
        """Whether a further request is in the bound. Each range but the last one may end with a page in vain."""
        num_open = sum(one.is_open for one in self._ranges) - self._ranges[-1].is_open
        spent = self.num_requests - self.num_pages + num_open + (self.asking is not None)
        return spent + 1 <= self.num_pages // PAGES_FOR_A_RANGE + 1e-6

    def divide(self, number: int, room: int) -> FolderRequest | None:
        """Begin ranges some pages ahead of another one; or return the request for names that this needs."""
        one = self._ranges[number]
        if not self._may_spend():
            return None
        steps, left = self.names.steps(one)
        num_open = sum(one.is_open for one in self._ranges)
        wanted = max(RANGE_PAGES, _SPAN / num_open)
        if left is not None:
            wanted = min(wanted, left / 2)
            if wanted < _MIN_RANGE:
                return None
        if steps:
            name, pages = min(steps, key=lambda step: abs(step[1] - wanted))
            is_far = pages >= _MIN_RANGE and (left is not None or pages >= wanted / 2)
            if is_far and pages <= max(_MAX_RANGE, 2 * wanted):
                self._split(number, name)
                return None
        if left is not None and left <= _MAX_RANGE:
            return None
        if self.asking is None and self._num_splits:
            request = self.names.wanted_by(one, next((first.last for first in self._ranges if first.last), ""))
            if request is not None:
                return request
        if self.asking is None:
            distance = RANGE_PAGES if left is None else min(RANGE_PAGES, wanted)
            self._guess(number, min(room, int(self.num_guesses)), steps[0][0] if steps else None, distance)
        return None

    def _guess(self, number: int, num_guesses: int, name: str | None, pages: float) -> None:
        """Begin ranges at keys that are guessed, but not behind the name of a folder."""
        one = self._ranges[number]
        if len(one.latest) < self.min_pages or not one.last:
            return
        times, until = pages / len(one.latest), one.until
        for further in range(1, num_guesses + 1):
            if not self._may_spend():
                return
            ahead = key_ahead(one.latest[0], one.last, times * further, one.samples, self._prefix)
            if name is not None and (ahead is None or ahead >= name):
                ahead = name
            before = self._ranges[number]
            if ahead is None or ahead <= max(before.after, before.last) or (until is not None and ahead >= until):
                return
            self._split(number, ahead)
            if ahead == name:
                return
            number += 1

    def _split(self, number: int, ahead: str) -> None:
        before = self._ranges[number]
        self._num_splits += 1
        self._ranges.insert(number + 1, KeyRange(ahead, before.until))
        before.until, before.num_pages = ahead, 0
