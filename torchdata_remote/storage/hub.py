"""``hf://``: repositories of the Hugging Face Hub, for reading only. Only the Hub gets the token."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn
from urllib.parse import quote, unquote, unquote_plus, urlencode

from ..core.options import StorageOptions
from ..core.threads import NamedLocks
from ..core.urls import join_url, redact_text
from ..errors import (
    AccessDeniedError,
    ExpiredCredentialsError,
    ObjectNotFoundError,
    StorageError,
    UrlError,
)
from .errors import from_status, unusable_response
from .folder_walk import ByFolders
from .http import HttpClient, answer_of, body_of, first_byte, origin_of, range_header
from .network import server_address
from .protocol import Answer, Entry, Page, normalized_etag

# A revision is the segment behind "@", but for some that have slashes
_PLACE = re.compile(
    r"(?:(datasets|models|spaces|kernels)/)?(?!(?:buckets|datasets|models|spaces|kernels)/)([^/@]+/[^/@]+)"
    r"(?:@(refs/(?:convert/[\w.-]+|pr/\d+)(?=/|$)|[^/]+))?(?:/(.*))?",
    re.DOTALL,
)
_TOKEN = re.compile(r"[\x21-\x7e]+")
_TRUE = {"1", "ON", "YES", "TRUE"}
_COMMIT = re.compile(r"[0-9a-f]{40}")
_CURSOR = re.compile(r"[?&]cursor=([^&>]+)[^>]*>\s*;[^,]*\brel=\"?next")
_LIMIT = re.compile(r"\br\s*=\s*0\s*;\s*t\s*=\s*(\d{1,18})(?!\d)")
_MAX_LOCATIONS = 10_000  # about a kilobyte each
_MAX_ERROR_BYTES = 8192


class _NoFileError(ObjectNotFoundError):
    """The revision has no file or folder of this path."""


class _Place(NamedTuple):
    """What a path names.

    Args:
        page: URL of the repository, below which its files are.
        api: URL of requests about the repository.
        revision: a branch, tag, commit or other reference.
        root: the start of the path, up to that of the file.
        file: path in the repository; empty for its root.
        shown: the URL.
    """

    page: str
    api: str
    revision: str
    root: str
    file: str
    shown: str


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

    lists_in_order = False

    def __init__(self, first: str, options: StorageOptions, read_timeout_s: float) -> None:
        endpoint = options.get("endpoint") or os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
        self._endpoint = server_address(f"hf://{first}", str(endpoint), "the endpoint (also HF_ENDPOINT)")
        self._first, self._options = first, options
        self._client = HttpClient(self._endpoint, read_timeout_s)
        self._commits: dict[tuple[str, str], str] = {}  # by repository and revision
        self._found: dict[str, tuple[str, str | None]] = {}  # by a file's URL at the Hub, where it is, and its etag
        self._asking = NamedLocks()  # one request, however many threads wait for it

    # Requests

    def _send(self, url: str, place: _Place, wanted: str | None = None) -> tuple[Any, str, str | None]:
        """Send a request, and follow redirects: with the token at the Hub, without it elsewhere.

        Args:
            url: which is not shown.
            place: that is asked for.
            wanted: header of the range.

        Returns:
            The response; the URL that answered, which may be signed; and the file's etag.

        Raises:
            StorageError: for every response that is not a success.
        """
        etag: str | None = None
        token = _token(self._options.get("token")) if self._client.is_at_server(url) else ""
        headers = {} if wanted is None else {"Range": wanted}
        own = {"Authorization": f"Bearer {token}"} if token else {}
        for asked, response, _ in self._client.follow(url, place.shown, headers, own):
            if self._client.is_at_server(asked):
                etag = etag or normalized_etag(response.headers.get("X-Linked-Etag"))
        if response.status in (200, 203, 206):
            return response, asked, etag or normalized_etag(response.headers.get("ETag"))
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
        text = f"{shown}: the Hub answered {status} {code}: {said}."
        if status in (401, 403):
            advice = (
                f"Pass storage_options={{'token': ...}}, set HF_TOKEN, or run `hf auth login`; tokens are made at "
                f"{self._endpoint}/settings/tokens. The terms of a gated repository are accepted at {place.page}."
            )
            return AccessDeniedError(f"{text} {advice}", url=shown)
        if status == 404:
            return (_NoFileError if code == "EntryNotFound" else ObjectNotFoundError)(text, url=shown)
        limit = _LIMIT.search(headers.get("RateLimit", ""))
        wait = headers.get("Retry-After") or (limit and limit[1])
        return from_status(status, "", shown, retry_after=wait, said=said)

    def _json(self, url: str, place: _Place, kind: type) -> tuple[Any, Mapping[str, str]]:
        """Request a URL of the API, and return the JSON of the response, and its headers."""
        response, *_ = self._send(url, place)
        body = body_of(response, place.shown)
        with contextlib.suppress(ValueError, RecursionError):
            found = json.loads(body)
            if isinstance(found, kind):
                return found, response.headers
        what = f"{self._endpoint} answers {redact_text(repr(body[:80]))}, which no Hub does"
        raise unusable_response(place.shown, what)

    # Repositories

    def _at(self, path: str) -> tuple[_Place, str]:
        """Return the place that a path names, and the commit at which it is read."""
        url, match = join_url("hf", self._first, path), _PLACE.fullmatch(f"{self._first}/{path}")
        kind, name, written, file = ("", "", "", "") if match is None else match.groups(default="")
        revision = unquote(written) or str(self._options.get("revision") or "main")
        if not (_is_plain(name) and _is_plain(revision)):
            raise UrlError(
                f"{url}: names no repository. Expected hf://datasets/OWNER/NAME/PATH, or with a revision "
                "hf://datasets/OWNER/NAME@REVISION/PATH, with no segment '.' or '..'. Buckets are not read: their "
                "files have no versions.",
                url=url,
            )
        kind, at = kind or "models", self._endpoint
        page = f"{at}/{quote(name)}" if kind == "models" else f"{at}/{kind}/{quote(name)}"
        api, root = f"{at}/api/{kind}/{quote(name)}", path[: len(path) - len(file)]
        place = _Place(page, api, revision, root, file, url)
        commit = revision if _COMMIT.fullmatch(revision) else self._commits.get((api, revision))
        if commit is None:
            with self._asking.held((api, revision)):
                commit = self._commits.get((api, revision)) or self._commit_of(place)
                self._commits[api, revision] = commit
        return place, commit

    def _commit_of(self, place: _Place) -> str:
        about, _ = self._json(f"{place.api}/revision/{quote(place.revision, safe='')}?expand=sha", place, dict)
        commit = str(about.get("sha"))
        if not _COMMIT.fullmatch(commit):
            raise unusable_response(place.shown, f"{self._endpoint} does not say which commit {place.revision!r} is")
        return commit

    # Listings

    def list_page(self, prefix: str, *, recursive: bool, token: str | None, after: str = "") -> Page:
        """Return a page of a folder in the Hub's order, which is not that of paths; none of a missing folder."""
        place, commit = self._at(prefix)
        folder = quote(place.file.rpartition("/")[0], safe="")
        query = urlencode(
            {"recursive": str(recursive).lower(), "expand": "false"} | ({"cursor": token} if token else {})
        )
        try:
            found, headers = self._json(f"{place.api}/tree/{commit}/{folder}".rstrip("/") + f"?{query}", place, list)
        except _NoFileError:
            if token is not None:
                raise  # the pages before are not all that the folder had
            return Page([], None)
        entries, folders = list[Entry](), list[str]()
        try:
            for info in found:
                path = place.root + info["path"]
                if not _is_plain(info["path"]):
                    raise ValueError(f"path {path!r:.200}")
                if info["type"] == "directory":
                    folders.append(f"{path}/")
                else:
                    entries.append(_entry(path, info))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            what = f"{self._endpoint} lists what no Hub does ({type(error).__name__}: {error})"
            raise StorageError(f"{place.shown}: {what}", url=place.shown) from None
        link = headers.get("Link", "")
        cursor = _CURSOR.search(link)
        if link and cursor is None:
            raise unusable_response(place.shown, "the Hub links to a next page without a cursor")
        return Page(entries, unquote_plus(cursor[1]) if cursor else None, folders)

    # Files

    def stat(self, path: str) -> Entry:
        return first_byte(self.read, path)

    def read(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        place, url = self._file(path)
        wanted, known = range_header(start, end), self._found.get(url)
        if known is not None:
            with contextlib.suppress(AccessDeniedError, ObjectNotFoundError):  # its signature has expired
                return answer_of(self._send(known[0], place, wanted)[0], place.file, place.shown, etag=known[1])
        with self._asking.held(url):  # other parts wait for the answer to the first one
            if self._found.get(url) is known:
                response, where, found_etag = self._send(url, place, wanted)
                if len(self._found) >= _MAX_LOCATIONS:
                    self._found.clear()
                self._found[url] = where, found_etag
                return answer_of(response, place.file, place.shown, etag=found_etag)
        return self.read(path, start, end, etag)

    def _file(self, path: str) -> tuple[_Place, str]:
        """Return the place of a file, and its URL at the Hub."""
        place, commit = self._at(path)
        if not _is_plain(place.file):
            what = "names no file of a repository: its path has no empty segment, '.' or '..'"
            raise ObjectNotFoundError(f"{place.shown} {what}.", url=place.shown)
        return place, f"{place.page}/resolve/{commit}/{quote(place.file)}"

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
    return not {"", ".", ".."} & set(path.split("/"))


def _entry(path: str, info: dict[str, Any]) -> Entry:
    """Return a file of a listing. What is neither file nor folder is a file that cannot be read.

    The etag is the name of the content: SHA-256 of what is in LFS or Xet, else git's. Reading a file returns the same.
    """
    if info["type"] != "file":
        return Entry(path, None, None)
    size, oid = info["size"], (info.get("lfs") or info)["oid"]
    if size < 0 or not oid:
        raise ValueError(f"size {size} of {path!r:.200}")
    return Entry(path, size, f'"{oid}"')


def _token(token: str | bool | None) -> str:
    """Return the token to send, in ``huggingface_hub``'s order: the option, the environment, the file of a login.

    Raises:
        AccessDeniedError: if the option is ``True`` and there is none, or if it cannot be sent. Never shows it.
    """
    if token is False or (token is None and os.environ.get("HF_HUB_DISABLE_IMPLICIT_TOKEN", "").upper() in _TRUE):
        return ""
    found = os.environ.get("HF_TOKEN") if token in (None, True) else str(token)
    if not found:
        home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
        file = os.environ.get("HF_TOKEN_PATH") or os.path.join(home, "token")
        with contextlib.suppress(OSError):
            found = Path(file).expanduser().read_text("utf-8", "replace")
    found = (found or "").strip()
    if not found and token is True:
        raise AccessDeniedError("hf://: the option token=True needs a token. Set HF_TOKEN, or run `hf auth login`.")
    if found and not _TOKEN.fullmatch(found):
        raise AccessDeniedError("hf://: the token has characters that are invalid in a header.")
    return found
