"""``shard_tar_reader``: read samples from tar shards."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import islice
from operator import length_hint
from typing import Any, NamedTuple, cast

from ..core.arguments import check
from ..core.arguments.amounts import whole
from ..core.iter_datapipe import IterDataPipe, functional_datapipe
from ..fetch.jumps import stream_by_jumps
from ..fetch.read_ahead import ReadAhead
from ..fetch.session import FetchSession
from ..fetch.streams import parts_of
from ..formats.byte_reader import Skippable
from ..formats.compression.decompress import CompressionLimits, decompressed
from ..formats.error_policy import OnBadMember, OnBadShard, ShardErrorHandler, raise_error
from ..formats.grouping import SampleRun, sample_runs
from ..formats.nested import NestedPrefixes
from ..formats.position import ReadPosition
from ..formats.sample import Sample, ignored_kind
from ..formats.tar import NestedArchive, TarOptions, read_archives, read_member_batches
from ..formats.tar.lazy_members import LazyBatch, LazyExtensions, no_file, read_lazy_batches
from .env import Env
from .passes import Pass
from .readers import ShardPass, ShardReader
from .selected_samples import selected_runs
from .streams import Opened, refuse_cache

Data = bytes | memoryview
Parts = Iterable[Data]
_Runs = Iterator[SampleRun]
_Batches = Callable[..., Iterator[tuple[Any, Any]]]
_Read = Callable[[Parts, TarOptions, ReadPosition], _Runs]


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
        extensions = checked_extensions(lazy)
        self.lazy = LazyMembers(LazyExtensions(extensions), jumps=not self.nested) if extensions else None
        if self._by_jumps:
            refuse_cache(self.source_datapipe)
        self.max_member_bytes = whole("max_member_bytes", max_member_bytes)
        self.limits = CompressionLimits(
            max_ratio=whole("max_ratio", max_ratio),
            max_decompressed_bytes=whole("max_decompressed_bytes", max_decompressed_bytes),
        )

    @property
    def _by_jumps(self) -> bool:
        return self.lazy is not None and self.lazy.jumps

    def input_of(self, env: Env) -> Pass[tuple[str, Any]]:
        return super().input_of(replace(env, by_jumps=True) if self._by_jumps else env)

    def opener_of(self, session: FetchSession, env: Env) -> Opened:
        if self._by_jumps:
            return lambda urls, state: stream_by_jumps(urls, session, state)
        return super().opener_of(session, env)

    def open(self, env: Env) -> Pass[Sample]:
        return TarPass(self, env)


class TarPass(ShardPass):
    """Samples of tar shards."""

    reads_parts = True

    def runs_in(self, url: str, stream: Any, guard: ShardErrorHandler, position: ReadPosition) -> Iterator[SampleRun]:
        pipe, lazy, batches = self.pipe, self.pipe.lazy, cast(_Batches, read_member_batches)
        parts = parts_of(url, stream) if lazy is None else lazy.parts_of(url, stream, pipe.limits)
        if lazy is not None:
            batches = lazy.batches_of(stream, parts)
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
        read = partial(self._nested_runs if pipe.nested else _plain_runs, url, guard, batches)
        runs = self._bare_runs(read, parts, url, options, position)
        # Of a nested archive the samples that were selected are inner archives
        is_checked = not pipe.nested and hasattr(stream, "selected")
        return selected_runs(runs, url, stream, position) if is_checked else runs

    def _bare_runs(
        self, read: _Read, parts: Iterable[Data], url: str, options: TarOptions, position: ReadPosition
    ) -> _Runs:
        """Read an archive by ``read``. One that is compressed is decompressed from its beginning always."""
        if position.start.byte or isinstance(parts, Skippable):
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
        batches: _Batches,
        parts: Iterable[Data],
        options: TarOptions,
        position: ReadPosition,
    ) -> _Runs:
        prefixes = NestedPrefixes(url)
        begun = None if position.start.nested is None else NestedArchive(*position.start.nested)
        for inner, pieces in read_archives(parts, url=url, options=options, begun=begun):
            if (kind := ignored_kind(inner.name)) is not None:
                options.on_skip(kind)
                continue
            prefix = prefixes.of(inner.name, guard.on_bad_member)
            if prefix is None:
                continue
            within = position.enter(inner, following=inner.after())
            inside = f"{url}, in {inner.name!r:.200}"
            read = partial(_plain_runs, url, guard, batches, inside=inside, prefix=prefix)
            limits = replace(options, num_bytes=inner.num_bytes, first_byte=within.start.byte, last_byte=None)
            yield from self._bare_runs(read, pieces, inside, limits, within)


def _plain_runs(
    url: str,
    guard: ShardErrorHandler,
    batches: _Batches,
    parts: Iterable[Data],
    options: TarOptions,
    position: ReadPosition,
    *,
    inside: str | None = None,
    prefix: str = "",
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


def checked_extensions(lazy: Any) -> frozenset[str]:
    """Return the extensions of a ``lazy=`` argument; none of them for ``None``.

    Raises:
        TypeError: if it is no collection of str.
        ValueError: for an extension with a dot before it, which no member has.
    """
    if lazy is None:
        return frozenset()
    if isinstance(lazy, str | bytes) or not isinstance(lazy, Iterable):
        advice = f" Write {{{lazy!r}}}." if isinstance(lazy, str) else ""
        raise check.marked(
            TypeError(f"lazy must be a set of extensions such as {{'mp4', 'wav'}}, got {check.shown(lazy)}.{advice}")
        )
    return frozenset(check.extension("lazy", extension, example="mp4") for extension in lazy)


class LazyMembers(NamedTuple):
    """How a shard with lazy members is read.

    Args:
        extensions: of the members that are handed out as files.
        jumps: whether its stream may be read by jumps. Nested archives are read as a stream.
    """

    extensions: LazyExtensions
    jumps: bool

    def parts_of(self, url: str, stream: Any, limits: CompressionLimits) -> Parts:
        """Return the bytes of a stream: by jumps, if it is one for that and not compressed."""
        windows: ReadAhead | None = getattr(stream, "windows", None) if self.jumps else None
        if windows is None:
            return parts_of(url, stream)
        if not stream.first_byte:
            compression, unread = decompressed([windows.head()], url=url, limits=limits)
            unread.close()
            if compression is not None:
                return parts_of(url, stream)
        return windows

    def batches_of(self, stream: Any, parts: Parts) -> Callable[..., Iterator[LazyBatch]]:
        """Return the function that reads the members of an archive in these parts, lazy ones as files."""
        file_of = stream.file_of if isinstance(parts, Skippable) else no_file
        return partial(read_lazy_batches, lazy=self.extensions, file_of=file_of)
