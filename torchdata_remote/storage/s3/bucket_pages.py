"""Pages of a bucket's listing."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from ...core.object_version import keys_as_paths, split_version
from ..entry_table import EntryTable
from ..errors import unusable_response
from ..paging import every_page, first_page
from ..protocol import Page
from .page_parser import ARCHIVED, to_page

_log = logging.getLogger("torchdata_remote")
_MAX_KEYS = 1000  # S3's limit for a page
_LAST = "\U0010ffff"  # sorts after every name in a folder


class BucketPages:
    """Requests pages.

    Args:
        request: sends one request.
        url: returns the URL of a path, for errors.
    """

    def __init__(self, request: Callable[..., Any], url: Callable[[str], str]) -> None:
        self._request, self._url = request, url
        self._warned = False

    def _key(self, path: str) -> str:
        """Return the key of a path."""
        return path

    def _paths(self, keys: list[str]) -> list[str]:
        """Return the paths of keys."""
        return keys

    def page(self, prefix: str, *, recursive: bool, token: str | None, after: str = "") -> Page:
        """Request a page, from a token or after a path on."""
        after = self._key(after)
        start = {"StartAfter": after} if after and token is None else {}
        return self._send(prefix, token, start if recursive else {"Delimiter": "/", **start})

    def _send(self, prefix: str, token: str | None, extra: dict[str, Any]) -> Page:
        if token is not None:
            extra = {**extra, "ContinuationToken": token}
        response: dict[str, Any] = self._request("list_objects_v2", prefix, Prefix=prefix, **extra)
        if "IsTruncated" not in response or (response["IsTruncated"] and not response.get("NextContinuationToken")):
            # botocore parses an empty body as an empty listing
            raise unusable_response(self._url(prefix), "a page of the listing does not say whether it is the last one")
        if ARCHIVED in response and not self._warned:
            self._warned = True
            _log.warning(
                "%s: some of the objects there are archived (%s), and can be read only where they were restored",
                self._url(prefix),
                response[ARCHIVED],
            )
        return to_page(response, self._paths)

    def first(self, prefix: str, extra: dict[str, Any]) -> Page:
        """Request the first page that is not empty, or the last one: a store may send empty pages before others."""
        later = {name: value for name, value in extra.items() if name != "StartAfter"}
        pages = every_page(
            lambda token: self._send(prefix, token, extra if token is None else later), self._url(prefix)
        )
        return first_page(pages)

    def beside(self, path: str, limit: int) -> Page:
        """Request the first objects that begin with a path: the one of this name, others beside it, and those below."""
        return self.first(self._key(path), {"MaxKeys": limit})

    def may_omit(self, page: Page) -> bool:
        """Whether the object of the path may exist, although a page of :meth:`beside` does not have it."""
        return page.next_token is not None

    def after(self, prefix: str, *, recursive: bool, after: str, limit: int) -> Page:
        """Request the first page after a key; its token is a key, too, so that it does not expire."""
        extra: dict[str, Any] = {"MaxKeys": min(limit, _MAX_KEYS)}
        after = self._key(after)
        if not recursive:
            extra["Delimiter"] = "/"
        if prefix.endswith("/") and after <= prefix:
            extra["StartAfter"] = prefix  # or the first page might contain the folder's own marker only
        elif after:
            extra["StartAfter"] = after + _LAST if after.endswith("/") and not recursive else after
        page = self.first(prefix, extra)
        # With markers: a page may contain nothing else
        then = None if page.next_token is None else max([*EntryTable.of(page.entries).keys, *page.folders])
        return page._replace(next_token=then, folders=[path for path in page.folders if path > after])

    def keys(self, prefix: str, extra: dict[str, Any]) -> list[str]:
        """Return the keys of the first page, with markers."""
        return EntryTable.of(self.first(prefix, extra).entries).keys


class S3Pages(BucketPages):
    """Pages of a bucket whose paths may end with a version."""

    def _key(self, path: str) -> str:
        return split_version(path)[0]

    def _paths(self, keys: list[str]) -> list[str]:
        return keys_as_paths(keys)
