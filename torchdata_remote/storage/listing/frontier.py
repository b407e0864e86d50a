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
class Ask:
    """A page to ask for.

    Args:
        prefix: as for the store.
        recursive: as for the store.
        token: as for the store.
        after: entries up to this path are known.
        seen: the tokens of this sequence of pages.
        instead: where the folders of a prefix are asked for, what goes on without them, and the known first page.
    """

    prefix: str
    recursive: bool = True
    token: str | None = None
    after: str = ""
    seen: set[str] = field(default_factory=set)
    instead: tuple[Ask, list[Entry]] | None = None


_Part = list[Entry] | BaseException | Ask


class Frontier:
    """What is known of a listing, and what is to be asked for next. Belongs to one thread.

    Args:
        url: for errors.
        prefix: what the paths begin with.
        recursive: whether folders below it are entered.
    """

    def __init__(self, url: str, prefix: str, *, recursive: bool) -> None:
        self._url = redact(url)
        self._parts: list[_Part] = [Ask(prefix, recursive)]
        self._under_way: set[Ask] = set()
        self._num_known = 0

    def __bool__(self) -> bool:
        """Whether anything is left."""
        return bool(self._parts)

    @property
    def is_waiting(self) -> bool:
        """Whether the next page has still to come."""
        return isinstance(self._parts[0], Ask)

    def to_ask(self) -> Iterator[Ask]:
        """Pages whose turn it is, those that are needed first before the others. The very next one always is."""
        is_first = True
        for part in self._parts:
            if isinstance(part, BaseException):
                return  # nobody will get beyond it
            if isinstance(part, Ask):
                if part not in self._under_way:
                    num_under_way = len(self._under_way)
                    is_full = num_under_way >= MAX_IN_FLIGHT or self._num_known + num_under_way >= MAX_PAGES_AHEAD
                    if is_full and not is_first:
                        return
                    self._under_way.add(part)
                    yield part
                is_first = False

    def answer(self, ask: Ask, page: Page | BaseException) -> None:
        """What came for one of :meth:`to_ask`."""
        self._under_way.remove(ask)
        parts = [part for part in self._parts_of(ask, page) if part != []]
        self._num_known += sum(isinstance(part, list) for part in parts)
        at = self._parts.index(ask)
        self._parts[at : at + 1] = parts

    def take(self) -> list[Entry]:
        """The next page.

        Raises:
            BaseException: what came in its place.
        """
        part = self._parts.pop(0)
        if isinstance(part, BaseException):
            raise part
        assert isinstance(part, list)
        self._num_known -= 1
        return part

    def _parts_of(self, ask: Ask, page: Page | BaseException) -> list[_Part]:
        """What takes the place of a page that was asked for."""
        if isinstance(page, AccessDeniedError) and ask.instead is not None and ask.token is None:
            return [ask.instead[0]]  # a policy may allow one kind of listing only
        if isinstance(page, BaseException):
            return [page]
        token, more = page.next_token, None
        if token is not None:
            if token in ask.seen:
                return [StorageError(f"{self._url}: the store repeats page {token!r} of its listing.", url=self._url)]
            ask.seen.add(token)
            more = replace(ask, token=token)
        if ask.instead is not None:
            return self._parts_of_folders(ask, page, more)
        entries = [entry for entry in page.entries if entry.path.startswith(ask.prefix)]
        if more is not None and ask.recursive and ask.token is None and _is_worth_dividing(entries, ask.prefix):
            last = max(ask.after, entries[-1].path)
            more = Ask(ask.prefix, recursive=False, after=last, instead=(more, entries))
        return [_behind(entries, ask.after), *([] if more is None else [more])]

    def _parts_of_folders(self, ask: Ask, page: Page, more: Ask | None) -> list[_Part]:
        """What takes the place of a page of the folders of a prefix, and the objects beside them."""
        assert ask.instead is not None
        for folder in page.folders:
            if not (folder.startswith(ask.prefix) and folder.endswith("/") and folder != ask.prefix):
                return [
                    StorageError(
                        f"{self._url}: the store lists {folder!r} as a folder of {ask.prefix!r}. Name the objects by a "
                        "brace range.",
                        url=self._url,
                    )
                ]
        folders = [folder for folder in page.folders if folder > ask.after or ask.after.startswith(folder)]
        entries = _behind([entry for entry in page.entries if entry.path.startswith(ask.prefix)], ask.after)
        if more is None and ask.token is None and not entries and len(folders) == 1:
            without, first = ask.instead
            inside = [entry for entry in first if entry.path.startswith(folders[0])]
            if _is_worth_dividing(inside, folders[0]):
                return [replace(ask, prefix=folders[0], seen=set())]
            if inside:
                return [without]
        parts: list[_Part] = []
        items: list[tuple[str, Entry | None]] = [(entry.path, entry) for entry in entries]
        items += [(folder, None) for folder in folders]
        for path, entry in sorted(items, key=itemgetter(0)):
            if entry is None:
                parts.append(Ask(path, after=ask.after if ask.after.startswith(path) else ""))
            elif parts and isinstance(parts[-1], list):
                parts[-1].append(entry)
            else:
                parts.append([entry])
        return parts if more is None else [*parts, more]


def _behind(entries: list[Entry], path: str) -> list[Entry]:
    return [entry for entry in entries if entry.path > path] if path else entries


def _is_worth_dividing(entries: list[Entry], prefix: str) -> bool:
    """Whether what follows a first page is to be listed folder by folder."""
    paths = [entry.path for entry in entries]
    folders = {path[: path.index("/", len(prefix)) + 1] for path in paths if "/" in path[len(prefix) :]}
    return 1 <= len(folders) <= _MAX_FOLDERS and paths == sorted(paths)
