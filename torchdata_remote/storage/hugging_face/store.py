"""``hf://``: repositories of the Hugging Face Hub, for reading only."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from typing import NoReturn

from ...core.urls import join_url
from ...errors import AccessDeniedError, ObjectNotFoundError, UrlError
from ..errors import unusable_response
from ..folder_walk import page_after
from ..paging import every_page
from ..protocol import Answer, Entry, ObjectWriter, Page
from .client import HubClient
from .errors import MissingFileError
from .listing import list_folder
from .reader import HubReader
from .repository import DEFAULT_REVISION, HubPath, Repository, split_hub_path
from .settings import HubSettings

_COMMIT = re.compile(r"[0-9a-f]{40}")


class HubStore:
    """The repositories whose URLs begin with the same segment. Paths are ``OWNER/NAME[@REVISION]/PATH``.

    A revision is looked up once: all requests of this store read the same commit, also after its branch has moved.

    Args:
        first: first segment of the URLs: ``datasets``, ``spaces``, or the owner of models.
        settings: endpoint, token, revision.
    """

    may_ignore_ranges = False
    maps_files = False
    lists_in_order = False

    def __init__(self, first: str, settings: HubSettings) -> None:
        self._first, self._revision = first, settings.revision
        self._client = HubClient(settings)
        self._reader = HubReader(self._client)
        self._commits: dict[Repository, str] = {}
        self._without_owner: set[Repository] = set()
        self._lock = threading.RLock()

    # Repositories

    def _url(self, path: str) -> str:
        return join_url("hf", self._first, path)

    def _at(self, path: str) -> tuple[HubPath, str]:
        """Return the place that a path names, and the commit at which it is read."""
        place = self._with_revision(split_hub_path(self._first, path), path)
        commit = self._commits.get(place.repository)
        if commit is None:
            with self._lock:  # one request, however many threads wait for it
                commit = self._commits.get(place.repository) or self._find_commit(place, path)
        if place.repository in self._without_owner:
            other = split_hub_path(self._first, path).without_owner()
            assert other is not None
            place = other
        return place, commit

    def _with_revision(self, place: HubPath, path: str) -> HubPath:
        repository, option = place.repository, self._revision
        if repository.revision is not None and option not in (None, repository.revision):
            raise UrlError(
                f"{self._url(path)}: the URL names the revision {repository.revision!r}, storage_options {option!r}. "
                "Pass one of them.",
                url=self._url(path),
            )
        return place._replace(repository=repository._replace(revision=repository.revision or option))

    def _find_commit(self, place: HubPath, path: str) -> str:
        try:
            commit = self._commit_of(place.repository, path)
        except (ObjectNotFoundError, AccessDeniedError):
            other = split_hub_path(self._first, path).without_owner()
            if other is None or self._revision is not None:
                raise
            try:
                commit = self._commit_of(other.repository, path)
            except (ObjectNotFoundError, AccessDeniedError):
                commit = ""
            if not commit:
                raise
            self._without_owner.add(place.repository)
        self._commits[place.repository] = commit
        return commit

    def _commit_of(self, repository: Repository, path: str) -> str:
        revision = repository.revision or DEFAULT_REVISION
        if _COMMIT.fullmatch(revision):
            return revision
        url = self._url(path)
        about, _ = self._client.get_json(f"{repository.api('revision', revision)}?expand=sha", url, repository)
        commit = about.get("sha") if isinstance(about, dict) else None
        if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
            raise unusable_response(url, f"{self._client.endpoint} does not say which commit {revision!r} is")
        return commit

    # Listings

    def list_page(self, prefix: str, *, recursive: bool, token: str | None, after: str = "") -> Page:
        place, commit = self._at(prefix)
        shown = self._url(prefix)
        return list_folder(self._client, place, commit, recursive=recursive, token=token, shown=shown)

    def list_after(self, prefix: str, *, recursive: bool, after: str, limit: int) -> Page:
        return page_after(self._pages, prefix, after, recursive=recursive, limit=limit)

    def _pages(self, prefix: str) -> Iterator[Page]:
        return every_page(lambda token: self.list_page(prefix, recursive=False, token=token), self._url(prefix))

    def has_folder(self, path: str) -> bool:
        page = self.list_page(path, recursive=False, token=None)
        return bool(page.folders) or any(entry.path.startswith(path) for entry in page.entries)

    # Files

    def find(self, path: str) -> Entry | None:
        try:
            return self.stat(path)
        except MissingFileError:
            return None

    def stat(self, path: str) -> Entry:
        place, commit = self._at(path)
        self._require_file(place, path)
        return self._reader.stat(place.repository, commit, place.file, path, self._url(path))

    def read(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        place, commit = self._at(path)
        self._require_file(place, path)
        return self._reader.read(place.repository, commit, place.file, start, end, self._url(path))

    def _require_file(self, place: HubPath, path: str) -> None:
        """Refuse paths that name no file. Dots would be resolved by urllib3, and name another file."""
        if not place.file:
            raise MissingFileError(f"{self._url(path)} names a repository, not a file in it.", url=self._url(path))
        if any(segment in ("", ".", "..") for segment in place.file.split("/")):
            raise MissingFileError(
                f"{self._url(path)}: the path of a file in a repository has no empty segment, '.' or '..'.",
                url=self._url(path),
            )

    # What is refused

    def _refuse(self, path: str) -> NoReturn:
        url = self._url(path)
        raise UrlError(
            f"{url}: repositories of the Hub are only read. Write shards to a local folder, and upload it by "
            "huggingface_hub: HfApi().upload_folder(folder_path=..., repo_id='OWNER/NAME', repo_type='dataset'), or "
            "`hf upload`.",
            url=url,
        )

    def create(self, path: str, *, overwrite: bool) -> ObjectWriter:
        self._refuse(path)

    def delete(self, path: str) -> None:
        self._refuse(path)

    def make_folder(self, path: str) -> None:
        """Refuse it."""
        self._refuse(path)

    def remove_folder(self, path: str) -> None:
        """Refuse it."""
        self._refuse(path)

    def remove_leftovers(self, prefix: str, is_ours: Callable[[str], bool]) -> None:
        self._refuse(prefix)

    def remove_old_leftovers(self, path: str, before_s: float) -> None:
        """Refuse it."""
        self._refuse(path)
