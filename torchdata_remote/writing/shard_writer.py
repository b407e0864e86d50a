"""Writing shards: byte-exact limits, equal bytes for equal samples, a shard whole or not at all, manifest last."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from ..core.options import MIB, StorageOptions
from ..core.urls import redact
from ..errors import ObjectExistsError, ShardWriteError
from ..formats.limits import MAX_MEMBER_BYTES
from ..formats.manifest import MANIFEST_NAME, ShardInfo, dump_manifest
from ..formats.sample import Sample
from .claim import Claim
from .rolling_writer import RollingShardWriter, SeriesState
from .shard_folder import ShardFolder
from .template import ShardTemplate

DEFAULT_MAX_SHARD_BYTES = 256 * MIB
DEFAULT_MAX_SHARD_SAMPLES = 100_000


class ShardWriter:
    """Writes samples into tar shards and, on a clean exit, the manifest.

    A shard appears whole or not at all, on a local disk too; while it is finished, the next one is packed. If the
    ``with`` block raises, the shards that were full remain, the other one does not, and there is no manifest.

    One writer at a time: a claim in the folder (``_unfinished-job.json``, rewritten every 10 s) refuses another one of
    any thread, process or machine, and a ``shard_dataset`` job. That of a process that was killed is taken over: at
    once on the same machine, on another one after 35 s without a change, and what it left half written is removed.

    Memory: at most 32 MiB and eight times a sample; on S3 also the parts of two shards that are being sent; on stores
    that take an object in one call only, such as ``memory://``, two shards, twice.

    Args:
        url_template: URL with one ``{shard}`` field in its base name, such as
            ``s3://bucket/train/{shard:06d}.tar``, or ``.tar.gz``, ``.tgz``, ``.tar.zst`` for shards that are
            compressed, which have no index. The folder belongs to these shards: the manifest ``index.json`` lies in it.
        max_shard_bytes: limit of a shard's tar in bytes, headers and padding included, before it is compressed. A
            single sample that is larger gets a shard of its own.
        max_shard_samples: limit of samples in a shard.
        max_member_bytes: limit of a member; a larger one is an error. The default is that of the readers, which take
            another one under the same name.
        overwrite: replace shards of the same template, all of them. Otherwise finding one is an error.
        storage_options: for the store, in fsspec's vocabulary.

    Raises:
        ObjectExistsError: on entering, if shards or a manifest are there already, or another writer writes there now.
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
        max_member_bytes: int = MAX_MEMBER_BYTES,
        overwrite: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._template = ShardTemplate(url_template)
        self._destination = ShardFolder(self._template, StorageOptions(storage_options))
        self._overwrite, self._checked = overwrite, False
        self._claim = Claim(self._destination)
        self._series = RollingShardWriter(
            self._template.url,
            max_shard_bytes=max_shard_bytes,
            max_shard_samples=max_shard_samples,
            max_member_bytes=max_member_bytes,
            overwrite=overwrite,
            options=self._destination.options,
            before_first=self._begin,
        )

    @property
    def shards(self) -> tuple[ShardInfo, ...]:
        """The shards finished so far."""
        return tuple(self._series.shards)

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
            ShardWriteError: for a key, an extension or a member that would not be read back as it is, a key that the
                shard has already, or a writer that was closed or has failed.
            EncodeError: for a member that is neither bytes nor of a type known for its extension.
            RemoteDataError: if a shard could not be written, also the one before.
        """
        if not self._checked:
            self._check_destination()
        try:
            self._claim.raise_if_lost()
            return self._series.add(sample)
        except ObjectExistsError:
            self.abort()
            raise
        except BaseException:
            if self._series.state is SeriesState.ABORTED:
                self.abort()
            raise

    def close(self) -> tuple[ShardInfo, ...]:
        """Finish the last shard, then write the manifest. A second time does nothing.

        Returns:
            The shards that no ``write`` has returned, in order; nothing if the writer was closed before.

        Raises:
            ShardWriteError: if there were no samples at all, or a shard could not be written.
            ObjectExistsError: if another writer has taken the folder, because this one stood still for long.
        """
        series, told = self._series, len(self._series.shards)
        if series.state is SeriesState.ENDED:
            return ()
        first = redact(self._template.url(0))
        if series.state is SeriesState.ABORTED:
            raise ShardWriteError(f"{first}: this writer {series.state.value}; there is no manifest.")
        if series.is_empty:
            self.abort()
            raise ShardWriteError(f"{first}: no sample came, so there is nothing to write.")
        try:
            series.end()
            shards = series.result()
            self._claim.require_held()
            if self._overwrite:  # shards of the data set that was here before, beyond the last one of this
                self._destination.keep_only(shards)
            self._destination.publish(MANIFEST_NAME, dump_manifest(shards), overwrite=self._overwrite)
        except BaseException:
            self.abort()
            raise
        self._claim.release()
        return self.shards[told:]

    def abort(self, timeout_s: float | None = None) -> None:
        """Drop the shard at hand, wait for the one before, and write no manifest, now or later.

        Args:
            timeout_s: seconds to wait for each of the two at most; after them they end by themselves. ``None`` waits
                until they have ended.
        """
        self._series.abort(timeout_s)
        self._claim.release()

    def _check_destination(self) -> None:
        manifest = self._destination.manifest()
        if not self._overwrite:
            self._destination.require_empty(manifest is not None)
        left = self._claim.take()
        weakref.finalize(self, self._claim.forget).atexit = False
        if left is not None:
            try:
                self._claim.remove_leftovers()
            except BaseException:
                self.abort()
                raise
        self._checked = True

    def _begin(self) -> None:
        if self._overwrite:
            self._destination.remove_description()
