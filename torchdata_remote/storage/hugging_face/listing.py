"""List the files of a repository at a commit, page by page, by the Hub's tree API."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from ...errors import StorageError
from ..entry_table import EntryTable
from ..errors import unusable_response
from ..protocol import Page
from .client import HubClient
from .errors import MissingFileError
from .repository import HubPath

_NEXT = re.compile(r'<([^>]*)>\s*;[^,]*\brel="?next"?')


def list_folder(
    client: HubClient, place: HubPath, commit: str, *, recursive: bool, token: str | None, shown: str
) -> Page:
    """Return a page of a folder: files and folders in the Hub's order, which is not that of paths.

    A folder that does not exist is empty, as in stores of keys.

    Args:
        client: sends the request.
        place: the folder, or an incomplete name in it.
        commit: at which it is listed.
        recursive: whether the folders in it are entered.
        token: the cursor of the page.
        shown: URL of the folder, for errors.
    """
    folder = place.file.rpartition("/")[0]
    query = {"recursive": "true" if recursive else "false", "expand": "false"}
    if token is not None:
        query["cursor"] = token
    target = place.repository.api("tree", commit, *([folder] if folder else []))
    try:
        found, headers = client.get_json(f"{target}?{urlencode(query)}", shown, place.repository)
    except MissingFileError:
        if token is not None:
            raise  # the pages before are not all that the folder had
        return Page([], None)
    if not isinstance(found, list):
        raise unusable_response(shown, f"the Hub's listing is no list, but {found!r:.100}")
    try:
        files = [_checked(one) for one in found if one["type"] == "file"]
        entries = EntryTable(
            [f"{place.root}{one['path']}" for one in files],
            [one["size"] for one in files],
            [_etag(one) for one in files],
            [None] * len(files),
            _unknown,
        )
        folders = [f"{place.root}{one['path']}/" for one in found if one["type"] == "directory"]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StorageError(
            f"{shown}: the Hub's listing has an entry without what listings have ({type(error).__name__}: {error}). "
            f"Is {client.endpoint} a Hub?",
            url=shown,
        ) from None
    return Page(entries, _cursor(headers.get("Link"), shown), folders)


def _checked(info: dict[str, Any]) -> dict[str, Any]:
    """Return the entry of a file whose path and size can be meant."""
    path, size = info["path"], info["size"]
    if not isinstance(path, str) or any(segment in ("", ".", "..") for segment in path.split("/")):
        raise ValueError(f"path {path!r:.200}")
    if type(size) is not int or size < 0:
        raise ValueError(f"size {size!r:.50} of {path!r:.200}")
    return info


def _etag(info: dict[str, Any]) -> str:
    """Name of the content: SHA-256 of what is in LFS or Xet, else git's. Reading a file returns the same."""
    return f'"{(info.get("lfs") or info)["oid"]}"'


def _unknown(modified: None) -> None:
    """Listings have no times."""
    return modified


def _cursor(link: str | None, shown: str) -> str | None:
    """The cursor of the next page. Only it is taken from the header: the next request goes to the Hub too."""
    following = _NEXT.search(link or "")
    if following is None:
        return None
    try:
        cursor = parse_qs(urlsplit(following[1]).query).get("cursor")
    except ValueError:  # no URL
        cursor = None
    if not cursor:
        raise unusable_response(shown, "the Hub links to a next page without a cursor")
    return cursor[0]
