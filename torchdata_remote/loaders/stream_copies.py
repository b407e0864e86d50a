"""Check that a chain can be resumed, copy it for each stream, and list once for all copies."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from ..core.iter_datapipe import Filter, IterableWrapper, IterDataPipe, Mapper
from ..core.processes.worker_errors import keep_arguments
from ..core.world import World
from ..errors import StateError
from ..pipes.base.chain import PASS_THROUGH, all_pipes, name_of, require_state, sources_of
from ..pipes.base.datapipe import SharedList
from ..pipes.base.epochs import has_epochs, set_epoch
from .batch_options import BatchOptions
from .listing.packed_listing import Listed
from .state.fingerprints import Fingerprint, fingerprint, sorted_names

_LISTING = (IterableWrapper, Mapper, Filter)  # of torch
_INSTEAD = {
    "Shuffler": "shuffle_samples(), or shuffle_shards() for URLs",
    "ShardingFilter": "sharding_filter_rank()",
    "UnBatcher": "flat_map(list), or batch() only once",
    "FlatMapper": "flat_map()",
    "ShuffledFlatMapper": "flat_map(), and shuffle_samples()",
    "Cycler": "repeat_epochs()",
    "Repeater": "flat_map() with a function that returns [item] * times; torchdata_remote.RepeatEpochs repeats passes",
    "Header": "take()",
    "BucketBatcher": "bucket()",
    "MaxTokenBucketizer": "bucket(max_tokens=...)",
    "Concater": "list_remote() with several sources, or mix()",
    "SampleMultiplexer": "mix()",
    "Multiplexer": "mix()",
    "Zipper": "one chain whose samples have all members",
    "Prefetcher": "async_prefetch()",
    "PinMemory": "stateful_loader(), which pins memory by itself",
    "WriteShards": "a plain DataLoader: writing is not resumed",
}


def check_resumable(pipe: IterDataPipe[Any]) -> None:
    """Check that each pipe of a chain can be resumed.

    Raises:
        StateError: if a pipe cannot; names it and what to use instead.
    """
    for found in all_pipes(pipe):
        if hasattr(type(found), "require_resumable"):
            found.require_resumable()
        if gives_urls(found) or isinstance(found, PASS_THROUGH) or hasattr(found, "state_dict"):
            continue
        name = name_of(found)
        instead = _INSTEAD.get(name, "torch's map, filter, batch or collate, or give it state_dict and load_state_dict")
        raise StateError(f"{name} cannot be resumed where it was. Use instead: {instead}.")
    require_state(pipe)
    for found in all_pipes(pipe):
        if getattr(type(found), "needs_source_state", False):
            for _, _, source in sources_of(found):
                require_state(source)


def gives_urls(pipe: IterDataPipe[Any]) -> bool:
    """Whether a pipe can be part of a listing: some of torch's, and those with ``gives_urls``."""
    return isinstance(pipe, _LISTING) or bool(getattr(type(pipe), "gives_urls", False))


def is_sharded(pipe: IterDataPipe[Any]) -> bool:
    """Whether all listings of a chain are split."""
    if hasattr(type(pipe), "current_world"):
        return True
    sources = [source for _, _, source in sources_of(pipe)]
    return bool(sources) and all(map(is_sharded, sources))


def require_split(pipe: IterDataPipe[Any], num_streams: int) -> None:
    """Check that several streams of a chain have shares of their own.

    Raises:
        StateError: if they would read the same.
    """
    if num_streams > 1 and not is_sharded(pipe):
        raise StateError(
            f"{num_streams} streams would read the same: put sharding_filter_rank() behind the URLs of the chain."
        )


class SharedListing(SharedList[Any]):
    """Lists once for all copies; once an epoch if the order depends on the epoch.

    Args:
        source_datapipe: URLs.
    """

    def __init__(self, source_datapipe: IterDataPipe[Any]) -> None:
        self.source_datapipe = source_datapipe
        self._epoch = 0
        self._by_epoch: dict[int, list[Any]] = {}

    def set_epoch(self, epoch: int) -> None:
        """Use the order of this epoch for the next iteration."""
        self._epoch = epoch if any(map(_has_epochs, all_pipes(self.source_datapipe))) else 0

    def urls(self) -> list[Any]:
        """All URLs, in the order of this pass."""
        if self._epoch not in self._by_epoch:
            set_epoch(self.source_datapipe, self._epoch)
            for other in list(self._by_epoch)[:-1]:  # copies that start at the same time are in at most two epochs
                del self._by_epoch[other]
            source = self.source_datapipe
            self._by_epoch[self._epoch] = source.urls() if isinstance(source, SharedList) else list(source)
        return self._by_epoch[self._epoch]

    def set_urls(self, urls: list[Any]) -> None:
        """Use these URLs, which another process has listed, in all epochs."""
        self._by_epoch = {0: urls}

    def fingerprint(self) -> Fingerprint:
        """The fingerprint that a state stores."""
        return fingerprint(self._unshuffled())

    def names(self) -> list[str]:
        """The redacted URLs, in the order of the fingerprint's values."""
        return sorted_names(self._unshuffled())

    def _unshuffled(self) -> list[Any]:
        """The URLs before they are shuffled by epoch: their order determines that of all epochs."""
        unshuffled = self.unshuffled()
        return [url for listing in unshuffled for url in listing.urls()] if unshuffled else self.urls()

    def unshuffled(self) -> list[SharedListing]:
        """The listings inside this one that do not depend on the epoch."""
        return [pipe for pipe in all_pipes(self.source_datapipe) if isinstance(pipe, SharedListing)]


class ChainTemplate:
    """A chain that is copied for each stream of one pass.

    Args:
        pipe: the chain, which is not changed.
        epoch: of the pass.
        num_streams: that this process reads at the same time.
        listed: what another process has listed, or its error, which :meth:`fingerprints` raises; ``None`` lists here.
        options: of the loader, for pipes that take them.
    """

    def __init__(
        self,
        pipe: IterDataPipe[Any],
        epoch: int,
        num_streams: int,
        listed: Listed | Exception | None = None,
        options: BatchOptions | None = None,
    ) -> None:
        self.listings: list[SharedListing] = []
        self.epoch, self._listed = epoch, listed
        self.pipe = self._prepared(pipe, {})
        if options is not None:
            options.apply(self.pipe)
        for found in all_pipes(self.pipe):
            keep_arguments(found)
            if hasattr(type(found), "prepare_copy"):
                found.prepare_copy(num_streams)
        set_epoch(self.pipe, epoch)
        if isinstance(listed, Listed):
            for listing, urls in zip(self._unshuffled(), listed.urls, strict=True):
                listing.set_urls(urls)

    def fingerprints(self) -> list[Fingerprint]:
        """The fingerprint of each listing; lists if nothing was listed before."""
        if isinstance(self._listed, Exception):
            raise self._listed
        if self._listed is not None:
            return self._listed.fingerprints
        return [listing.fingerprint() for listing in self.listings]

    def listed(self) -> Listed:
        """The listing for other processes, so that they need not list."""
        return Listed([listing.urls() for listing in self._unshuffled()], self.fingerprints())

    def _unshuffled(self) -> list[SharedListing]:
        return [unshuffled for listing in self.listings for unshuffled in listing.unshuffled()]

    def _prepared(self, pipe: IterDataPipe[Any], made: dict[int, IterDataPipe[Any]]) -> IterDataPipe[Any]:
        if id(pipe) not in made:
            if all(map(gives_urls, all_pipes(pipe))):
                made[id(pipe)] = listing = SharedListing(_listed_once(pipe))
                self.listings.append(listing)
            else:
                made[id(pipe)] = twin = copy.copy(pipe)
                _replace_sources(twin, lambda source: self._prepared(source, made))
        return made[id(pipe)]

    def stream(self, world: World) -> IterDataPipe[Any]:
        """Copy the chain for one stream."""
        twin = copied(self.pipe)
        for found in all_pipes(twin):
            if hasattr(type(found), "bind_stream"):
                found.bind_stream(world)
        return twin


def _has_epochs(pipe: IterDataPipe[Any]) -> bool:
    """Whether the order of a listing's pipe depends on the epoch."""
    return has_epochs(pipe) and not isinstance(pipe, SharedListing)


def _listed_once(pipe: IterDataPipe[Any]) -> IterDataPipe[Any]:
    """Copy a listing, so that the part of it that does not depend on the epoch is listed once."""
    if not any(map(_has_epochs, all_pipes(pipe))):
        return SharedListing(copied(pipe))
    twin = copy.copy(pipe)
    _replace_sources(twin, _listed_once)
    return twin


def copied(pipe: IterDataPipe[Any], made: dict[int, IterDataPipe[Any]] | None = None) -> IterDataPipe[Any]:
    """Copy a chain. Each use of a listing gets its own copy; the copies share the listed URLs."""
    made = {} if made is None else made
    if isinstance(pipe, SharedListing):
        return copy.copy(pipe)
    if id(pipe) not in made:
        made[id(pipe)] = twin = copy.copy(pipe)
        _replace_sources(twin, lambda source: copied(source, made))
    return made[id(pipe)]


def _replace_sources(twin: IterDataPipe[Any], replaced: Callable[[IterDataPipe[Any]], IterDataPipe[Any]]) -> None:
    for name, key, source in list(sources_of(twin)):
        if key is None:
            setattr(twin, name, replaced(source))
        else:
            setattr(twin, name, {**getattr(twin, name), key: replaced(source)})
