"""``shard_tar_reader``: read samples from tar shards, or from views of them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing
from copy import copy as copied
from dataclasses import replace
from functools import partial
from itertools import islice
from operator import length_hint
from typing import Any

from ..core import arguments as check
from ..core.arguments import whole
from ..core.iter_datapipe import IterDataPipe, functional_datapipe
from ..core.shard_view import key_sum
from ..core.urls import redact
from ..errors import BadMemberError, ShardReadError
from ..fetch.read_ahead import ReadAhead
from ..fetch.streams import parts_of
from ..formats.compression import CompressionLimits, decompressed
from ..formats.error_policy import OnBadMember, OnBadShard, ShardErrorHandler, raise_error
from ..formats.grouping import SampleRun, sample_runs
from ..formats.nested import NestedPrefixes
from ..formats.position import ReadPosition
from ..formats.sample import KEY, Sample, ignored_kind
from ..formats.tar import NestedArchive, TarOptions, read_archives, read_lazy_batches, read_member_batches
from .env import Env
from .members import listed
from .passes import Pass
from .readers import ShardPass, ShardReader
from .streams import refuse_cache

_Parts = Iterable[bytes | memoryview]
_Runs = Iterator[SampleRun]
_Read = Callable[[_Parts, TarOptions, ReadPosition], _Runs]

_OTHER_VERSION = (
    "An index beside a shard (.tar.idx, .tar.keys) belongs to another version of it. Write it again "
    "(torchdata-remote manifest --overwrite FOLDER), and select again."
)


@functional_datapipe("shard_tar_reader")
class ShardTarReader(ShardReader):
    """Read samples from tar shards (functional name: ``shard_tar_reader``).

    Consecutive members with the same key are one sample. The key ends at the first dot of the base name, and the
    extension is the rest, in lower case; a leading ``./`` is dropped. Directories, links, devices, members named like
    ``__this__`` and files that macOS adds (``._1.jpg``, ``.DS_Store``, ``__MACOSX/``) are skipped and counted. Links,
    and an archive without a sample, cause a warning. Compression by gzip, bzip2, xz or zstd is detected by content.

    ``skipped`` counts what the last pass in this process has skipped: ``skipped.shards`` (URL -> reason),
    ``skipped.members`` (kind -> count), ``skipped.bad_members`` (reason -> count) and ``skipped.num_empty``.

    Args:
        source_datapipe: ``(url, file_like)`` pairs, binary; or bare URLs, which are prefetched with the default
            options of ``async_prefetch``.
        on_bad_shard: called with the ``ShardReadError`` of a shard that cannot be read further. It raises, as
            ``raise_error`` does; or it returns, as ``skip_with_warning`` does, and the rest of the shard is skipped.
            ``accept_missing_end`` returns ``True`` for a ``MissingEndError``: it accepts archives without the
            end-of-archive blocks.
        on_bad_member: called with the ``BadMemberError`` of a member that cannot be part of a sample, in a valid
            archive: without an extension (``README``) or a key (``.hidden``), with a path that leaves its folder, or
            with an extension that its sample has already. It raises, as ``raise_error`` does, which makes the shard a
            bad shard; or it returns, as ``skip_with_warning`` does, and the member is skipped. A key that is repeated
            later in the shard always makes it a bad shard.
        interleave: number of shards that are read concurrently, one sample of each in turn, in a deterministic order.
            Each of them holds a part in memory. Pass ``async_prefetch`` the same number, so that it prefetches all.
        nested: whether each shard is an archive of archives, as ImageNet's training images are. Keys are prefixed with
            the name of the inner archive without its extension: ``n01440764/n01440764_10026``.
        copy: whether members are ``bytes``. Otherwise they are ``memoryview`` slices, which avoid a copy but keep the
            complete part in memory. Decode them first: torch's default collate treats a slice as a list of numbers,
            and a worker process cannot send one (the loader would wait forever).
        lazy: extensions of members that are read where they are needed, such as ``{"mp4", "wav"}``: complete ones
            (``left.mp4``) or last parts, in any case. Such a member is a seekable, read-only binary file with ``name``
            and ``size``, which ``av.open`` and ``decode_sample`` take; ``bytes(file)`` is the whole. Nothing of it is
            fetched before it is read, unless it has at most 64 KiB. The reader then requests what it needs, and the
            beginnings of the next shards: name all large members, because others are fetched one after the other.
            There is no cache, and checksums of manifests are not compared. In compressed and nested archives, and in
            streams of other openers, the file is in memory.
        max_member_bytes: maximum size of a member; a larger one is an error, before memory is allocated for it.
        max_ratio: maximum ratio of decompressed to compressed bytes of a shard, beyond the first 16 MiB.
        max_decompressed_bytes: maximum size of a decompressed shard.
        storage_options: for bare URLs, in fsspec's vocabulary.

    Yields:
        dict: ``"__key__"`` (str), ``"__url__"`` (str), and one ``bytes`` (a file, for ``lazy``) for each member under
        its extension.

    Raises:
        ShardReadError: for a shard that is truncated or damaged, that exceeds a limit, or that repeats a key later.
            :class:`MissingEndError` if only the end-of-archive blocks are missing, :class:`BadMemberError` if a member
            cannot be part of a sample.

    Example:
        >>> from torchdata_remote import ShardWriter
        >>> with ShardWriter("memory://doc/{shard}.tar", overwrite=True) as writer:
        ...     _ = writer.write({"__key__": "cat/1", "txt": "miaow", "cls": 3})
        >>> list(ShardTarReader(IterableWrapper(["memory://doc/0.tar"])))
        [{'__key__': 'cat/1', '__url__': 'memory://doc/0.tar', 'cls': b'3', 'txt': b'miaow'}]
    """

    def __init__(
        self,
        source_datapipe: IterDataPipe[str | tuple[str, Any]],
        *,
        on_bad_shard: OnBadShard = raise_error,
        on_bad_member: OnBadMember = raise_error,
        interleave: int = 1,
        nested: bool = False,
        copy: bool = True,
        lazy: Collection[str] | None = None,
        max_member_bytes: int = TarOptions.max_member_bytes,
        max_ratio: int = CompressionLimits.max_ratio,
        max_decompressed_bytes: int = CompressionLimits.max_decompressed_bytes,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(
            source_datapipe,
            on_bad_shard=on_bad_shard,
            on_bad_member=on_bad_member,
            interleave=interleave,
            storage_options=storage_options,
        )
        self.nested, self.copy = check.flag("nested", nested), check.flag("copy", copy)
        names = [] if lazy is None else listed("lazy", lazy, example="{'mp4', 'wav'}")
        extensions = [check.extension("lazy", name, example="mp4") for name in names]
        self.lazy = frozenset(extensions) or None
        # Nested archives are read as a stream
        self.by_jumps = self.lazy is not None and not self.nested
        if self.by_jumps:
            refuse_cache(self.source_datapipe)
        self.max_member_bytes = whole("max_member_bytes", max_member_bytes)
        self.limits = CompressionLimits(
            max_ratio=whole("max_ratio", max_ratio),
            max_decompressed_bytes=whole("max_decompressed_bytes", max_decompressed_bytes),
        )

    @property
    def is_counted(self) -> bool:
        """Whether it yields as many samples as a manifest counts, which counts the archives in one of archives."""
        return not self.nested and super().is_counted

    def input_of(self, env: Env) -> Pass[tuple[str, Any]]:
        return super().input_of(replace(env, by_jumps=True) if self.by_jumps else env)

    def open(self, env: Env) -> Pass[Sample]:
        return TarPass(self, env)


class TarPass(ShardPass):
    """Samples of tar shards."""

    reads_parts = True

    def runs_in(self, url: str, stream: Any, guard: ShardErrorHandler, position: ReadPosition) -> _Runs:
        pipe = self.pipe
        parts: _Parts = (self._windows(url, stream) if pipe.by_jumps else None) or parts_of(url, stream)
        batches: Any = read_member_batches
        if pipe.lazy is not None:
            batches = partial(read_lazy_batches, lazy=pipe.lazy)
            if isinstance(parts, ReadAhead):
                batches = partial(batches, file_of=stream.file_of)

        def read(
            parts: _Parts, options: TarOptions, position: ReadPosition, inside: str | None = None, prefix: str = ""
        ) -> _Runs:
            return sample_runs(
                batches(parts, url=inside or url, options=options, position=position),
                url=url,
                inside=inside,
                prefix=prefix,
                on_skip=options.on_skip,
                on_bad_member=guard.on_bad_member,
                on_empty=guard.on_empty,
                position=position,
            )

        options = TarOptions(
            max_member_bytes=pipe.max_member_bytes,
            copy=pipe.copy,
            num_bytes=getattr(stream, "num_bytes", None),
            first_byte=position.start.byte,
            last_byte=getattr(stream, "last_byte", None),
            on_skip=self.skipped.count_member,
            on_link=guard.on_link,
            on_missing_end=guard.accepts,
        )
        if pipe.nested:  # of which the samples of a view are inner archives
            return self._bare_runs(partial(self._nested_runs, url, guard, read), parts, url, options, position)
        runs = self._bare_runs(read, parts, url, options, position)
        return _selected_runs(runs, url, stream, position) if hasattr(stream, "selected") else runs

    def _windows(self, url: str, stream: Any) -> ReadAhead | None:
        """Return the bytes of a stream by jumps, if it is one for that and not compressed."""
        windows: ReadAhead | None = getattr(stream, "windows", None)
        if windows is None or stream.first_byte:
            return windows
        compression, unread = decompressed([windows.head()], url=url, limits=self.pipe.limits)
        unread.close()
        return windows if compression is None else None

    def _bare_runs(self, read: _Read, parts: _Parts, url: str, options: TarOptions, position: ReadPosition) -> _Runs:
        """Read an archive by ``read``. One that is compressed is decompressed from its beginning always."""
        if position.start.byte or isinstance(parts, ReadAhead):
            yield from read(parts, options, position)
            return
        compression, bare = decompressed(parts, url=url, limits=self.pipe.limits)
        with closing(bare):
            if compression is None:
                yield from read(bare, options, position)
                return
            within, position.num_read = ReadPosition(), 0
            for run in read(bare, replace(options, num_bytes=None), within):
                num_passed = max(0, position.start.num_skipped - position.num_read)
                position.ended, position.batch_rest = within.ended, run
                position.num_read += length_hint(run)
                for _ in islice(run, num_passed):
                    pass
                yield run

    def _nested_runs(
        self,
        url: str,
        guard: ShardErrorHandler,
        read: Any,
        parts: _Parts,
        options: TarOptions,
        position: ReadPosition,
    ) -> _Runs:
        prefixes = NestedPrefixes(url)
        begun = None if position.start.nested is None else NestedArchive(*position.start.nested)
        for inner, pieces in read_archives(parts, url=url, options=options, begun=begun):
            if (kind := ignored_kind(inner.name)) is not None:
                options.on_skip(kind)
            elif (prefix := prefixes.of(inner.name, guard.on_bad_member)) is not None:
                within = position.enter(inner, following=inner.after())
                inside = f"{url}, in {inner.name!r:.200}"
                limits = replace(options, num_bytes=inner.num_bytes, first_byte=within.start.byte, last_byte=None)
                read_inner = partial(read, inside=inside, prefix=prefix)
                yield from self._bare_runs(read_inner, pieces, inside, limits, within)


def _selected_runs(runs: _Runs, url: str, stream: Any, position: ReadPosition) -> _Runs:
    """Yield the same runs of samples, and compare with the view their keys, and where the next run begins.

    Args:
        runs: of ``formats.grouping.sample_runs``, each of which is consumed before the next one is asked for.
        url: of the first shard, redacted, for errors.
        stream: with ``selected`` and ``place_of``, as a ``ViewStream`` has.
        position: updated by ``runs``.

    Raises:
        ShardReadError: if samples do not end where the view says, or one has another key than the file of keys had; and
            those of ``runs``. They say in which shard, and about where.
    """
    # A list: numpy would release Python's lock for each search, and wait for the threads that fetch
    starts: list[int] = stream.selected.starts.tolist()
    key_sums = None if stream.selected.key_sums is None else stream.selected.key_sums.tolist()
    number = bisect_right(starts, position.start.byte) - 1
    if number == len(starts) - 1:
        return
    try:
        for run in runs:
            num_samples = length_hint(run)
            if key_sums is not None:
                # A copy of an iterator over a list leaves that one where it is
                for sample, expected in zip(copied(run), key_sums[number : number + num_samples], strict=False):
                    if key_sum(sample[KEY]) != expected:
                        raise ShardReadError(
                            f"{url}: a sample has the key {sample[KEY]!r:.200}, and another one was selected.", url=url
                        )
            number += num_samples
            yield run
            byte = starts[-1] if position.ended else position.next_byte()
            # Not always where it was selected from: members that are part of no sample may be in front of it
            if (found := bisect_right(starts, byte) - 1) != number:
                number = min(number, found)
                raise ShardReadError(f"{url}: a selected sample does not end where the next one begins.", url=url)
    except BadMemberError:
        raise
    except ShardReadError as error:
        shard, place = stream.place_of(starts[min(number, len(starts) - 2)])
        where = f"Bytes of selected samples; this is at or behind byte {place:,} of {redact(shard)}."
        error.args = (f"{error} ({where} {_OTHER_VERSION})",)
        raise
