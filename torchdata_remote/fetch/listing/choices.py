"""Choose among the objects of folders: tars, and all but files of macOS; and say why there are none."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Callable

from ...core.options import RetryPolicy, StorageOptions
from ...core.urls import HTTP, RemoteUrl, redact, split_url
from ...errors import EmptyListingError, ShardReadError
from ...formats.nested import is_archive_name, without_ending
from ...formats.sample import paths_of_macos
from ...storage import Connection, EntryTable, open_store
from .globs import unescape
from .patterns import choice_start, escape_url, has_braces, literal_url
from .whereabouts import Others, about_empty, about_glob

_log = logging.getLogger("torchdata_remote")
_LEFT_OUT = re.compile(r"\.(zip|tar\.(z|lz|lz4|lzma|lzo|br)|taz|tlz)$", re.IGNORECASE)


class Tars:
    """Chooses tars in any case and compression: a pattern of ``list_source`` for one listing.

    Args:
        url: that is listed.
    """

    def __init__(self, url: str) -> None:
        self._shown = redact(url)
        self._found: dict[str, str] = {}  # name without ending -> name
        self._left_out: dict[str, str] = {}  # ending -> the first name

    def __call__(self, below: str) -> bool:
        """Return whether an object of this path below the source is a tar.

        Raises:
            ShardReadError: if another one differs by its ending only.
        """
        if not is_archive_name(below):
            if ending := _LEFT_OUT.search(below):
                self._left_out.setdefault(ending[0].lower(), below)
            return False
        other = self._found.setdefault(without_ending(below), below)
        if other != below:
            raise ShardReadError(
                f"{self._shown} has {other!r:.200} and {below!r:.200}, which differ by their ending only, so both may "
                "have the same samples. Remove one of them, or choose by pattern=, such as '*.tar' or '*.tar.gz'.",
                url=self._shown,
            )
        return True

    def warn_of_left_out(self) -> None:
        """Name an archive of each kind that is not read."""
        if self._left_out:
            what = f"{self._shown} leaves out {', '.join(map(repr, self._left_out.values()))} and others of their kind"
            warnings.warn(
                f"{what}. Read zips by list_remote(pattern='*.zip').shard_zip_reader(), and compress tars by gzip or "
                "zstd.",
                RuntimeWarning,
                stacklevel=2,
            )


def without_macos(table: EntryTable, fixed: int, others: Others, on_skip: Callable[[str], object]) -> EntryTable:
    """Return a page of a listing without the files that macOS adds to folders.

    Args:
        table: the page.
        fixed: characters of its paths that are above the source.
        others: are told the paths that are left out.
        on_skip: called with ``"macos"`` for each of them.
    """
    found = paths_of_macos(table.paths, fixed)
    if not found:
        return table
    others.extend([path[fixed:] for path in sorted(found)])
    for _ in found:
        on_skip("macos")
    _log.info("%d files of macOS, such as %s, are left out of the listing", len(found), others.names[-1])
    return table.selected([path not in found for path in table.paths])


def require_found(
    num_found: int,
    url: str,
    pattern: str | Tars | None,
    others: Others,
    options: StorageOptions,
    retry: RetryPolicy,
    *,
    recursive: bool,
) -> None:
    """Require that a listing had an object, and name other archives beside tars.

    Args:
        num_found: objects that were listed.
        url: that was listed.
        pattern: that objects had to match.
        others: objects that were not chosen.
        options: for the store.
        retry: of the listing.
        recursive: whether folders were entered.

    Raises:
        EmptyListingError: says what is there instead.
    """
    if num_found:
        if isinstance(pattern, Tars):
            pattern.warn_of_left_out()
        return
    shown, is_tars = redact(url), isinstance(pattern, Tars)
    raise EmptyListingError(
        f"{shown}: no objects found"
        + ("" if pattern is None else " that are tars" if is_tars else f" that match {pattern=}")
        + ("." if recursive else ", with recursive=False.")
        + (
            others.text("*.tar" if isinstance(pattern, Tars) else pattern)
            or _about_nothing(url, options, retry, recursive=recursive)
        )
        + _advice(url),
        url=shown,
    )


def _about_nothing(url: str, options: StorageOptions, retry: RetryPolicy, *, recursive: bool) -> str:
    """Say what is there instead of a source, by a few requests that are not repeated."""
    literal = url if isinstance(url, RemoteUrl) else literal_url(url)
    matched = ""
    connection = Connection(read_timeout_s=retry.progress_timeout_s)
    if not isinstance(url, RemoteUrl) and choice_start(url) is not None:
        start = url[: choice_start(url)]
        literal = unescape(start[: start.rfind("/") + 1]) or "./"
        if split_url(url)[0] not in HTTP and not has_braces(url):
            matched = about_glob(open_store(url, options, connection)[0], url)
    store, _ = open_store(literal, options, connection)
    return (
        matched
        or about_empty(store, literal, recursive=recursive)
        or " Nothing of this name is there: check the URL and the pattern."
    )


def _advice(url: str) -> str:
    """Return advice for a source that may be a literal name with characters of a pattern."""
    if choice_start(url) is None or escape_url(url) == url:
        return ""
    escaped = redact(escape_url(literal_url(url)))
    return f" If *, ?, [ or {{ are part of a name, escape it by tdr.escape_url(...), such as {escaped!r}."
