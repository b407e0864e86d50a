"""``sharding_filter_rank`` and ``equalize_ranks``: which part of the data each reader has."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any, Literal, TypeVar

import numpy as np

from ..core import arguments as check
from ..core.frameworks import length_for_caller, refuse_second_split
from ..core.iter_datapipe import SHARDING_PRIORITIES, Batcher, Filter, IterDataPipe, functional_datapipe
from ..core.partition import EqualizeMode, Piece, SamplePartition
from ..core.urls import RemoteUrl, VirtualUrl, redact, split_sample_range
from ..core.world import World, counted, described, detect_world, place_in, require_world, world_from_sharding
from ..errors import EmptyShareError, ManifestError, SampleError
from .chain import all_pipes
from .datapipe import SourcePipe, length_here
from .env import Env
from .passes import CountedPass, NumberedPass, Pass
from .shares import Cut, Share, part_of
from .slots import is_endless
from .threaded import ThreadedMap

T = TypeVar("T")


@functional_datapipe("sharding_filter_rank")
class ShardingFilterRank(SourcePipe[str]):
    """Pass on this slot's share of the shard URLs (functional name: ``sharding_filter_rank``).

    URL ``i`` goes to slot ``i % num_slots``, so all slots together read each URL once per epoch. The share is the same
    under ``DataLoader``, ``DataLoader2``, with ``RANK`` and ``WORLD_SIZE`` in the environment, and with an explicit
    ``world``. Shares may differ by one URL.

    With a manifest, which has the number of samples of each shard, there may be fewer shards than slots. Then shards
    are split by samples: the numbers of samples of two slots differ by at most one. A slot reads only its range of a
    shard, found by the index (``shard.tar.idx``). Put ``filter`` before this pipe: the URL of a range differs from that
    of its shard, and readers refuse a pass with a filter on such URLs.

    Args:
        source_datapipe: shard URLs, in the same order in every process.
        world: rank and worker of this reader. A world without workers applies to all workers of the rank. ``None`` asks
            torch when iteration starts, because DataLoader workers do not exist yet when the pipe is built. If several
            ranks read the same data, pass ``World.from_mesh(mesh, dp=...)`` or ``World.from_group(group)``.
        split: ``False`` yields all URLs to every reader: for intended repetition, or for URLs that are split already.
            Without this pipe several readers refuse to start (:class:`UnsplitError`).

    Yields:
        str: shard URLs in source order; a ``RemoteUrl`` may be limited to a range of samples.

    Raises:
        TypeError: if ``world`` is not a ``World``, but a ``DeviceMesh`` for example.
        ValueError: for a chain that is split already, or for ``world`` together with ``split=False``.
        SplitTwiceError: if a training framework splits the items again (Accelerate, the transformers Trainer).
        EmptyShareError: in every slot, before the first URL, if there are fewer URLs than slots and their numbers of
            samples are unknown, or fewer samples than slots.

    Example:
        >>> urls = IterableWrapper([f"s3://photos/{i}.tar" for i in range(5)])
        >>> list(ShardingFilterRank(urls, world=World(rank=1, world_size=2)))
        ['s3://photos/1.tar', 's3://photos/3.tar']
    """

    uses_epoch = True

    def __init__(self, source_datapipe: IterDataPipe[str], *, world: World | None = None, split: bool = True) -> None:
        super().__init__(source_datapipe)
        require_world(world)
        split = check.flag("split", split)
        if not split and world is not None:
            raise ValueError(
                f"sharding_filter_rank(split=False) yields all URLs to every reader, and {world!r} selects a share of "
                "them: pass one of the two. With world=World() each rank has all URLs, split over its workers."
            )
        if split and any(isinstance(pipe, ShardingFilterRank) for pipe in all_pipes(source_datapipe)):
            raise ValueError(
                "This chain is split already, and a share of a share would drop data: use sharding_filter_rank() once "
                "(stream_shards and stream_files contain it)."
            )
        self.world = world
        self.split = split
        if not split:
            # torch treats a pipe with this method as one that splits, and refuses two of them in one chain. Without
            # it, a sharding_filter() after the reader is allowed.
            vars(self)["apply_sharding"] = None
        self._groups: dict[int, tuple[int, int]] = {}

    def is_shardable(self) -> bool:
        """Hook of torch: whether this pipe splits the chain."""
        return self.split

    def apply_sharding(
        self,
        num_of_instances: int,
        instance_id: int,
        sharding_group: SHARDING_PRIORITIES = SHARDING_PRIORITIES.DEFAULT,
    ) -> None:
        """Hook of torch's loaders: set the index of this copy of the chain among ``num_of_instances``."""
        if (sharding_group == SHARDING_PRIORITIES.DEFAULT) != (SHARDING_PRIORITIES.DEFAULT in self._groups):
            self._groups = {}  # set by another loader than before
        self._groups = {**self._groups, sharding_group: (num_of_instances, instance_id)}

    @property
    def has_all_ranks(self) -> bool:
        """Whether each rank reads all data by intention: ``split=False``, or a world of one rank."""
        return not self.split or (self.world is not None and self.world.world_size == 1)

    def refuse_second_split(self) -> None:
        """Refuse to split if a training framework splits again.

        Raises:
            SplitTwiceError: names the framework and the alternative.
        """
        if not self.has_all_ranks:
            refuse_second_split(type(self).__name__)

    def __getstate__(self) -> Any:
        # DataLoader traverses a chain by this, in each rank, before it starts workers or reads.
        self.refuse_second_split()
        return super().__getstate__()

    def current_world(self) -> World:
        """Return rank and worker of this reader."""
        return place_in(self.world, world_from_sharding(self._groups, detect_world()))

    def open(self, env: Env) -> SplitPass:
        self.refuse_second_split()
        pass_ = SplitPass(self, env)
        if self.split:
            env.mark(self, pass_)
        return pass_

    def order_options(self) -> Mapping[str, Any]:
        return {} if self.split else {"split": False}


class SplitPass(NumberedPass[str]):
    """The URLs of one share.

    Args:
        pipe: that splits.
        env: of the pass.
    """

    def __init__(self, pipe: ShardingFilterRank, env: Env) -> None:
        super().__init__()
        self._pipe, self._env = pipe, env
        self.share = Share.of(pipe.current_world()) if env.share is None else env.share
        self.gives_parts = False
        self.num_samples: int | None = None
        """Of this share, if all are equal."""

    def items(self) -> Iterator[str]:
        for self._next, url in enumerate(self._urls(), self._next + 1):  # noqa: B020  # counted where it is kept
            yield url

    def count(self) -> int:
        """Count the samples of the share.

        Raises:
            TypeError: if the listing does not have their numbers.
        """
        urls = self._env.whole(self._pipe.source_datapipe)
        if self._env.equalize is None and not are_indexed(urls):
            raise TypeError("the listing is no manifest with indexes, which torchdata-remote manifest FOLDER writes")
        order = self._order(urls) if self._pipe.split else None
        if order is not None and not self.share.cuts:
            return part_of(len(order), self.share.number, self.share.count)
        return sum(map(_num_samples, self._divided(urls) if self._pipe.split else urls))

    def _urls(self) -> Iterator[str]:
        """The rest of the share."""
        pipe, env, share, start = self._pipe, self._env, self.share, self._next
        if not pipe.split:
            return islice(self._opened(), start, None)
        if env.equalize is not None or id(pipe.source_datapipe) in env.shared.listed:
            return self._divided(env.whole(pipe.source_datapipe))
        source = iter(self._opened())
        head = list(islice(source, share.count))
        if is_endless(pipe.source_datapipe):
            return islice(self._dealt(chain(head, source)), start, None)
        if share.cuts or len(head) < share.count > 1 or (env.by_samples and are_indexed(head)):
            return self._divided([*head, *source])
        return islice(chain(head, source), share.number + start * share.count, None, share.count)

    def _opened(self) -> Pass[str]:
        self.sources = (self._env.open(self._pipe.source_datapipe),)
        return self.sources[0]

    def _dealt(self, urls: Iterator[str]) -> Iterator[str]:
        """The whole share of URLs without an end."""
        share, env = self.share, self._env
        own: Iterator[str] = islice(urls, share.number, None, share.count)
        for cut in share.cuts:
            taken = cut.taken(env.number_of(self._pipe), env.epoch, sys.maxsize)
            if cut.part == 0:
                own = chain(islice(own, taken), islice(own, 0, None, cut.parts))
            else:
                own = islice(own, min(cut.part + taken, sys.maxsize), None, cut.parts)
        return own

    def _divided(self, urls: Sequence[str]) -> Iterator[str]:
        """The rest of the share: of samples, or of shards."""
        share, number, path = self.share, self._env.number_of(self._pipe), self._env.epoch
        if (order := self._order(urls)) is not None:
            return self._pieces(urls, order.share(share.number, share.count), share.cuts)
        own: Sequence[int] = range(share.number, len(urls), share.count)
        for index, cut in enumerate(share.cuts):
            taken = cut.taken(number, path, len(own))
            # Too few shards for the parts of a pass that had not begun: by samples, as in a world of that size
            if not taken and len(own) < cut.parts and (counts := counts_of([urls[at] for at in own])) is not None:
                whole = [Piece(at, 0, count) for at, count in zip(own, counts, strict=True)]
                return self._pieces(urls, whole, share.cuts[index:])
            rest = own[taken:][cut.part :: cut.parts]
            own = rest if cut.part else [*own[:taken], *rest]
        return map(urls.__getitem__, own[self._next :])

    def _order(self, urls: Sequence[str]) -> SamplePartition | None:
        """The samples, in the order in which shares take them; ``None`` where shards stay whole."""
        pipe, env, count = self._pipe, self._env, self.share.count

        def made() -> SamplePartition | None:
            if env.equalize is None and not len(urls) < count > 1 and not (env.by_samples and are_indexed(urls)):
                return None
            readers = readers_of(count, pipe.world, pipe.current_world() if env.share is None else None)
            return order_of(urls, count, env.epoch, env.equalize, readers)

        return env.shared.once((id(pipe), env.equalize, env.by_samples), (*env.epoch, count), made)

    def _pieces(self, urls: Sequence[str], pieces: list[Piece], cuts: Sequence[Cut]) -> Iterator[str]:
        """The rest of the pieces that are left by cuts."""
        env = self._env
        for cut in cuts:
            taken = cut.taken(env.number_of(self._pipe), env.epoch, len(pieces))
            passed = cut.passed if len(env.epoch) == 1 else 0
            pieces = part_of_pieces(pieces, taken, cut.part, cut.parts, passed)
        self.gives_parts = env.equalize is None
        if env.equalize is not None:
            self.num_samples = sum(piece.last - piece.first for piece in pieces)
        return pieces_of(urls, islice(pieces, self._next, None))

    @property
    def mark(self) -> Any:
        return self._next


def part_of_pieces(pieces: list[Piece], taken: int, part: int, parts: int, passed: int) -> list[Piece]:
    """Divide what a stream has left: part 0 keeps the pieces that were begun, and so gets fewer others.

    Args:
        pieces: of the stream.
        taken: number of pieces that were begun.
        part: which of the parts.
        parts: how many there are.
        passed: samples of the stream that were handed out.

    >>> shards = [Piece(shard, 0, 10) for shard in range(4)]
    >>> part_of_pieces(shards, 2, 0, 2, passed=6), part_of_pieces(shards, 2, 1, 2, passed=6)
    ([Piece(shard=0, first=0, last=10), Piece(shard=1, first=0, last=10), Piece(shard=2, first=0, last=3)], \
[Piece(shard=2, first=3, last=10), Piece(shard=3, first=0, last=10)])
    """
    begun, rest = pieces[:taken], SamplePartition.of_pieces(pieces[taken:])
    kept = max(0, sum(piece.last - piece.first for piece in begun) - passed)
    first = max(0, part_of(kept + len(rest), 0, parts) - kept)
    if part == 0:
        return [*begun, *rest.between(0, first)]
    start, stop = (first + (len(rest) - first) * number // (parts - 1) for number in (part - 1, part))
    return rest.between(start, stop)


def order_of(
    urls: Sequence[str], num_slots: int, epoch: tuple[int, ...], equalize: EqualizeMode | None, readers: str
) -> SamplePartition:
    """Return the samples of the shards in the order in which slots take their shares.

    Args:
        urls: of the shards.
        num_slots: number of shares.
        epoch: of the pass.
        equalize: how the slots get equal numbers of samples; ``None`` if they need not.
        readers: what an error calls the slots.

    Raises:
        EmptyShareError: if a slot would have none.
        ManifestError: if shares have to be equal, and the listing does not have the number of samples.
    """
    counts = counts_of(urls)
    if equalize is None:
        if counts is None or sum(counts) < num_slots:
            raise too_few(urls, counts, readers)
        return SamplePartition.of(counts)
    if not urls:
        raise EmptyShareError(f"There are no shards for {readers}.")
    if counts is None:
        raise ManifestError(
            f"{redact(urls[0])}: its number of samples is unknown, and equalize_ranks needs it. "
            + (
                "Chain .list_row_groups() before sharding_filter_rank()."
                if are_tables(urls)
                else "List the manifest (index.json) of the shards; if there is none, write it: torchdata-remote "
                "manifest FOLDER"
            )
        )
    order = SamplePartition.of(counts)
    if len(order) < num_slots and (equalize is EqualizeMode.DROP or not len(order)):
        raise EmptyShareError(f"{counted(len(order), 'sample')} for {readers}: each would have none.")
    listed = np.array(sorted(range(len(urls)), key=urls.__getitem__))
    return order.equalized(num_slots, sum(epoch), EqualizeMode(equalize), listed)


def counts_of(urls: Sequence[str]) -> list[int] | None:
    """Number of samples of each shard, or ``None`` if it is unknown for one of them."""
    counts = [url.num_samples for url in urls if isinstance(url, RemoteUrl) and url.num_samples is not None]
    return counts if urls and len(counts) == len(urls) else None


def are_indexed(urls: Sequence[str]) -> bool:
    """Whether each shard can be read from any sample on, and the number of its samples is known."""
    return bool(urls) and all(
        isinstance(url, RemoteUrl)
        and url.num_samples is not None
        and (url.index_crc32 is not None or isinstance(url, VirtualUrl))
        for url in urls
    )


def _num_samples(url: Any) -> int:
    first, last = split_sample_range(url)[1] or (0, url.num_samples)
    return int(last - first)


def pieces_of(urls: Sequence[str], pieces: Iterator[Piece]) -> Iterator[str]:
    """Yield the URL of each piece: a shard with a range of its samples."""
    for piece in pieces:
        url = urls[piece.shard]
        yield url.part(piece.first, piece.last) if isinstance(url, RemoteUrl) else url


def too_few(urls: Sequence[str], counts: list[int] | None, readers: str) -> EmptyShareError:
    """Error of fewer shards or samples than slots."""
    what = counted(len(urls), "shard") if counts is None else counted(sum(counts), "sample")
    if counts is None and are_tables(urls):
        what = counted(len(urls), "table")
        return EmptyShareError(
            f"{what} for {readers}: some of them would have nothing to read. Chain .list_row_groups() before "
            "sharding_filter_rank(), which then splits row groups, and the rows of one where need be; or use fewer "
            "readers."
        )
    return EmptyShareError(
        f"{what} for {readers}: some of them would have nothing to read. Use fewer readers, or more and smaller shards "
        "(write_shards, max_shard_samples=); or list the manifest (index.json) of the shards, by which a shard is "
        "split among several readers."
    )


def are_tables(urls: Sequence[str]) -> bool:
    """Whether these are files of Parquet or Arrow, by their names."""
    return bool(urls) and urls[0].partition("?")[0].lower().endswith((".parquet", ".arrow", ".feather"))


def readers_of(count: int, argument: World | None, world: World | None) -> str:
    """Describe readers to the user, who has passed ranks and workers, or ``num_streams``."""
    here = world or place_in(argument, detect_world())
    return described(here) if here.num_slots == count else counted(count, "stream")


@functional_datapipe("equalize_ranks")
class EqualizeRanks(SourcePipe[T]):
    """Give every slot the same number of samples (functional name: ``equalize_ranks``).

    All ranks then have the same number of batches, so none of them waits for gradients at the end of an epoch. It makes
    the ``sharding_filter_rank`` above it split shards by the numbers of samples in the manifest: ranks exchange
    nothing, and ``len(pipe)`` is exact for the current slot. The pipes between the two must yield one sample for each
    that they take; the count is checked at the end.

    Args:
        source_datapipe: samples.
        mode: ``drop`` drops up to ``num_slots - 1`` samples, different ones each epoch; ``repeat`` repeats up to
            ``num_slots - 1`` samples.

    Yields:
        The same samples.

    Raises:
        ManifestError: if the listing is not that of a manifest, or a shard has no index.
        SampleError: if the number of samples differs from that in the manifest.

    Example:
        >>> from torchdata_remote import ShardWriter, World
        >>> with ShardWriter("memory://even/{shard}.tar", overwrite=True) as writer:
        ...     _ = [writer.write({"__key__": str(i), "cls": i}) for i in range(7)]
        >>> urls = IterableWrapper(["memory://even/index.json"]).list_remote()
        >>> share = urls.sharding_filter_rank(world=World(rank=1, world_size=2))
        >>> pipe = EqualizeRanks(share.shard_tar_reader(), mode="drop")
        >>> len(pipe), [sample["__key__"] for sample in pipe]
        (3, ['4', '5', '6'])
    """

    gives_equal_counts = True

    def __init__(
        self, source_datapipe: IterDataPipe[T], *, mode: EqualizeMode | Literal["drop", "repeat"] = EqualizeMode.DROP
    ) -> None:
        super().__init__(source_datapipe, "samples")
        self.mode = check.choice("mode", mode, EqualizeMode)
        if any(isinstance(pipe, EqualizeRanks) for pipe in all_pipes(source_datapipe)):
            raise ValueError("This chain has equalize_ranks() already: use it once.")
        sharding = self._sharding()
        above = {id(pipe) for pipe in all_pipes(sharding)}
        for pipe in all_pipes(source_datapipe):
            if id(pipe) in above:
                continue
            if isinstance(pipe, (Batcher, Filter)) or getattr(type(pipe), "changes_count", False):
                raise ValueError(
                    f"equalize_ranks counts samples, and {type(pipe).__name__} changes their number: put it after "
                    "equalize_ranks."
                )
            if isinstance(pipe, ThreadedMap):
                pipe.require_equal_counts()
            if getattr(pipe, "drops_samples", False):
                raise ValueError(
                    f"equalize_ranks counts the rows of row groups, and {type(pipe).__name__}(filter=) drops some. "
                    "Write what the filter accepts into shards (write_shards), or stop after a number of batches."
                )
        if is_endless(sharding):
            raise ValueError(
                "equalize_ranks counts the samples of a pass, and repeat_epochs() above it has no end: put it after."
            )
        if not sharding.split:
            raise ValueError(
                "sharding_filter_rank(split=False) yields everything to every reader, so there are no shares that "
                "equalize_ranks could make equal. Remove one of the two."
            )

    def _sharding(self) -> ShardingFilterRank:
        found = [pipe for pipe in all_pipes(self.source_datapipe) if isinstance(pipe, ShardingFilterRank)]
        if len(found) != 1:
            raise ValueError(
                f"equalize_ranks needs one sharding_filter_rank() above it, and there are {len(found)}. With mix(), "
                "equalize each of its sources, or pass stop= a number of samples."
            )
        return found[0]

    def open(self, env: Env) -> Pass[Any]:
        source = replace(env, equalize=self.mode).open(self.source_datapipe)
        return _EqualizedPass(source, lambda: env.marks.passes[env.number_of(self._sharding())][1])

    def order_options(self) -> Mapping[str, Any]:
        return {"mode": self.mode.value}

    def length(self, env: Env) -> int:
        """Count the samples of a share."""
        sharding, env = self._sharding(), replace(env, equalize=self.mode)
        world = sharding.current_world()
        if env.share is not None or world.num_workers > 1:
            return SplitPass(sharding, env).count()
        return length_for_caller(
            lambda workers: (
                [SplitPass(sharding, replace(env, share=Share(0, world.num_slots * workers))).count()] * workers
            )
        )

    __len__ = length_here


class _EqualizedPass(CountedPass[T]):
    """Counts the samples of a share.

    Args:
        source: of them.
        split: returns the pass that has split the shards.
    """

    def __init__(self, source: Pass[T], split: Callable[[], Any]) -> None:
        super().__init__(source)
        self._split = split

    def items(self) -> Iterator[T]:
        for item in self.sources[0]:
            self.num_passed += 1
            yield item
        expected = self._split().num_samples
        if self.num_passed != expected:
            raise SampleError(
                f"{self.num_passed:,} samples were read, and the manifest has {expected:,} for this slot. A shard "
                "was skipped, or a pipe above equalize_ranks drops samples: other ranks would wait for them."
            )
