"""The folder that holds the shards of one template: read, check, claim and clean up its objects."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..core import arguments as check
from ..core.options import RetryPolicy, StorageOptions
from ..core.retry import call_with_retries
from ..core.urls import RemoteUrl, join_url, redact, split_url
from ..errors import ManifestError, ObjectExistsError, ObjectNotFoundError, ShardWriteError
from ..formats.compression import is_compressed
from ..formats.key_index import without_companion_ending
from ..formats.manifest import (
    CLAIM_NAME,
    CLASSES_NAME,
    LATER_PROVENANCE,
    MANIFEST_NAME,
    PROVENANCE_NAME,
    UNFINISHED,
    ShardInfo,
    jobs_of,
    load_manifest,
)
from ..storage import Entry, list_folder, open_store, publish, read_whole

_CLAIM_KIND = "torchdata_remote-job-v2"
_DELETED_AT_ONCE = 16
_ENDINGS = (".tar", ".tar.gz", ".tgz", ".tar.zst")
_NUMBER_FORMAT = re.compile(r"(0[1-9]\d?)?d?")


class _Field:
    """Marks the place of a number, and its format, in a text."""

    def __format__(self, spec: str) -> str:
        if not _NUMBER_FORMAT.fullmatch(spec):
            raise ValueError(f"{spec!r} is not a number format such as 06d")
        return f"\0{spec}\0"


class ShardTemplate:
    """A URL with one ``{shard}`` field in its base name.

    Args:
        url_template: with an optional format in the field, such as ``{shard:06d}``. Other braces are doubled, as for
            ``str.format``.

    Raises:
        ShardWriteError: for anything else.

    Example:
        >>> template = ShardTemplate("s3://b/train/{shard:03d}.tar")
        >>> template.url(7), template.index("s3://b/train/010.tar"), template.index("s3://b/train/x.tar")
        ('s3://b/train/007.tar', 10, None)
    """

    def __init__(self, url_template: str) -> None:
        example = "s3://bucket/train/{shard:06d}.tar"
        text = check.path_or_url("url_template", url_template, example=example)
        fault = "it needs exactly one {shard} field, in its base name; other braces are doubled: {{ and }}"
        parts: list[str] = []
        try:
            parts = text.format(shard=_Field()).split("\0")
        except ValueError as error:
            fault = str(error)
        except (LookupError, AttributeError, TypeError):
            pass
        if len(parts) == 3 and "/" not in parts[2]:
            fault = "" if text.endswith(_ENDINGS) else f"the name must end in one of {', '.join(_ENDINGS)}"
        if fault:
            raise ShardWriteError(
                f"{redact(url_template)}: {fault}. Expected a template such as {example}.", url=redact(url_template)
            )
        before, self._format, self._after = parts
        folder, slash, before = before.rpartition("/")
        scheme, bucket, path = split_url(folder + slash if slash else "./")
        self.folder = join_url(scheme, bucket, path if path.endswith("/") or not path else path + "/")
        self.before = self.folder + before
        self._regex = re.compile(re.escape(before) + r"(\d+)" + re.escape(self._after))

    def url(self, index: int) -> str:
        """Return the URL of the shard with this number."""
        return f"{self.before}{index:{self._format}}{self._after}"

    def index(self, url: str) -> int | None:
        """Return the number of the shard with this URL, or ``None`` if the URL does not match the template."""
        match = self._regex.fullmatch(url.rpartition("/")[2])
        if match is None or len(match[1]) > 18:
            return None
        index = int(match[1])
        return index if self.url(index) == url else None  # else the number is formatted differently


def describes_shards(name: str) -> bool:
    """Return whether it is the name of a manifest, a class table or a provenance."""
    return name in (MANIFEST_NAME, CLASSES_NAME, PROVENANCE_NAME) or LATER_PROVENANCE.fullmatch(name) is not None


class ShardFolder:
    """Destination of shards. Its copy in another process has its claim.

    Args:
        template: names of the shards.
        options: for the store.
    """

    def __init__(self, template: ShardTemplate, options: StorageOptions) -> None:
        self.template, self.options = template, options
        self._retry = RetryPolicy()
        self._claim, self._claimed_by = b"", 0

    # Its objects

    def _find(self, name: str) -> Entry | None:
        url = self.template.folder + name
        store, path = open_store(url, self.options)
        return call_with_retries(lambda: store.find(path), self._retry, url=url)

    def version(self, name: str, etag: str | None = None) -> str | None:
        """Return what differs in each version of an object, if the store has that; ``None`` if there is no object.

        Args:
            name: of the object.
            etag: as listed; ``None`` asks the store.
        """
        found = None if etag else self._find(name)
        etag = etag if found is None else found.etag
        store, path = open_store(self.template.folder + name, self.options)
        with contextlib.suppress(OSError):  # it was removed
            # Programs can set the times of a local file back, but not that of its last change
            return f"{etag}-{os.stat(path).st_ctime_ns:x}" if etag and store.maps_files else etag
        return None

    def read(self, name: str) -> bytes | None:
        """Read a small object of the folder; ``None`` if it does not exist."""
        if self._find(name) is None:
            return None
        try:
            return read_whole(self.template.folder + name, self.options, self._retry, by_obstore=False)
        except ObjectNotFoundError:
            return None

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

    def listed(self, prefix: str = "") -> dict[str, RemoteUrl]:
        """List the objects whose names begin with a prefix: name -> URL with size and etag, sorted."""
        url = self.template.folder + prefix
        found = list_folder(url, recursive=False, options=self.options, retry=self._retry)
        return {one.rpartition("/")[2]: one for one in found}

    def manifest(self) -> tuple[list[ShardInfo], list[Any]] | None:
        """Read the manifest: its shards and the jobs that wrote them; ``None`` if there is no manifest.

        Raises:
            ObjectExistsError: if it describes shards of another template.
        """
        data = self.read(MANIFEST_NAME)
        if data is None:
            return None
        url = self.template.folder + MANIFEST_NAME
        shards = load_manifest(data, url)
        others = [shard.url for shard in shards if self.template.index(shard.url) is None]
        if others:
            raise ObjectExistsError(
                f"{redact(url)} describes other shards, such as {redact(others[0])}. A folder holds the shards of one "
                "template: write into another folder.",
                url=redact(url),
            )
        return shards, jobs_of(data)

    def shards(self) -> Iterator[str]:
        """Yield the names of the existing shards and of the objects beside them."""
        for name, url in self.listed(self.template.before[len(self.template.folder) :]).items():
            if self.template.index(without_companion_ending(url)) is not None:
                yield name

    def require_empty(self, has_manifest: bool) -> None:
        """Require that there are no shards and no manifest.

        Raises:
            ObjectExistsError: for the first shard, or the manifest.
        """
        existing = next(self.shards(), MANIFEST_NAME if has_manifest else None)
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

    def remove_description(self) -> None:
        """Remove the manifest, class table and provenance, before the shards that they describe are replaced.

        Raises:
            ObjectExistsError: if another writer has taken the folder, whose manifest it may be.
        """
        self.require_claim()
        for name in (MANIFEST_NAME, *filter(describes_shards, self.listed())):
            self.delete(name)

    def remove_leftovers(self) -> None:
        """Remove partial objects of killed writers: of shards of this template, and of the objects beside them."""
        folder = self.template.folder
        store, path = open_store(folder, self.options)

        def is_ours(name: str) -> bool:
            is_shard = self.template.index(folder + without_companion_ending(name)) is not None
            return is_shard or name.startswith(UNFINISHED) or describes_shards(name)

        call_with_retries(lambda: store.remove_leftovers(path, is_ours), self._retry, url=folder)

    def keep_only(self, shards: Sequence[ShardInfo]) -> None:
        """Remove all other shards of this template, and what is beside them."""
        kept = {shard.url.rpartition("/")[2] for shard in shards}
        for name in self.shards():
            shard = without_companion_ending(name)
            if shard not in kept or (name != shard and is_compressed(shard)):
                self.delete(name)

    # Its claim: one writer at a time

    def claim(self, *, replace: bool, **contents: Any) -> bool:
        """Claim the folder for one writer, over all threads, processes and machines.

        Args:
            replace: take it over from another writer, which then fails where it has to have the claim.
            **contents: for :meth:`unfinished` of the next writer.

        Returns:
            Whether it was taken over.

        Raises:
            ObjectExistsError: if there is the claim of another writer.
        """
        document = {"__kind__": _CLAIM_KIND, "token": secrets.token_hex(8), **contents}
        self._claim, self._claimed_by = json.dumps(document).encode(), os.getpid()
        is_claimed = self.read(CLAIM_NAME) is not None
        try:
            self.publish(CLAIM_NAME, self._claim, overwrite=is_claimed and replace)
        except ObjectExistsError as error:
            raise self._taken_error() from error
        return is_claimed

    def unfinished(self) -> dict[str, Any] | None:
        """Return the contents of the claim of a writer that has not ended well; ``None`` if there is none.

        Raises:
            ManifestError: if it is damaged.
        """
        data = self.read(CLAIM_NAME)
        try:
            document = None if data is None else json.loads(data)
            if document is not None and document["__kind__"] != _CLAIM_KIND:
                raise ValueError(f"__kind__ is {document['__kind__']!r}")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            url = redact(self.template.folder + CLAIM_NAME)
            raise ManifestError(
                f"{url} is no record of a job of this version ({error!r}). Remove it to start again.", url=url
            ) from error
        return document

    def require_claim(self) -> None:
        """Require that no other writer has taken the folder.

        Raises:
            ObjectExistsError: if one has.
        """
        if self.read(CLAIM_NAME) != self._claim:
            raise self._taken_error()

    def release(self) -> None:
        """Remove the claim, unless another writer has it, or this is a forked child."""
        if self._claimed_by == os.getpid() and self.read(CLAIM_NAME) == self._claim:
            self.delete(CLAIM_NAME)

    def end(self) -> None:
        """Remove the objects that only an unfinished job needs, the claim last."""
        with ThreadPoolExecutor(_DELETED_AT_ONCE) as pool:
            names = [name for name in self.listed(UNFINISHED) if name != CLAIM_NAME]
            list(pool.map(self.delete, names))
        self.release()

    def _taken_error(self) -> ObjectExistsError:
        url = redact(self.template.folder)
        return ObjectExistsError(
            f"{url}: another job writes there now, or was killed ({CLAIM_NAME}). Wait for its end, or write into "
            "another folder. If it was killed, start it again to finish it, or pass overwrite=True to replace it.",
            url=url,
        )
