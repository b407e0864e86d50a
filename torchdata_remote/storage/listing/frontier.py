"""A listing as far as it is known: pages in the order of paths, and between them what is still to be asked for.

Only the end of a page tells where the next one begins, so that pages come one after the other. Those of several folders
can come at the same time. A prefix is divided into its folders if its first page says that this is worth it, a folder
that is large again in the same way. All keys of a folder ``a/`` lie between ``a.`` and ``a0``: folders, and the objects
between them, come in the order of one long listing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from operator import itemgetter

from ...core.urls import redact
from ...errors import AccessDeniedError, StorageError
from ..protocol import Entry, Page

MAX_IN_FLIGHT = 16
MAX_PAGES_AHEAD = 64  # known or under way before their turn
_MAX_FOLDERS = 8  # in one page: with smaller folders each request would bring too little to be faster


@dataclass(eq=False)
class PageRequest:
    """A page to request for.

    Args:
        prefix: as for the store.
        recursive: as for the store.
        token: as for the store.
        after: entries up to this path are known.
        seen: the tokens of this sequence of pages.
        fallback: where the folders of a prefix are asked for, what goes on without them, and the known first page.
    """

    prefix: str
    recursive: bool = True
    token: str | None = None
    after: str = ""
    seen: set[str] = field(default_factory=set)
    fallback: tuple[PageRequest, list[Entry]] | None = None


_Segment = list[Entry] | BaseException | PageRequest


class Frontier:
    """What is known of a listing, and what is to be asked for next. Belongs to one thread.

    Args:
        url: for errors.
        prefix: what the paths begin with.
        recursive: whether folders below it are entered.
    """

    def __init__(self, url: str, prefix: str, *, recursive: bool) -> None:
        self._url = redact(url)
        self._segments: list[_Segment] = [PageRequest(prefix, recursive)]
        self._in_flight: set[PageRequest] = set()
        self._num_known = 0

    def __bool__(self) -> bool:
        """Whether anything is left."""
        return bool(self._segments)

    @property
    def is_waiting(self) -> bool:
        """Whether the next page has still to come."""
        return isinstance(self._segments[0], PageRequest)

    def next_requests(self) -> Iterator[PageRequest]:
        """Pages whose turn it is, those that are needed first before the others. The very next one always is."""
        is_first = True
        for part in self._segments:
            if isinstance(part, BaseException):
                return  # nobody will get beyond it
            if isinstance(part, PageRequest):
                if part not in self._in_flight:
                    num_in_flight = len(self._in_flight)
                    is_full = num_in_flight >= MAX_IN_FLIGHT or self._num_known + num_in_flight >= MAX_PAGES_AHEAD
                    if is_full and not is_first:
                        return
                    self._in_flight.add(part)
                    yield part
                is_first = False

    def receive(self, request: PageRequest, page: Page | BaseException) -> None:
        """What came for one of :meth:`next_requests`."""
        self._in_flight.remove(request)
        parts = [part for part in self._segments_of(request, page) if part != []]
        self._num_known += sum(isinstance(part, list) for part in parts)
        at = self._segments.index(request)
        self._segments[at : at + 1] = parts

    def take(self) -> list[Entry]:
        """The next page.

        Raises:
            BaseException: what came in its place.
        """
        part = self._segments.pop(0)
        if isinstance(part, BaseException):
            raise part
        assert isinstance(part, list)
        self._num_known -= 1
        return part

    def _segments_of(self, request: PageRequest, page: Page | BaseException) -> list[_Segment]:
        """What takes the place of a page that was asked for."""
        if isinstance(page, AccessDeniedError) and request.fallback is not None and request.token is None:
            return [request.fallback[0]]  # a policy may allow one kind of listing only
        if isinstance(page, BaseException):
            return [page]
        token, more = page.next_token, None
        if token is not None:
            if token in request.seen:
                return [StorageError(f"{self._url}: the store repeats page {token!r} of its listing.", url=self._url)]
            request.seen.add(token)
            more = replace(request, token=token)
        if request.fallback is not None:
            return self._segments_of_folders(request, page, more)
        entries = [entry for entry in page.entries if entry.path.startswith(request.prefix)]
        if (
            more is not None
            and request.recursive
            and request.token is None
            and _is_worth_dividing(entries, request.prefix)
        ):
            last = max(request.after, entries[-1].path)
            more = PageRequest(request.prefix, recursive=False, after=last, fallback=(more, entries))
        return [_entries_after(entries, request.after), *([] if more is None else [more])]

    def _segments_of_folders(self, request: PageRequest, page: Page, more: PageRequest | None) -> list[_Segment]:
        """What takes the place of a page of the folders of a prefix, and the objects beside them."""
        assert request.fallback is not None
        for folder in page.folders:
            if not (folder.startswith(request.prefix) and folder.endswith("/") and folder != request.prefix):
                return [
                    StorageError(
                        f"{self._url}: the store lists {folder!r} as a folder of {request.prefix!r}. Name the objects "
                        "by a brace range.",
                        url=self._url,
                    )
                ]
        folders = [folder for folder in page.folders if folder > request.after or request.after.startswith(folder)]
        entries = _entries_after(
            [entry for entry in page.entries if entry.path.startswith(request.prefix)], request.after
        )
        if more is None and request.token is None and not entries and len(folders) == 1:
            without, first = request.fallback
            inside = [entry for entry in first if entry.path.startswith(folders[0])]
            if _is_worth_dividing(inside, folders[0]):
                return [replace(request, prefix=folders[0], seen=set())]
            if inside:
                return [without]
        parts: list[_Segment] = []
        items: list[tuple[str, Entry | None]] = [(entry.path, entry) for entry in entries]
        items += [(folder, None) for folder in folders]
        for path, entry in sorted(items, key=itemgetter(0)):
            if entry is None:
                parts.append(PageRequest(path, after=request.after if request.after.startswith(path) else ""))
            elif parts and isinstance(parts[-1], list):
                parts[-1].append(entry)
            else:
                parts.append([entry])
        return parts if more is None else [*parts, more]


def _entries_after(entries: list[Entry], path: str) -> list[Entry]:
    return [entry for entry in entries if entry.path > path] if path else entries


def _is_worth_dividing(entries: list[Entry], prefix: str) -> bool:
    """Whether what follows a first page is to be listed folder by folder."""
    paths = [entry.path for entry in entries]
    folders = {path[: path.index("/", len(prefix)) + 1] for path in paths if "/" in path[len(prefix) :]}
    return 1 <= len(folders) <= _MAX_FOLDERS and paths == sorted(paths)
