"""Divide the listing of a prefix into listings of its folders, which are requested concurrently.

Only the end of a page contains the token of the next one, so the pages of one listing are sequential. Those of several
folders can be requested at the same time. A prefix is divided into its folders if its first page shows that this is
worth it, and a large folder in the same way. All keys of a folder ``a/`` sort between ``a.`` and ``a0``: folders, and
the objects between them, are returned in the order of one long listing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from operator import itemgetter

from ...core.urls import redact
from ...errors import AccessDeniedError, StorageError
from ..protocol import Entry, Page

MAX_IN_FLIGHT = 16
MAX_PAGES_AHEAD = 64  # received or requested before the consumer needs them
_MAX_FOLDERS = 8  # in one page: requests for smaller folders would return too few objects to be faster


@dataclass(eq=False)
class PageRequest:
    """A request for a page.

    Args:
        prefix: argument of ``Store.list_page``.
        recursive: argument of ``Store.list_page``.
        token: argument of ``Store.list_page``.
        after: entries up to this path have been received.
        seen: tokens of the pages so far.
        fallback: if the folders of a prefix are requested: the request without folders, and the first page received.
    """

    prefix: str
    recursive: bool = True
    token: str | None = None
    after: str = ""
    seen: set[str] = field(default_factory=set)
    fallback: tuple[PageRequest, list[Entry]] | None = None


_Segment = list[Entry] | BaseException | PageRequest


class Frontier:
    """The pages of a listing that were received and not yet taken, and the requests for others. Used by one thread.

    Args:
        url: for errors.
        prefix: of the paths.
        recursive: whether to list folders below it.
    """

    def __init__(self, url: str, prefix: str, *, recursive: bool) -> None:
        self._url = redact(url)
        self._segments: list[_Segment] = [PageRequest(prefix, recursive)]
        self._in_flight: set[PageRequest] = set()
        self._num_received = 0

    def __bool__(self) -> bool:
        """Whether pages are left."""
        return bool(self._segments)

    @property
    def is_waiting(self) -> bool:
        """Whether the next page has not been received."""
        return isinstance(self._segments[0], PageRequest)

    def next_requests(self) -> Iterator[PageRequest]:
        """Yield the requests to send now, in the order of the listing. The next page is always requested."""
        is_first = True
        for segment in self._segments:
            if isinstance(segment, BaseException):
                return  # the listing ends with this error
            if isinstance(segment, PageRequest):
                if segment not in self._in_flight:
                    num_in_flight = len(self._in_flight)
                    is_full = num_in_flight >= MAX_IN_FLIGHT or self._num_received + num_in_flight >= MAX_PAGES_AHEAD
                    if is_full and not is_first:
                        return
                    self._in_flight.add(segment)
                    yield segment
                is_first = False

    def receive(self, request: PageRequest, page: Page | BaseException) -> None:
        """Store the page, or the error, of a request."""
        self._in_flight.remove(request)
        segments = [segment for segment in self._segments_of(request, page) if segment != []]
        self._num_received += sum(isinstance(segment, list) for segment in segments)
        index = self._segments.index(request)
        self._segments[index : index + 1] = segments

    def take(self) -> list[Entry]:
        """Remove and return the next page.

        Raises:
            BaseException: if its request failed.
        """
        segment = self._segments.pop(0)
        if isinstance(segment, BaseException):
            raise segment
        assert isinstance(segment, list)
        self._num_received -= 1
        return segment

    def _segments_of(self, request: PageRequest, page: Page | BaseException) -> list[_Segment]:
        """Return what replaces a request in the listing."""
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
        """Return what replaces a request for the folders of a prefix, and the objects beside them."""
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
        segments: list[_Segment] = []
        items: list[tuple[str, Entry | None]] = [(entry.path, entry) for entry in entries]
        items += [(folder, None) for folder in folders]
        for path, entry in sorted(items, key=itemgetter(0)):
            if entry is None:
                segments.append(PageRequest(path, after=request.after if request.after.startswith(path) else ""))
            elif segments and isinstance(segments[-1], list):
                segments[-1].append(entry)
            else:
                segments.append([entry])
        return segments if more is None else [*segments, more]


def _entries_after(entries: list[Entry], path: str) -> list[Entry]:
    return [entry for entry in entries if entry.path > path] if path else entries


def _is_worth_dividing(entries: list[Entry], prefix: str) -> bool:
    """Whether to list the pages after this first one folder by folder."""
    paths = [entry.path for entry in entries]
    folders = {path[: path.index("/", len(prefix)) + 1] for path in paths if "/" in path[len(prefix) :]}
    return 1 <= len(folders) <= _MAX_FOLDERS and paths == sorted(paths)
