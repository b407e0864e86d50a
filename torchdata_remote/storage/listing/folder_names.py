"""The names of folders, as places where a range of keys may begin.

A request with a delimiter returns up to 1,000 names of folders. The pages that were listed so far show how many pages
one of these folders takes, and so which of them is some pages ahead.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from math import inf
from os.path import commonprefix

from ..protocol import Page
from .key_range import RANGE_PAGES, KeyRange, Lister

_MIN_PAGES = 32  # to be divided by 1,000 names: otherwise they are not worth a request
_PART_NEW = 8  # sizes are measured again when one in so many pages is new
_MAX_STEPS_PAGES = 16 * RANGE_PAGES  # names that are further ahead are not looked at
_MAX_PER_PAGE = 0.8  # of the samples of a page: folders with so few keys are not worth a request for their names


@dataclass(eq=False)
class FolderRequest:
    """A request for the names of the folders in a folder.

    Args:
        prefix: the folder.
        after: the first name follows this path.
    """

    prefix: str
    after: str

    def send(self, store: Lister, prefix: str) -> Page:
        """Request the names."""
        return store.list_page(self.prefix, recursive=False, token=None, after=self.after)


class FolderNames:
    """Names of folders that are known, and how many pages such a folder takes.

    Args:
        prefix: of all paths.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._names = list[str]()
        self._asked = dict[str, str]()  # folder: the path up to which its folders are known; empty for all
        self._ranges = list[KeyRange]()  # with pages
        self._num_new = 0  # pages since sizes were measured
        self._num_told = 1_000  # by a request
        self._guessed = set[int]()
        self._sizes: dict[int, float] | None = None  # pages in a folder, by depth
        self._complete = set[str]()  # folders whose folders are all known
        self.may_ask = True

    def wanted_by(self, one: KeyRange, first: str) -> FolderRequest | None:
        """Return the request for the names that are missing to divide a range; ``None`` if it would not help.

        Args:
            one: the range.
            first: the first key that is of interest.
        """
        if not self.may_ask or not one.latest or not one.last.startswith(self._prefix):
            return None
        number = bisect_right(self._names, one.last)
        here = self._names[number - 1] if number > 0 else ""
        is_inside = number > 0 and one.last.startswith(here) and "/" in one.last[len(here) :]
        if is_inside and here not in self._asked and not self._is_tiny(here, one):
            self._asked[here] = ""
            return FolderRequest(here, "")
        folder, root = _common_folder(one.latest[0], one.last), _folder_of(self._prefix)
        while len(folder) >= len(root):
            known = self._asked.get(folder)
            if "/" in one.last[len(folder) :] and (known is None or (known and one.last >= known)):
                if known and self._pages_in(f"{folder}/") * self._num_told < _MIN_PAGES:
                    return None
                if self._is_tiny(folder, one):
                    return None
                self._asked[folder] = ""
                return FolderRequest(folder, known or (first if first.startswith(folder) else ""))
            if not folder or (one.until is not None and one.until.startswith(folder)):
                return None
            folder = _folder_of(folder[:-1])
        return None

    @staticmethod
    def _is_tiny(folder: str, one: KeyRange) -> bool:
        """Whether the folders in a folder have so few keys that their names tell little."""
        inside = {key[: key.find("/", len(folder))] for key in one.samples}
        return len(inside) > _MAX_PER_PAGE * len(one.samples)

    def receive(self, request: FolderRequest, page: Page) -> None:
        """Add the names of a response."""
        prefix = request.prefix
        found = [name for name in page.folders if name.startswith(prefix) and name.endswith("/") and name != prefix]
        if page.next_token is None:
            self._complete.add(prefix)
        else:
            self._num_told = len(found)
            self._asked[prefix] = max(found, default="\U0010ffff") + "\U0010ffff"
        self._names = sorted({*self._names, *found})
        self._sizes = None

    def add_page(self, one: KeyRange, first: str, last: str) -> None:
        """Count a page that was listed."""
        if not one.listed:
            self._ranges.append(one)
        one.listed.append((first, last))
        self._num_new += 1

    def _pages_in(self, name: str) -> float:
        """Return about how many pages a folder takes."""
        if self._sizes is None or self._num_new * _PART_NEW > sum(len(one.listed) for one in self._ranges):
            self._sizes, self._num_new = self._measured(), 0
        return self._sizes.get(name.count("/"), RANGE_PAGES)

    def _measured(self) -> dict[int, float]:
        whole, passed = dict[int, float](), dict[int, int]()
        in_folder, longest = dict[str, float](), dict[int, float]()  # of folders that may have more
        names = self._names
        for one in self._ranges:
            number = bisect_right(names, one.after)
            begun = number > 0 and names[number - 1] == one.after
            pages, above, end = 0.0, "", 0
            for first, last in one.listed:
                start, end = bisect_right(names, above or first), bisect_right(names, last)
                above = last
                if end == start:
                    pages += 1
                    continue
                depth = names[end - 1].count("/")
                part = 1 / (end - start + 1)
                whole[depth] = whole.get(depth, 0.0) + (pages + part if begun else 0.0) + part * (end - start - 1)
                passed[depth] = passed.get(depth, 0) + begun + end - start - 1
                begun, pages = True, part
            if end > 0:
                in_folder[names[end - 1]] = in_folder.get(names[end - 1], 0.0) + pages
        sizes = {depth: pages / passed[depth] for depth, pages in whole.items() if passed[depth]}
        for folder in self._complete:
            depth, number = folder.count("/"), bisect_right(names, folder)
            inside = bisect_right(names, folder + "\U0010ffff") - number
            if depth not in sizes and depth + 1 in sizes:
                sizes[depth] = inside * sizes[depth + 1]
        for name, pages in in_folder.items():
            depth = name.count("/")
            longest[depth] = max(longest.get(depth, 0.0), pages)
        self._guessed = {depth for depth in longest if depth not in sizes}
        return {depth: max(pages, RANGE_PAGES) for depth, pages in longest.items()} | sizes

    def steps(self, one: KeyRange) -> tuple[list[tuple[str, float]], float | None]:
        """Return the names in the rest of a range, each with about how many pages are before it.

        Returns:
            The names; and about how many pages are left in the range, ``None`` if that is unknown.
        """
        at, until, names = max(one.after, one.last), one.until, self._names
        number = bisect_right(names, at)
        if number == 0:
            return [(names[0], 0.0)] if names and (until is None or names[0] < until) else [], None
        here = names[number - 1]
        size, since = self._pages_in(here), 0
        for first, _ in reversed(one.listed):
            if first < here:
                break
            since += 1
        if here.count("/") in self._guessed and (since >= RANGE_PAGES // 2 or size > RANGE_PAGES):
            size = inf
        whole = size if one.after <= here else size / 2
        left = whole - since if whole > since else float(since)
        steps = list[tuple[str, float]]()
        while number < len(names) and (until is None or names[number] < until) and left < _MAX_STEPS_PAGES:
            steps.append((names[number], left))
            if not (number + 1 < len(names) and names[number + 1].startswith(names[number])):
                left += self._pages_in(names[number])
            number += 1
        is_known = number < len(names) or self._is_last(names[-1])
        return steps, left if is_known else None

    def _is_last(self, name: str) -> bool:
        """Whether no folder behind this one is unknown."""
        folder, root = _folder_of(name[:-1]), _folder_of(self._prefix)
        while folder in self._complete:
            if folder == root:
                return True
            folder = _folder_of(folder[:-1])
        return False


def _common_folder(path: str, other: str) -> str:
    return _folder_of(commonprefix([path, other]))  # noqa: RUF071  # of keys, which may have empty parts


def _folder_of(path: str) -> str:
    return path[: path.rfind("/") + 1]
