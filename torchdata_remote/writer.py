"""Writing shards: byte-exact limits, equal bytes for equal samples, a shard whole or not at all, manifest last."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from functools import partial
from types import TracebackType
from typing import Any

from .compressing import is_compressed
from .errors import ObjectExistsError, ShardWriteError
from .manifest import MANIFEST_NAME, ShardInfo, dump_manifest, load_manifest
from .open_shard import OpenShard, pack_sample
from .options import MIB, RetryPolicy, StorageOptions
from .retry import call_with_retries
from .sample import Sample, check_writable
from .sample_index import dump_index, index_url
from .shard_template import ShardTemplate
from .storage import open_store, publish
from .storage.listing import list_folder
from .tar import END_OF_ARCHIVE
from .urls import redact

DEFAULT_MAX_SHARD_BYTES = 256 * MIB
DEFAULT_MAX_SHARD_SAMPLES = 100_000
_CLOSED, _ABORTED = "is closed", "was aborted or has failed"


class ShardWriter:
    """Writes samples into tar shards and, on a clean exit, the manifest.

    A shard appears whole or not at all, on a local disk too; while it is finished, the next one is packed. If the
    ``with`` block raises, the shards that were full remain, the other one does not, and there is no manifest.

    Memory: at most 64 MiB and six times a sample; on S3 256 MiB more, for the parts of two shards that are being sent;
    on stores that take an object in one call only, such as ``memory://``, two shards.

    Args:
        url_template: URL with one ``{shard}`` field in its base name, such as
            ``s3://bucket/train/{shard:06d}.tar``, or ``.tar.gz``, ``.tgz``, ``.tar.zst`` for shards that are
            compressed, which have no index. The folder belongs to these shards: the manifest ``index.json`` lies in it.
        max_shard_bytes: limit of a shard's tar in bytes, headers and padding included, before it is compressed. A
            single sample that is larger gets a shard of its own.
        max_shard_samples: limit of samples in a shard.
        overwrite: replace shards of the same template, all of them. Otherwise finding one is an error.
        storage_options: for the store, in fsspec's vocabulary.

    Raises:
        ObjectExistsError: on entering, if shards or a manifest are there already.
        ShardWriteError: for a template without ``{shard}``.

    Example:
        >>> with ShardWriter("memory://birds/{shard:04d}.tar", overwrite=True) as writer:
        ...     _ = writer.write({"__key__": "wren/1", "txt": "small"})
        >>> writer.shards[0].url, writer.shards[0].num_samples, writer.shards[0].num_bytes
        ('memory://birds/0000.tar', 1, 2048)
    """

    def __init__(
        self,
        url_template: str,
        *,
        max_shard_bytes: int = DEFAULT_MAX_SHARD_BYTES,
        max_shard_samples: int = DEFAULT_MAX_SHARD_SAMPLES,
        overwrite: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        if max_shard_bytes < 1 or max_shard_samples < 1:
            raise ValueError(
                f"max_shard_bytes and max_shard_samples must be positive, got {max_shard_bytes} and {max_shard_samples}"
            )
        self._template = ShardTemplate(url_template)
        self.max_shard_bytes, self.max_shard_samples = max_shard_bytes, max_shard_samples
        self._max_bytes = max_shard_bytes - len(END_OF_ARCHIVE)
        self._overwrite = overwrite
        self._options = StorageOptions(storage_options)
        self._retry = RetryPolicy()
        self._shards: list[ShardInfo] = []
        self._open: OpenShard | None = None
        self._finishing: OpenShard | None = None  # the one before
        self._checked, self._num_begun = False, 0
        self._ended: str | None = None

    @property
    def shards(self) -> tuple[ShardInfo, ...]:
        """The shards finished so far."""
        return tuple(self._shards)

    def __enter__(self) -> ShardWriter:
        self._check_destination()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abort()
        else:
            self.close()

    def write(self, sample: Sample) -> ShardInfo | None:
        """Add a sample. Its members are written sorted by extension; names that begin with ``__`` are not.

        Returns:
            A shard that is there now, or ``None``: it is told by one of the calls after the sample that did not fit
            into it, at the latest when the next shard is full.

        Raises:
            ShardWriteError: for a key or an extension that would not be read back as it is, a key that the shard has
                already, or a writer that was closed or has failed.
            EncodeError: for a member that is neither bytes nor of a type known for its extension.
            RemoteDataError: if a shard could not be written, also the one before.
        """
        if self._ended is not None:
            raise ShardWriteError(f"{redact(self._template.url(0))}: this writer {self._ended}; make a new one.")
        if not self._checked:
            self._check_destination()
        key = check_writable(sample)
        packed = pack_sample(key, sample)
        shard = self._open
        if shard is not None:
            if shard.num_bytes + packed.num_bytes > self._max_bytes or len(shard.offsets) >= self.max_shard_samples:
                shard = None
            else:
                shard.check_key(key)
        try:
            finished = None
            if self._finishing is not None and (shard is None or self._finishing.settled):
                finished = self._settle(self._finishing)
            if shard is None:
                shard = self._next_shard()
            shard.add(key, packed)
        except BaseException:  # what was written of the shard is unknown, so it is not gone on with
            self.abort()
            raise
        return finished

    def _next_shard(self) -> OpenShard:
        if self._open is not None:
            self._end(self._open)
        self._remove_manifest()
        url = self._template.url(self._num_begun)
        store, path = open_store(url, self._options)
        self._open = OpenShard(url, store.create(path, overwrite=self._overwrite))
        self._num_begun += 1
        return self._open

    def _end(self, shard: OpenShard) -> OpenShard:
        """Let the shard at hand be finished by itself, index included."""
        shard.end(partial(_publish_index, shard, self._options, self._overwrite))
        self._finishing, self._open = shard, None
        return shard

    def _settle(self, shard: OpenShard) -> ShardInfo:
        """Wait for the shard before to be there."""
        info = shard.result()
        self._finishing = None
        self._shards.append(info)
        return info

    def close(self) -> tuple[ShardInfo, ...]:
        """Finish the last shard, then write the manifest. A second time does nothing.

        Returns:
            The shards that no ``write`` has returned, in order; nothing if the writer was closed before.

        Raises:
            ShardWriteError: if there were no samples at all, or a shard could not be written.
        """
        if self._ended == _CLOSED:
            return ()
        if self._ended is not None:
            raise ShardWriteError(f"{redact(self._template.url(0))}: this writer {self._ended}; there is no manifest.")
        if self._open is None:
            self.abort()
            raise ShardWriteError(f"{redact(self._template.url(0))}: no sample came, so there is nothing to write.")
        told = len(self._shards)
        try:
            if self._finishing is not None:
                self._settle(self._finishing)
            last = self._end(self._open)
            self._settle(last)
            self._remove_leftovers()
            manifest_url, manifest = self._template.folder + MANIFEST_NAME, dump_manifest(self._shards)
            publish(manifest_url, manifest, self._options, overwrite=self._overwrite)
        except BaseException:
            self.abort()
            raise
        self._ended = _CLOSED
        return self.shards[told:]

    def abort(self) -> None:
        """Drop the shard at hand, wait for the one before, and write no manifest, now or later."""
        shard, self._open = self._open, None
        self._ended = self._ended or _ABORTED
        if shard is not None:
            shard.pending.abort()
        if self._finishing is not None:
            with contextlib.suppress(Exception):  # what led here is what has to be told
                self._settle(self._finishing)

    def _existing(self) -> list[str]:
        found = list_folder(self._template.before, recursive=False, options=self._options, retry=self._retry)
        return [str(url) for url in found if self._index(str(url)) is not None]

    def _index(self, url: str) -> int | None:
        """The number of the shard that a URL, or the shard whose index it, is."""
        return self._template.index(url.removesuffix(index_url("")))

    def _check_destination(self) -> None:
        manifest_url = self._template.folder + MANIFEST_NAME
        store, path = open_store(manifest_url, self._options)
        manifest = call_with_retries(lambda: store.find(path), self._retry)
        if manifest is not None:
            data = call_with_retries(lambda: store.read(path, 0, None, None).whole(), self._retry)
            others = [s.url for s in load_manifest(data, manifest_url) if self._template.index(s.url) is None]
            if others:
                raise ObjectExistsError(
                    f"{manifest_url} describes other shards, such as {others[0]}. One folder holds the shards of one "
                    "template: write into another folder.",
                    url=manifest_url,
                )
        existing = self._existing()
        if not self._overwrite and (existing or manifest is not None):
            raise ObjectExistsError(
                f"{redact((existing or [manifest_url])[0])} exists already. Write into another folder, or pass "
                "overwrite=True to replace all shards of this template.",
                url=manifest_url,
            )
        self._checked = True

    def _remove_manifest(self) -> None:
        """The one of the data set that was here before must not outlive what it describes."""
        if self._overwrite and not self._num_begun:
            store, path = open_store(self._template.folder + MANIFEST_NAME, self._options)
            call_with_retries(lambda: store.delete(path), self._retry)

    def _remove_leftovers(self) -> None:
        """Shards of the data set that was here before, beyond the last one of this."""
        for url in self._existing() if self._overwrite else ():
            if (self._index(url) or 0) >= len(self._shards):
                store, path = open_store(url, self._options)
                store.delete(path)


def _publish_index(shard: OpenShard, options: StorageOptions, overwrite: bool, info: ShardInfo) -> None:
    if not is_compressed(info.url):
        publish(index_url(info.url), dump_index([*shard.offsets, shard.num_bytes]), options, overwrite=overwrite)
