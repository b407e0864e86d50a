"""``hf://``: repositories of the Hugging Face Hub, for reading only. Only the Hub gets the token."""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn
from urllib.parse import quote, unquote, unquote_plus, urlencode

from ..core.options import StorageOptions
from ..core.threads.named_locks import NamedLocks
from ..core.urls import join_url, redact_text
from ..errors import (
    AccessDeniedError,
    ExpiredCredentialsError,
    ObjectNotFoundError,
    StorageError,
    TransientStorageError,
    UrlError,
)
from .errors import from_status, unusable_response
from .folder_walk import ByFolders
from .http import HttpClient, answer_of, body_of, origin_of, parse_content_length, range_header
from .protocol import Answer, Entry, Page, normalized_etag

# A revision is the segment behind "@", but for some that have slashes
_PLACE = re.compile(
    r"(?:(datasets|models|spaces|kernels)/)?(?!(?:buckets|datasets|models|spaces|kernels)/)([^/@]+/[^/@]+)"
    r"(?:@(refs/(?:convert/[\w.-]+|pr/\d+)(?=/|$)|[^/]+))?(?:/(.*))?",
    re.DOTALL,
)
_ENDPOINT = re.compile(r"https?://[^/?#@\s]+(/[^?#@\s]*)?", re.IGNORECASE)
_TOKEN = re.compile(r"[\x21-\x7e]+")
_TRUE = {"1", "ON", "YES", "TRUE"}
_COMMIT = re.compile(r"[0-9a-f]{40}")
_CURSOR = re.compile(r"[?&]cursor=([^&>]+)[^>]*>\s*;[^,]*\brel=\"?next")
_LIMIT = re.compile(r'"(\w+)"\s*;\s*r\s*=\s*0\s*;\s*t\s*=\s*(\d{1,18})(?!\d)')
_MAX_LOCATIONS = 10_000  # about a kilobyte each
_MAX_ERROR_BYTES = 8192
# What the codes of the Hub mean
_REFUSALS = {
    "GatedRepo": "is gated: accept its terms at {page} with the account of the token",
    "RepoNotFound": "does not exist, or is private",
    "RevisionNotFound": "has no revision {revision!r} (a slash in its name is written as %2F)",
    "EntryNotFound": "has no such file at this revision",
}


class _MissingFileError(ObjectNotFoundError):
    """The revision has no file or folder of this path."""


class _Place(NamedTuple):
    """What a path names.

    Args:
        kind: ``datasets``, ``models``, ``spaces`` or ``kernels``.
        name: ``OWNER/NAME``.
        revision: a branch, tag, commit or other reference.
        root: the start of the path, up to that of the file.
        file: path in the repository; empty for its root.
        shown: the URL.
    """

    kind: str
    name: str
    revision: str
    root: str
    file: str
    shown: str

    @property
    def page(self) -> str:
        """Path of the repository's page, below which its files are."""
        return f"/{quote(self.name)}" if self.kind == "models" else f"/{self.kind}/{quote(self.name)}"

    def api(self, *parts: str) -> str:
        """Path of a request about the repository, with each part quoted whole, as ``huggingface_hub`` does."""
        return "/".join([f"/api/{self.kind}/{quote(self.name)}", *(quote(part, safe="") for part in parts)])


class _Found(NamedTuple):
    """Where a file is: a URL, perhaps signed; and its etag and size, if the Hub has said it of another host's file."""

    url: str
    etag: str | None
    size: int | None


class HubStore(ByFolders):
    """The repositories whose URLs begin with the same segment. Paths are ``OWNER/NAME[@REVISION]/PATH``.

    A revision is looked up once: all requests of this store read the same commit, also after its branch has moved.
    Where the Hub has sent us for a file is remembered, so that its further parts cost no request to the Hub.

    Args:
        first: first segment of the URLs: ``datasets``, ``spaces``, or the owner of models.
        options: ``token``, ``endpoint`` and ``revision``.
        read_timeout_s: seconds without a byte after which a request fails.

    Raises:
        UrlError: if the endpoint is no URL.
    """

    may_ignore_ranges = False
    maps_files = False
    lists_in_order = False

    def __init__(self, first: str, options: StorageOptions, read_timeout_s: float) -> None:
        for name in ("token", "revision"):
            if not isinstance(options.get(name), str | bool | None):
                raise UrlError(f"hf://: storage_options[{name!r}] must be a str, got {type(options[name]).__name__}.")
        endpoint = options.get("endpoint") or os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
        if not _ENDPOINT.fullmatch(str(endpoint)):
            raise UrlError(
                "hf://: the endpoint (storage_options['endpoint'] or HF_ENDPOINT) must be a URL such as "
                "https://huggingface.co, without user or password."
            )
        self._first, self._endpoint, self._options = first, str(endpoint).rstrip("/"), options
        self._client = HttpClient(self._endpoint, read_timeout_s)
        self._commits: dict[tuple[str, str, str], str] = {}
        self._found: dict[str, _Found] = {}  # by the file's URL at the Hub
        self._lock = threading.RLock()
        self._asking = NamedLocks()  # for the location of a file

    # Requests

    def _send(
        self, method: str, url: str, place: _Place, headers: Mapping[str, str] | None = None
    ) -> tuple[Any, _Found]:
        """Send a request, and follow redirects: with the token at the Hub, without it elsewhere.

        ``HEAD`` ends at the Hub's redirect to another host, which says all about the file.

        Raises:
            StorageError: for every response that is not a success.
        """
        etag: str | None = None
        size: int | None = None
        token = find_token(self._options.get("token"))
        own = {} if token is None else {"Authorization": f"Bearer {token}"}
        for asked, response, following in self._client.follow(method, url, place.shown, headers or {}, own):
            if self._client.is_at_server(asked):
                etag = etag or normalized_etag(response.headers.get("X-Linked-Etag"))
                size = parse_content_length(response.headers.get("X-Linked-Size")) if size is None else size
            if method == "HEAD" and following is not None and not self._client.is_at_server(following):
                body_of(response, place.shown)
                return response, _Found(following, etag, size)
        if response.status in (200, 203, 206):
            return response, _Found(asked, etag, size)
        body_of(response, place.shown, _MAX_ERROR_BYTES)
        raise self._refused(response, asked, place)

    def _refused(self, response: Any, url: str, place: _Place) -> StorageError:
        status, headers, shown = response.status, response.headers, place.shown
        if not self._client.is_at_server(url) and status in (400, 401, 403, 404, 410):
            return ExpiredCredentialsError(
                f"{shown}: {origin_of(url)} refuses the address that the Hub has given for this file ({status}).",
                url=shown,
            )
        said, code = f"{headers.get('X-Error-Message', '')!r:.300}", headers.get("X-Error-Code", "")
        meaning = _REFUSALS.get(code, "is refused").format(page=self._endpoint + place.page, revision=place.revision)
        text = f"{shown}: the {place.kind[:-1]} {place.name!r} {meaning}. The Hub answered {status}: {said}."
        if status in (401, 403):
            login = "Pass storage_options={'token': ...}, set HF_TOKEN, or run `hf auth login`; tokens are made at"
            return AccessDeniedError(f"{text} {login} {self._endpoint}/settings/tokens.", url=shown)
        if code in _REFUSALS:
            return (_MissingFileError if code == "EntryNotFound" else ObjectNotFoundError)(text, url=shown)
        error = from_status(status, "", shown, retry_after=headers.get("Retry-After"), said=said)
        limit = _LIMIT.search(headers.get("RateLimit", ""))
        if limit is not None and isinstance(error, TransientStorageError):
            error.retry_after_s = max(error.retry_after_s or 0.0, float(limit[2]))
            error.args = (f"{error} The rate limit for {limit[1]} is reached, for {limit[2]} s; a token raises it.",)
        return error

    def _json(self, target: str, place: _Place) -> tuple[Any, Mapping[str, str]]:
        """Request a path of the API, and return the JSON of the response, and its headers."""
        response, _ = self._send("GET", self._endpoint + target, place)
        body = body_of(response, place.shown)
        try:
            return json.loads(body), response.headers
        except (ValueError, RecursionError):
            raise unusable_response(
                place.shown, f"{self._endpoint} answers {redact_text(repr(body[:80]))}, which is no JSON"
            ) from None

    # Repositories

    def _at(self, path: str) -> tuple[_Place, str]:
        """Return the place that a path names, and the commit at which it is read."""
        url = join_url("hf", self._first, path)
        match = _PLACE.fullmatch(f"{self._first}/{path}")
        kind, name, revision, file = ("", "", "", "") if match is None else match.groups(default="")
        revision = unquote(revision) or self._options.get("revision") or "main"
        if not (_is_plain(name) and _is_plain(revision)):
            raise UrlError(
                f"{url}: names no repository. Expected hf://datasets/OWNER/NAME/PATH, or with a revision "
                "hf://datasets/OWNER/NAME@REVISION/PATH, without a segment '.' or '..' in them. Buckets are not read, "
                "because their files have no versions.",
                url=url,
            )
        place = _Place(kind or "models", name, revision, path[: len(path) - len(file)], file, url)
        commit = revision if _COMMIT.fullmatch(revision) else self._commits.get(place[:3])
        if commit is None:
            with self._lock:  # one request, however many threads wait for it
                commit = self._commits[place[:3]] = self._commits.get(place[:3]) or self._commit_of(place)
        return place, commit

    def _commit_of(self, place: _Place) -> str:
        about, _ = self._json(f"{place.api('revision', place.revision)}?expand=sha", place)
        commit = str(about.get("sha")) if isinstance(about, dict) else ""
        if not _COMMIT.fullmatch(commit):
            raise unusable_response(place.shown, f"{self._endpoint} does not say which commit {place.revision!r} is")
        return commit

    # Listings

    def list_page(self, prefix: str, *, recursive: bool, token: str | None, after: str = "") -> Page:
        """Return a page of a folder in the Hub's order, which is not that of paths; none of a missing folder."""
        place, commit = self._at(prefix)
        folder = place.file.rpartition("/")[0]
        query = {"recursive": str(recursive).lower(), "expand": "false", **({} if token is None else {"cursor": token})}
        target = place.api("tree", commit, *([folder] if folder else []))
        try:
            found, headers = self._json(f"{target}?{urlencode(query)}", place)
        except _MissingFileError:
            if token is not None:
                raise  # the pages before are not all that the folder had
            return Page([], None)
        entries, folders = list[Entry](), list[str]()
        try:
            if not isinstance(found, list):
                raise TypeError("no list")
            for info in found:
                path = place.root + info["path"]
                if not _is_plain(info["path"]):
                    raise ValueError(f"path {path!r:.200}")
                if info["type"] == "directory":
                    folders.append(f"{path}/")
                else:
                    entries.append(_entry(path, info))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StorageError(
                f"{place.shown}: the answer is no listing of a Hub ({type(error).__name__}: {error}). Is "
                f"{self._endpoint} one?",
                url=place.shown,
            ) from None
        link = headers.get("Link")
        cursor = _CURSOR.search(link or "")
        if link and cursor is None:
            raise unusable_response(place.shown, "the Hub links to a next page without a cursor")
        return Page(entries, unquote_plus(cursor[1]) if cursor else None, folders)

    # Files

    def find(self, path: str) -> Entry | None:
        try:
            return self.stat(path)
        except _MissingFileError:
            return None

    def stat(self, path: str) -> Entry:
        place, url = self._file(path)
        response, found = self._send("HEAD", url, place)
        if response.status < 300:
            body_of(response, place.shown)  # none, but urllib3 has to see its end
            length = parse_content_length(response.headers.get("Content-Length"))
            etag = found.etag or normalized_etag(response.headers.get("ETag"))
            found = _Found(found.url, etag, length if found.size is None else found.size)
        self._remember(url, found)
        return Entry(path, found.size, found.etag)

    def read(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        place, url = self._file(path)
        known = self._found.get(url)
        if known is not None:
            with contextlib.suppress(AccessDeniedError, ObjectNotFoundError):  # its signature has expired
                return self._read(place, known.url, start, end, known)[0]
        with self._asking.held(url):  # other parts wait for the answer to the first one
            found = self._found.get(url)
            if found is None or found is known:
                answer, found = self._read(place, url, start, end)
                self._remember(url, found)
                return answer
        return self._read(place, found.url, start, end, found)[0]

    def _read(
        self, place: _Place, url: str, start: int, end: int | None, known: _Found | None = None
    ) -> tuple[Answer, _Found]:
        """Read from the Hub, or from where it has sent us. The etag is that of listings."""
        wanted = range_header(start, end)
        response, found = self._send("GET", url, place, {} if wanted is None else {"Range": wanted})
        about = known or found
        return answer_of(response, place.file, place.shown, etag=about.etag, size=about.size), found

    def _file(self, path: str) -> tuple[_Place, str]:
        """Return the place of a file, and its URL at the Hub."""
        place, commit = self._at(path)
        if not _is_plain(place.file):
            raise _MissingFileError(
                f"{place.shown}: names no file of a repository: its path has no empty segment, '.' or '..'.",
                url=place.shown,
            )
        return place, f"{self._endpoint}{place.page}/resolve/{commit}/{quote(place.file)}"

    def _remember(self, url: str, found: _Found) -> None:
        with self._lock:
            self._found[url] = found
            if len(self._found) > _MAX_LOCATIONS:
                del self._found[next(iter(self._found))]

    def _refuse(self, *arguments: Any, **options: Any) -> NoReturn:
        url = join_url("hf", self._first, arguments[0])
        raise UrlError(
            f"{url}: repositories of the Hub are only read. Write shards to a local folder, and upload it by "
            "huggingface_hub: HfApi().upload_folder(folder_path=..., repo_id='OWNER/NAME', repo_type='dataset'), or "
            "`hf upload`.",
            url=url,
        )

    create = delete = remove_leftovers = _refuse


def _is_plain(path: str) -> bool:
    """Whether no segment of a path is empty or dots, which urllib3 would resolve: it would name another path."""
    return not any(segment in ("", ".", "..") for segment in path.split("/"))


def _entry(path: str, info: dict[str, Any]) -> Entry:
    """Return a file of a listing. What is neither file nor folder is a file that cannot be read.

    The etag is the name of the content: SHA-256 of what is in LFS or Xet, else git's. Reading a file returns the same.
    """
    if info["type"] != "file":
        return Entry(path, None, None)
    size, oid = info["size"], (info.get("lfs") or info)["oid"]
    if size < 0 or not oid:
        raise ValueError(f"size {size!r:.50} and oid {oid!r:.50} of {path!r:.200}")
    return Entry(path, size, f'"{oid}"')


def find_token(token: str | bool | None) -> str | None:
    """Return the token to send, in ``huggingface_hub``'s order: the option, the environment, the file of a login.

    Raises:
        AccessDeniedError: if the option is ``True`` and there is none, or if it cannot be sent. Never shows it.
    """
    if token is False or (token is None and os.environ.get("HF_HUB_DISABLE_IMPLICIT_TOKEN", "").upper() in _TRUE):
        return None
    found = token if isinstance(token, str) else os.environ.get("HF_TOKEN", "").strip() or _token_of_login()
    if not found.strip() and token is True:
        raise AccessDeniedError("hf://: the option token=True needs a token. Set HF_TOKEN, or run `hf auth login`.")
    if found.strip() and not _TOKEN.fullmatch(found.strip()):
        raise AccessDeniedError("hf://: the token has characters that are invalid in a header.")
    return found.strip() or None


def _token_of_login() -> str:
    """Content of the file that ``hf auth login`` writes; empty if there is none."""
    home = os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    path = os.environ.get("HF_TOKEN_PATH") or os.path.join(os.environ.get("HF_HOME") or home, "token")
    with contextlib.suppress(OSError), open(os.path.expanduser(path), encoding="utf-8", errors="replace") as file:
        return file.read()
    return ""
