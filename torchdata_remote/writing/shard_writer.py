"""Write shards: byte-exact limits, deterministic bytes, atomic shards, manifest last."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, NamedTuple

from ..core import arguments as check
from ..core.arguments import explained, whole
from ..core.options import MIB, StorageOptions
from ..core.urls import redact
from ..errors import ShardWriteError, StorageError
from ..formats.compression import is_compressed
from ..formats.limits import MAX_DECOMPRESSED_BYTES, MAX_MEMBER_BYTES
from ..formats.manifest import MANIFEST_NAME, ShardInfo, dump_manifest
from ..formats.sample import Sample
from ..formats.tar import END_OF_ARCHIVE
from .packing import pack_sample
from .shard_builder import ShardBuilder
from .shard_folder import ShardFolder, ShardTemplate

DEFAULT_MAX_SHARD_BYTES = 256 * MIB
DEFAULT_MAX_SHARD_SAMPLES = 100_000
_ENDED, _ABORTED = "is closed", "was aborted or has failed"


class ShardLimits(NamedTuple):
    """Limits of a shard.

    Args:
        max_shard_bytes: of its tar in bytes, before it is compressed; a single sample may be larger.
        max_shard_samples: of samples in it.
        max_member_bytes: of a member.
    """

    max_shard_bytes: int
    max_shard_samples: int
    max_member_bytes: int

    def checked(self) -> ShardLimits:
        """Return the limits as ints.

        Raises:
            TypeError, ValueError: for one that is not an int, or not positive.
        """
        return ShardLimits(*map(whole, self._fields, self))


class RollingShardWriter:
    """Splits samples into shards within exact limits, each with its index and its keys.

    A shard is finished in the background while the next one is packed.

    Args:
        folder: of the shards. It must be claimed when a shard is finished.
        url_of: the URL of each shard, by its number from 0.
        limits: of each.
        overwrite: replace existing objects. Otherwise one is an error.
        before_first: called before the first shard is begun.
    """

    def __init__(
        self,
        folder: ShardFolder,
        url_of: Callable[[int], str],
        limits: ShardLimits,
        *,
        overwrite: bool,
        before_first: Callable[[], object] = lambda: None,
    ) -> None:
        most = MAX_DECOMPRESSED_BYTES if is_compressed(url_of(0)) else limits.max_shard_bytes
        self._max_bytes = min(limits.max_shard_bytes, most) - len(END_OF_ARCHIVE)
        self._limits = limits
        self._folder, self._url_of, self._overwrite, self._before_first = folder, url_of, overwrite, before_first
        self.shards: list[ShardInfo] = []  # published ones
        self._open: ShardBuilder | None = None
        self._finishing: ShardBuilder | None = None  # the previous one
        self._num_begun = 0
        self.closed = ""  # why no samples can be added

    @property
    def is_empty(self) -> bool:
        """Whether no sample was added."""
        return self._num_begun == 0

    def last_position(self) -> tuple[str, int]:
        """Return the shard URL of the sample added last, and its first byte in the tar."""
        assert self._open is not None
        return self._open.url, self._open.offsets[-1]

    def add(self, sample: Sample) -> ShardInfo | None:
        """Add a sample, with the result and the errors of ``ShardWriter.write``."""
        if self.closed:
            raise ShardWriteError(f"{redact(self._url_of(0))}: this writer {self.closed}; make a new one.")
        packed = pack_sample(sample, self._limits.max_member_bytes)
        shard = self._open
        if shard is not None:
            if (
                shard.num_bytes + packed.num_bytes > self._max_bytes
                or len(shard.offsets) >= self._limits.max_shard_samples
            ):
                shard = None
            else:
                shard.check_key(packed.key)
        try:
            finished = None
            if self._finishing is not None and (shard is None or self._finishing.worker.settled):
                finished = self._settle()
            if shard is None:
                shard = self._next_shard()
            shard.add(packed)
        except BaseException:  # how much of the shard was written is unknown, so it cannot be continued
            self.abort()
            raise
        return finished

    def _next_shard(self) -> ShardBuilder:
        if self._open is not None:
            self._end()
        elif self._num_begun == 0:
            self._before_first()
        url = self._url_of(self._num_begun)
        self._open = ShardBuilder(url, self._folder, overwrite=self._overwrite)
        self._num_begun += 1
        return self._open

    def _end(self) -> None:
        """Finish the open shard, its index and its keys in the background."""
        assert self._open is not None
        self._open.end()
        self._finishing, self._open = self._open, None

    def _settle(self) -> ShardInfo | None:
        """Wait until the previous shard is published, if there is one."""
        if self._finishing is None:
            return None
        info = self._finishing.worker.result()
        self._finishing = None
        self.shards.append(info)
        return info

    def end(self) -> None:
        """End the last shard in the background, after waiting for the previous one. No sample can be added any more."""
        self.closed = _ENDED
        try:
            self._settle()
            if self._open is not None:
                self._end()
        except BaseException:
            self.abort()
            raise

    def result(self) -> list[ShardInfo]:
        """After :meth:`end`: wait for the last shard and return all of them, in order.

        Raises:
            RemoteDataError: if it could not be written.
        """
        try:
            self._settle()
        except BaseException:
            self.abort()
            raise
        return self.shards

    def abort(self, timeout_s: float | None = None) -> None:
        """Drop the open shard, and wait for the previous one.

        Args:
            timeout_s: limit in seconds for each of the two; afterwards they end in the background.
        """
        shard, finishing, self._open = self._open, self._finishing, None
        self.closed = _ABORTED
        if shard is not None:
            shard.abort(timeout_s)
        if finishing is not None:
            finishing.abort(timeout_s)  # only waits: it was ended, so it is kept
            if finishing.worker.settled:
                with contextlib.suppress(Exception):  # the error that led here is the one to report
                    self._settle()
            self._finishing = None


@explained
class ShardWriter:
    """Write samples into tar shards and, on a clean exit, the manifest.

    A shard is published atomically, on a local disk too; while it is finished, the next one is packed. If the ``with``
    block raises, full shards remain, the unfinished one does not, and there is no manifest; with
    ``overwrite`` those that it has not replaced remain, too, and readers of the folder warn.

    One writer at a time: ``_unfinished-job.json`` in the folder makes any other writer or ``shard_dataset`` job fail,
    in any thread, process or machine, before it writes. One that is to overwrite takes the folder over, also from a
    writer that was killed; a writer that still runs then fails, at the latest when it ends its next shard. Stores that
    cannot create an object only if there is none (they are reported) notice a second writer there, too.

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
        template = ShardTemplate(url_template)
        self._folder = ShardFolder(template, StorageOptions(storage_options))
        self._overwrite, self._has_begun = check.flag("overwrite", overwrite), False
        self._shards = RollingShardWriter(
            self._folder,
            template.url,
            ShardLimits(max_shard_bytes, max_shard_samples, max_member_bytes).checked(),
            overwrite=overwrite,
            before_first=self._folder.remove_description if overwrite else lambda: None,
        )

    @property
    def shards(self) -> tuple[ShardInfo, ...]:
        """The shards published so far."""
        return tuple(self._shards.shards)

    def __enter__(self) -> ShardWriter:
        self._begin()
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
        if not self._has_begun:
            self._begin()
        try:
            return self._shards.add(sample)
        except BaseException:
            if self._shards.closed == _ABORTED:
                self.abort()
            raise

    def close(self) -> tuple[ShardInfo, ...]:
        """Finish the last shard, then write the manifest. A second call does nothing.

        Returns:
            The shards that ``write`` has not returned, in order; empty if the writer was already closed.

        Raises:
            ShardWriteError: if there were no samples, or a shard could not be written.
            ObjectExistsError: if another writer has taken over the folder.
        """
        writer, num_returned = self._shards, len(self._shards.shards)
        if writer.closed == _ENDED:
            return ()
        first = redact(self._folder.template.url(0))
        if writer.closed:
            raise ShardWriteError(f"{first}: this writer {writer.closed}; there is no manifest.")
        if writer.is_empty:
            self.abort()
            raise ShardWriteError(f"{first}: there are no samples to write.")
        try:
            writer.end()
            shards = writer.result()
            self._folder.require_claim()
            if self._overwrite:  # the replaced dataset may have had more shards
                self._folder.keep_only(shards)
            self._folder.publish(MANIFEST_NAME, dump_manifest(shards), overwrite=self._overwrite)
        except BaseException:
            self.abort()
            raise
        if self._overwrite:
            self._folder.end()  # an unfinished job may have been replaced
        self._release()
        return self.shards[num_returned:]

    def abort(self, timeout_s: float | None = None) -> None:
        """Drop the open shard, wait for the previous one, and write no manifest, now or later.

        Args:
            timeout_s: limit in seconds for each of the two; afterwards they end in the background. ``None`` waits until
                they have ended.
        """
        self._shards.abort(timeout_s)
        if not (self._overwrite and self._shards.shards):  # else the claim tells readers of old and new shards
            self._release()

    def _begin(self) -> None:
        has_manifest = self._folder.manifest() is not None
        if not self._overwrite:
            self._folder.require_empty(has_manifest)
        if self._folder.claim(replace=self._overwrite):
            self._folder.remove_leftovers()
        self._has_begun = True

    def _release(self) -> None:
        with contextlib.suppress(StorageError):
            self._folder.release()
