"""``hf://``: repositories of the Hugging Face Hub, for reading only."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator
from typing import Any, NoReturn
from urllib.parse import parse_qs, quote, urlencode, urlsplit

from ...core.threads.named_locks import NamedLocks
from ...core.urls import join_url
from ...errors import AccessDeniedError, ObjectNotFoundError, StorageError, UrlError
from ..errors import unusable_response
from ..folder_walk import page_after
from ..http import answer_of, body_of, parse_content_length, range_header
from ..protocol import Answer, Entry, Page, normalized_etag
from .client import HubClient, MissingFileError, Received
from .repository import HubPath, Repository, is_plain, split_hub_path
from .settings import HubSettings

_COMMIT = re.compile(r"[0-9a-f]{40}")
_NEXT = re.compile(r'<([^>]*)>\s*;[^,]*\brel="?next"?')
_MAX_LOCATIONS = 10_000  # about a kilobyte each


class HubStore:
    """The repositories whose URLs begin with the same segment. Paths are ``OWNER/NAME[@REVISION]/PATH``.

    A revision is looked up once: all requests of this store read the same commit, also after its branch has moved.
    Where the Hub has sent us for a file is remembered, so that its further parts cost no request to the Hub.

    Args:
        first: first segment of the URLs: ``datasets``, ``spaces``, or the owner of models.
        settings: endpoint, token, revision.
    """

    may_ignore_ranges = False
    maps_files = False
    lists_in_order = False

    def __init__(self, first: str, settings: HubSettings) -> None:
        self._first, self._revision, self._client = first, settings.revision, HubClient(settings)
        self._places: dict[Repository, tuple[str, bool]] = {}  # commits, and whether it is the one without an owner
        self._locations: dict[str, Received] = {}  # by the file's URL at the Hub; without bodies
        self._lock = threading.RLock()
        self._asking = NamedLocks()  # for the location of a file

    # Repositories

    def _url(self, path: str) -> str:
        return join_url("hf", self._first, path)

    def _at(self, path: str) -> tuple[HubPath, str]:
        """Return the place that a path names, and the commit at which it is read."""
        place, option = split_hub_path(self._first, path), self._revision
        revision = place.repository.revision
        if None not in (revision, option) and revision != option:
            raise UrlError(
                f"{self._url(path)}: the URL names the revision {revision!r}, storage_options {option!r}. Pass one of "
                "them.",
                url=self._url(path),
            )
        place = place._replace(repository=place.repository._replace(revision=revision or option))
        found = self._places.get(place.repository)
        if found is None:
            with self._lock:  # one request, however many threads wait for it
                found = self._places.get(place.repository) or self._look_up(place, path)
                self._places[place.repository] = found
        commit, is_without_owner = found
        return (is_without_owner and place.without_owner()) or place, commit

    def _look_up(self, place: HubPath, path: str) -> tuple[str, bool]:
        try:
            return self._commit_of(place.repository, path), False
        except (ObjectNotFoundError, AccessDeniedError):
            other = place.without_owner()
            if other is not None:
                with contextlib.suppress(ObjectNotFoundError, AccessDeniedError):
                    return self._commit_of(other.repository, path), True
            raise

    def _commit_of(self, repository: Repository, path: str) -> str:
        revision, url = repository.revision or "main", self._url(path)
        if _COMMIT.fullmatch(revision):
            return revision
        about, _ = self._client.get_json(f"{repository.api('revision', revision)}?expand=sha", url, repository)
        commit = about.get("sha") if isinstance(about, dict) else None
        if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
            raise unusable_response(url, f"{self._client.endpoint} does not say which commit {revision!r} is")
        return commit

    # Listings

    def list_page(self, prefix: str, *, recursive: bool, token: str | None, after: str = "") -> Page:
        """Return a page of a folder in the Hub's order, which is not that of paths; none of a missing folder."""
        place, commit = self._at(prefix)
        shown, folder = self._url(prefix), place.file.rpartition("/")[0]
        query = {"recursive": "true" if recursive else "false", "expand": "false"}
        if token is not None:
            query["cursor"] = token
        target = place.repository.api("tree", commit, *([folder] if folder else []))
        try:
            found, headers = self._client.get_json(f"{target}?{urlencode(query)}", shown, place.repository)
        except MissingFileError:
            if token is not None:
                raise  # the pages before are not all that the folder had
            return Page([], None)
        if not isinstance(found, list):
            raise unusable_response(shown, f"the Hub's listing is no list, but {found!r:.100}")
        try:
            listed = [_listed(place.root, one) for one in found]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StorageError(
                f"{shown}: the Hub's listing has an entry without what listings have ({type(error).__name__}: "
                f"{error}). Is {self._client.endpoint} a Hub?",
                url=shown,
            ) from None
        folders = [one for one in listed if isinstance(one, str)]
        entries = [one for one in listed if isinstance(one, Entry)]
        return Page(entries, _cursor(headers.get("Link"), shown), folders)

    def list_after(self, prefix: str, *, recursive: bool, after: str, limit: int) -> Page:
        return page_after(self._pages, prefix, after, recursive=recursive, limit=limit)

    def _pages(self, folder: str) -> Iterator[Page]:
        page = self.list_page(folder, recursive=False, token=None)
        yield page
        while page.next_token is not None:
            page = self.list_page(folder, recursive=False, token=page.next_token)
            yield page

    # Files

    def find(self, path: str) -> Entry | None:
        try:
            return self.stat(path)
        except MissingFileError:
            return None

    def stat(self, path: str) -> Entry:
        place, url, shown = self._file(path)
        received = self._client.send("HEAD", url, shown, place.repository)
        response, size, etag = received.response, received.size, received.etag
        if response.status < 300:
            body_of(response, shown)  # none, but urllib3 has to see its end
            size = parse_content_length(response.headers.get("Content-Length")) if size is None else size
            etag = etag or normalized_etag(response.headers.get("ETag"))
        self._remember(url, received._replace(size=size, etag=etag))
        return Entry(path, size, etag)

    def read(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        place, url, shown = self._file(path)
        wanted = range_header(start, end)
        headers = {} if wanted is None else {"Range": wanted}

        def send(where: str) -> Received:
            return self._client.send("GET", where, shown, place.repository, headers)

        known = self._locations.get(url)
        if known is not None:
            with contextlib.suppress(AccessDeniedError, ObjectNotFoundError):  # its signature has expired
                return _answer(send(known.url), known, path, shown)
        with self._asking.held(url):  # other parts wait for the answer to the first one
            found = self._locations.get(url)
            if found is None or found is known:
                found = send(url)
                self._remember(url, found)
                return _answer(found, found, path, shown)
        return _answer(send(found.url), found, path, shown)

    def _file(self, path: str) -> tuple[HubPath, str, str]:
        """Return the place of a file, its URL at the Hub, and that for errors."""
        place, commit = self._at(path)
        shown, file = self._url(path), place.file
        if not file:
            raise MissingFileError(f"{shown} names a repository, not a file in it.", url=shown)
        if not is_plain(file):
            raise MissingFileError(
                f"{shown}: the path of a file in a repository has no empty segment, '.' or '..'.", url=shown
            )
        return place, f"{self._client.endpoint}{place.repository.page}/resolve/{commit}/{quote(file)}", shown

    def _remember(self, url: str, received: Received) -> None:
        with self._lock:
            self._locations[url] = received._replace(response=None)
            if len(self._locations) > _MAX_LOCATIONS:
                del self._locations[next(iter(self._locations))]

    # What is refused

    def _refuse(self, *arguments: Any, **options: Any) -> NoReturn:
        """Say that nothing is written, nor served to others."""
        url = self._url(arguments[0])
        raise UrlError(
            f"{url}: repositories of the Hub are only read. Write shards to a local folder, and upload it by "
            "huggingface_hub: HfApi().upload_folder(folder_path=..., repo_id='OWNER/NAME', repo_type='dataset'), or "
            "`hf upload`.",
            url=url,
        )

    create = delete = remove_leftovers = _refuse
    has_folder = make_folder = remove_folder = remove_old_leftovers = _refuse


def _answer(received: Received, about: Received, path: str, shown: str) -> Answer:
    """Return the bytes of a file, with the etag of listings.

    Args:
        received: the response.
        about: what the Hub has said of the file.
        path: of the file.
        shown: URL of the file, for errors.
    """
    answer = answer_of(received.response, path, shown, etag=about.etag, size=lambda etag: about.size)
    if about.size not in (None, answer.total_bytes):
        received.response.close()
        raise unusable_response(
            shown, f"the Hub says that the file has {about.size} bytes, its server {answer.total_bytes}"
        )
    return answer


def _listed(root: str, info: dict[str, Any]) -> Entry | str:
    """Return a file of a listing, or a folder as its path. What is neither is a file that cannot be read.

    The etag is the name of the content: SHA-256 of what is in LFS or Xet, else git's. Reading a file returns the same.
    """
    path, kind = info["path"], info["type"]
    if not isinstance(path, str) or not is_plain(path):
        raise ValueError(f"path {path!r:.200}")
    if kind == "directory":
        return f"{root}{path}/"
    if kind != "file":
        return Entry(root + path, None, None)
    size, oid = info["size"], (info.get("lfs") or info)["oid"]
    if type(size) is not int or size < 0 or not isinstance(oid, str) or not oid:
        raise ValueError(f"size {size!r:.50} and oid {oid!r:.50} of {path!r:.200}")
    return Entry(root + path, size, f'"{oid}"')


def _cursor(link: str | None, shown: str) -> str | None:
    """The cursor of the next page. Only it is taken from the header: the next request goes to the Hub too."""
    following = _NEXT.search(link or "")
    if following is None:
        return None
    cursor: list[str] = []
    with contextlib.suppress(ValueError):  # no URL
        cursor = parse_qs(urlsplit(following[1]).query).get("cursor", [])
    if not cursor:
        raise unusable_response(shown, "the Hub links to a next page without a cursor")
    return cursor[0]
