"""Writing shards: byte-exact limits, equal bytes for equal samples, a shard whole or not at all, manifest last."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any

from .errors import ObjectExistsError, ShardWriteError
from .manifest import MANIFEST_NAME, ShardInfo, dump_manifest, load_manifest
from .open_shard import OpenShard, PackedSample, pack_sample
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

    A shard appears whole or not at all, on a local disk too. If the ``with`` block raises, the shards finished
    before remain, the unfinished one does not, and there is no manifest.

    Args:
        url_template: URL with one ``{shard}`` field in its base name, such as
            ``s3://bucket/train/{shard:06d}.tar``. The folder belongs to these shards: the manifest
            ``index.json`` lies in it.
        max_shard_bytes: limit of a shard object in bytes, tar headers and padding included. A single sample that is
            larger gets a shard of its own.
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
        self.max_shard_bytes = max_shard_bytes
        self.max_shard_samples = max_shard_samples
        self._overwrite = overwrite
        self._options = StorageOptions(storage_options)
        self._retry = RetryPolicy()
        self._shards: list[ShardInfo] = []
        self._open: OpenShard | None = None
        self._checked = False
        self._ended: str | None = None

    @property
    def shards(self) -> tuple[ShardInfo, ...]:
        """The shards finished so far."""
        return tuple(self._shards)

    def __enter__(self) -> ShardWriter:
        self._check_destination()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.abort()
        else:
            self.close()

    def write(self, sample: Sample) -> ShardInfo | None:
        """Add a sample. Its members are written sorted by extension; names that begin with ``__`` are not.

        Returns:
            The shard that was finished because this sample did not fit into it, or ``None``.

        Raises:
            ShardWriteError: for a key or an extension that would not be read back as it is, a key that the shard has
                already, or a writer that was closed or has failed.
            EncodeError: for a member that is neither bytes nor of a type known for its extension.
        """
        if self._ended is not None:
            raise ShardWriteError(f"{redact(self._template.url(0))}: this writer {self._ended}; make a new one.")
        if not self._checked:
            self._check_destination()
        key = check_writable(sample)
        packed = pack_sample(key, sample)
        if self._open is not None and not self._is_full(self._open, packed):
            self._open.check_key(key)
        try:
            return self._add(key, packed)
        except BaseException:  # what was written of the shard is unknown, so it is not gone on with
            self.abort()
            raise

    def _is_full(self, shard: OpenShard, packed: PackedSample) -> bool:
        return (
            shard.num_bytes + packed.num_bytes + len(END_OF_ARCHIVE) > self.max_shard_bytes
            or shard.num_samples >= self.max_shard_samples
        )

    def _add(self, key: str, packed: PackedSample) -> ShardInfo | None:
        finished = None
        if self._open is not None and self._is_full(self._open, packed):
            finished = self._finish(self._open)
        if self._open is None:
            self._remove_manifest()
            self._open = self._begin()
        self._open.add(key, packed)
        return finished

    def close(self) -> ShardInfo | None:
        """Finish the last shard, then write the manifest. A second time does nothing.

        Returns:
            The last shard, or ``None`` if the writer was closed before.

        Raises:
            ShardWriteError: if there were no samples at all, or a shard could not be written.
        """
        if self._ended == _CLOSED:
            return None
        if self._ended is not None:
            raise ShardWriteError(f"{redact(self._template.url(0))}: this writer {self._ended}; there is no manifest.")
        if self._open is None:
            self.abort()
            raise ShardWriteError(f"{redact(self._template.url(0))}: no sample came, so there is nothing to write.")
        try:
            finished = self._finish(self._open)
            self._remove_leftovers()
            self._publish(self._template.folder + MANIFEST_NAME, dump_manifest(self._shards))
        except BaseException:
            self.abort()
            raise
        self._ended = _CLOSED
        return finished

    def abort(self) -> None:
        """Drop the unfinished shard; write no manifest, now or later."""
        shard, self._open = self._open, None
        self._ended = self._ended or _ABORTED
        if shard is not None:
            shard.pending.abort()

    def _begin(self) -> OpenShard:
        url = self._template.url(len(self._shards))
        store, path = open_store(url, self._options)
        return OpenShard(url, store.create(path, overwrite=self._overwrite))

    def _finish(self, shard: OpenShard) -> ShardInfo:
        info = shard.finish()
        self._open = None
        self._publish(index_url(info.url), dump_index([*shard.offsets, shard.num_bytes]))
        self._shards.append(info)
        return info

    def _publish(self, url: str, data: bytes) -> None:
        publish(url, data, self._options, overwrite=self._overwrite)

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
        if self._overwrite and not self._shards:
            store, path = open_store(self._template.folder + MANIFEST_NAME, self._options)
            call_with_retries(lambda: store.delete(path), self._retry)

    def _remove_leftovers(self) -> None:
        """Shards of the data set that was here before, beyond the last one of this."""
        if not self._overwrite:
            return
        for url in self._existing():
            index = self._index(url)
            if index is not None and index >= len(self._shards):
                store, path = open_store(url, self._options)
                store.delete(path)
