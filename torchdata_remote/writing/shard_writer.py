"""Write shards: byte-exact limits, deterministic bytes, atomic shards, manifest last."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from ..core import arguments as check
from ..core.arguments import explained
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


@explained
class ShardWriter:
    """Write samples into tar shards and, on a clean exit, the manifest.

    A shard is published atomically, on a local disk too; while it is finished, the next one is packed. If the ``with``
    block raises, full shards remain, the unfinished one does not, and there is no manifest.

    One writer at a time: a claim in the folder (``_unfinished-job.json``, rewritten every 10 s) makes any other writer
    or ``shard_dataset`` job fail, in any thread, process or machine. The claim of a killed process is taken over, at
    once on the same machine, on another one after 35 s without a change, and its partial objects are removed.

    Memory: at most 32 MiB and eight samples, and about 250 bytes for the key and the members of each sample of two
    shards; on S3 also the upload parts of two shards; on stores that take an object in one call only, such as
    ``memory://``, two shards, twice.

    Args:
        url_template: URL with one ``{shard}`` field in its base name, such as
            ``s3://bucket/train/{shard:06d}.tar``, or ``.tar.gz``, ``.tgz``, ``.tar.zst`` for compressed shards, which
            have neither index nor keys. The folder holds these shards only, and their manifest ``index.json``.
        max_shard_bytes: limit of a shard's tar in bytes, headers and padding included, before compression. A larger
            sample gets its own shard.
        max_shard_samples: limit of samples in a shard.
        max_member_bytes: limit of a member; a larger one is an error. Readers have the same default, and an argument of
            the same name.
        overwrite: replace all shards of this template. Otherwise an existing one is an error.
        storage_options: for the store, in fsspec's vocabulary.

    Raises:
        ObjectExistsError: on entering, if shards or a manifest exist, or another writer uses the folder.
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
        self._folder = ShardFolder(self._template, StorageOptions(storage_options))
        self._overwrite, self._checked = check.flag("overwrite", overwrite), False
        self._claim = Claim(self._folder)
        self._shards = RollingShardWriter(
            self._template.url,
            max_shard_bytes=max_shard_bytes,
            max_shard_samples=max_shard_samples,
            max_member_bytes=max_member_bytes,
            overwrite=overwrite,
            options=self._folder.options,
            before_first=self._remove_old_description,
        )

    @property
    def shards(self) -> tuple[ShardInfo, ...]:
        """The shards published so far."""
        return tuple(self._shards.shards)

    def __enter__(self) -> ShardWriter:
        self._claim_folder()
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
            A shard that was published since the last call, or ``None``. Each shard is returned once, at the latest
            when the next one is full.

        Raises:
            ShardWriteError: for a key, an extension or a member that readers would not return unchanged, a key that the
                shard already has, or a writer that was closed or has failed.
            EncodeError: for a member that is neither bytes nor of a type known for its extension.
            RemoteDataError: if a shard could not be written; it may be the previous one.
        """
        if not self._checked:
            self._claim_folder()
        try:
            self._claim.raise_if_lost()
            return self._shards.add(sample)
        except ObjectExistsError:
            self.abort()
            raise
        except BaseException:
            if self._shards.state is SeriesState.ABORTED:
                self.abort()
            raise

    def close(self) -> tuple[ShardInfo, ...]:
        """Finish the last shard, then write the manifest. A second call does nothing.

        Returns:
            The shards that ``write`` has not returned, in order; empty if the writer was already closed.

        Raises:
            ShardWriteError: if there were no samples, or a shard could not be written.
            ObjectExistsError: if another writer has taken over the folder after this one was suspended for long.
        """
        writer, num_returned = self._shards, len(self._shards.shards)
        if writer.state is SeriesState.ENDED:
            return ()
        first = redact(self._template.url(0))
        if writer.state is SeriesState.ABORTED:
            raise ShardWriteError(f"{first}: this writer {writer.state.value}; there is no manifest.")
        if writer.is_empty:
            self.abort()
            raise ShardWriteError(f"{first}: there are no samples to write.")
        try:
            writer.end()
            shards = writer.result()
            self._claim.require_held()
            if self._overwrite:  # the replaced dataset may have had more shards
                self._folder.keep_only(shards)
            self._folder.publish(MANIFEST_NAME, dump_manifest(shards), overwrite=self._overwrite)
        except BaseException:
            self.abort()
            raise
        self._claim.release()
        return self.shards[num_returned:]

    def abort(self, timeout_s: float | None = None) -> None:
        """Drop the open shard, wait for the previous one, and write no manifest, now or later.

        Args:
            timeout_s: limit in seconds for each of the two; afterwards they end in the background. ``None`` waits until
                they have ended.
        """
        self._shards.abort(timeout_s)
        self._claim.release()

    def _claim_folder(self) -> None:
        manifest = self._folder.manifest()
        if not self._overwrite:
            self._folder.require_empty(manifest is not None)
        previous = self._claim.take()
        weakref.finalize(self, self._claim.forget).atexit = False
        if previous is not None:
            try:
                self._claim.remove_leftovers()
            except BaseException:
                self.abort()
                raise
        self._checked = True

    def _remove_old_description(self) -> None:
        if self._overwrite:
            self._folder.remove_description()
