"""The folder that holds the shards of one template: read, check and clean up its objects."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..core.options import RetryPolicy, StorageOptions
from ..core.processes import describe, is_this_process
from ..core.retry import call_with_retries
from ..core.urls import RemoteUrl, redact
from ..errors import ManifestError, ObjectExistsError, ObjectNotFoundError
from ..formats.companions import without_companion_ending
from ..formats.compression.compress import is_compressed
from ..formats.manifest import (
    CLASSES_NAME,
    LATER_PROVENANCE,
    MANIFEST_NAME,
    PROVENANCE_NAME,
    ShardInfo,
    jobs_of,
    load_manifest,
)
from ..storage import list_folder, open_store, publish, read_whole
from .template import ShardTemplate

UNFINISHED = "_unfinished-"  # prefix of objects that only an unfinished job needs


class ShardFolder:
    """Destination of shards.

    Args:
        template: names of the shards.
        options: for the store.
    """

    def __init__(self, template: ShardTemplate, options: StorageOptions) -> None:
        self.template, self.options = template, options
        self.manifest_url = template.folder + MANIFEST_NAME
        self._retry = RetryPolicy()

    def read(self, name: str, *, is_expected: bool = False) -> bytes | None:
        """Read a small object of the folder; ``None`` if it does not exist.

        Args:
            name: of the object.
            is_expected: whether it almost always exists, so that its existence is not checked first.
        """
        url = self.template.folder + name
        store, path = open_store(url, self.options)
        if not is_expected and call_with_retries(lambda: store.find(path), self._retry, url=url) is None:
            return None
        try:
            return read_whole(url, self.options, self._retry, by_obstore=False)
        except ObjectNotFoundError:
            return None

    def document(self, data: bytes, name: str, kind: str) -> dict[str, Any]:
        """Parse a small JSON object of the folder.

        Raises:
            ManifestError: if it is not of this kind.
        """
        try:
            document = json.loads(data)
            if document["__kind__"] != kind:
                raise ValueError(f"__kind__ is {document['__kind__']!r}")
            return dict(document)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            url = redact(self.template.folder + name)
            raise ManifestError(
                f"{url} is not a journal of this version ({error!r}). Remove it to start again.", url=url
            ) from error

    def publish(self, name: str, data: bytes, *, overwrite: bool = True) -> None:
        """Write a small object of the folder atomically.

        Raises:
            ObjectExistsError: if it exists and ``overwrite`` is ``False``.
        """
        publish(self.template.folder + name, data, self.options, overwrite=overwrite)

    def delete(self, name: str) -> None:
        """Remove an object of the folder if it exists."""
        url = self.template.folder + name
        store, path = open_store(url, self.options)
        call_with_retries(lambda: store.delete(path), self._retry, url=url)

    def manifest(self) -> tuple[list[ShardInfo], list[Any]] | None:
        """Read the manifest: its shards and the jobs that wrote them; ``None`` if there is no manifest.

        Raises:
            ObjectExistsError: if it describes shards of another template.
        """
        data = self.read(MANIFEST_NAME)
        if data is None:
            return None
        shards = load_manifest(data, self.manifest_url)
        others = [shard.url for shard in shards if self.template.index(shard.url) is None]
        if others:
            raise ObjectExistsError(
                f"{redact(self.manifest_url)} describes other shards, such as {redact(others[0])}. A folder holds "
                "the shards of one template: write into another folder.",
                url=redact(self.manifest_url),
            )
        return shards, jobs_of(data)

    def shards(self) -> dict[str, int]:
        """List the existing shards and the objects beside them: name -> shard number."""
        found = {}
        for url in self.list(self.template.before[len(self.template.folder) :]):
            number = self.template.index(without_companion_ending(url))
            if number is not None:
                found[url.rpartition("/")[2]] = number
        return found

    def require_empty(self, has_manifest: bool) -> None:
        """Require that there are no shards and no manifest.

        Raises:
            ObjectExistsError: for the first shard, or the manifest.
        """
        existing = next(iter(self.shards()), MANIFEST_NAME if has_manifest else None)
        if existing is not None:
            raise self.exists_error(existing)

    def exists_error(self, name: str) -> ObjectExistsError:
        """Build the error for an existing object that may not be replaced."""
        url = redact(self.template.folder + name)
        return ObjectExistsError(
            f"{url} exists already. Write into another folder, or pass overwrite=True to replace all shards of this "
            "template.",
            url=url,
        )

    def taken_error(self, owner: Mapping[str, Any] | None) -> ObjectExistsError:
        """Build the error for a folder that another owner has claimed; ``None`` if its claim no longer exists."""
        url = redact(self.template.folder)
        what = "has written there" if owner is None else f"writes there now, {describe(owner)}"
        if owner is not None and is_this_process(owner):
            what += ", which is this one: a writer was not closed"
        return ObjectExistsError(f"{url}: another job {what}. Wait for its end, or write into another folder.", url=url)

    def list(self, prefix: str) -> list[str]:
        """List the URLs of objects whose names begin with a prefix, sorted."""
        return [str(found) for found in self.listed(prefix)]

    def listed(self, prefix: str) -> Iterator[RemoteUrl]:
        """As :meth:`list`, with sizes and etags."""
        url = self.template.folder + prefix
        return list_folder(url, recursive=False, options=self.options, retry=self._retry)

    def remove_description(self) -> None:
        """Remove the manifest, class table and provenance, before the shards that they describe are replaced."""
        stem = PROVENANCE_NAME.partition(".")[0]
        later = [url.rpartition("/")[2] for url in self.list(f"{stem}-")]  # of appended data
        for name in (MANIFEST_NAME, CLASSES_NAME, PROVENANCE_NAME, *filter(LATER_PROVENANCE.fullmatch, later)):
            self.delete(name)

    def remove_leftovers(self) -> None:
        """Remove partial objects of killed writers: of shards of this template, and of the objects beside them."""
        folder = self.template.folder
        store, path = open_store(folder, self.options)
        beside = (MANIFEST_NAME, CLASSES_NAME, PROVENANCE_NAME)

        def is_ours(name: str) -> bool:
            if name.startswith(UNFINISHED) or name in beside or LATER_PROVENANCE.fullmatch(name):
                return True
            return self.template.index(folder + without_companion_ending(name)) is not None

        call_with_retries(lambda: store.remove_leftovers(path, is_ours), self._retry, url=folder)

    def keep_only(self, shards: Sequence[ShardInfo]) -> None:
        """Remove all other shards of this template, and what is beside them."""
        kept = {shard.url.rpartition("/")[2] for shard in shards}
        for name in self.shards():
            shard = without_companion_ending(name)
            if shard not in kept or (name != shard and is_compressed(shard)):
                self.delete(name)
