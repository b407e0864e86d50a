"""Chains of pipes: what can be resumed, copies of them for streams, and what they list."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from ..core.iter_datapipe import Filter, IterableWrapper, IterDataPipe, Mapper
from ..core.world import World
from ..errors import StateError
from ..pipes.base.chain import PASS_THROUGH, all_pipes, name_of, require_state, sources_of
from ..pipes.base.datapipe import SharedList
from .listing.packed_listing import Listed
from .state.fingerprints import Fingerprint, digest_of_sizes, fingerprint, sorted_names

_LISTING = (IterableWrapper, Mapper, Filter)  # of torch
_INSTEAD = {
    "Shuffler": "shuffle_samples(), or shuffle_shards() for URLs",
    "ShardingFilter": "sharding_filter_rank()",
    "UnBatcher": "map() on whole batches, or batch() only once",
    "FlatMapper": "map(), with one item for each",
    "Concater": "list_remote() with several sources, or mix()",
    "SampleMultiplexer": "mix()",
    "Multiplexer": "mix()",
    "Zipper": "one chain whose samples have all members",
    "Prefetcher": "async_prefetch()",
    "PinMemory": "stateful_loader(), which pins memory by itself",
    "WriteShards": "a plain DataLoader: writing is not resumed",
}


def check_resumable(pipe: IterDataPipe[Any]) -> None:
    """Whether each pipe of a chain can go on where it was.

    Raises:
        StateError: for one that cannot; names it and what to use instead.
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
    """Whether a pipe may belong to a listing: one of torch's, or one with ``gives_urls``."""
    return isinstance(pipe, _LISTING) or bool(getattr(type(pipe), "gives_urls", False))


def is_sharded(pipe: IterDataPipe[Any]) -> bool:
    """Whether all of a chain's listings are split."""
    if hasattr(type(pipe), "current_world"):
        return True
    sources = [source for _, _, source in sources_of(pipe)]
    return bool(sources) and all(map(is_sharded, sources))


class SharedListing(SharedList[Any]):
    """A listing that is made once for all copies; once an epoch where its order depends on that.

    Args:
        source_datapipe: URLs.
    """

    def __init__(self, source_datapipe: IterDataPipe[Any]) -> None:
        self.source_datapipe = source_datapipe
        self._epoch = 0
        self._by_epoch: dict[int, list[Any]] = {}

    def set_epoch(self, epoch: int) -> None:
        """Let whoever begins to iterate next have that epoch's order."""
        self._epoch = epoch if any(map(_has_epochs, all_pipes(self.source_datapipe))) else 0

    def urls(self) -> list[Any]:
        """All of them, in this pass' order."""
        if self._epoch not in self._by_epoch:
            for pipe in all_pipes(self.source_datapipe):
                if _has_epochs(pipe):
                    pipe.set_epoch(self._epoch)
            for other in list(self._by_epoch)[:-1]:  # copies that begin at the same time are in two at the most
                del self._by_epoch[other]
            source = self.source_datapipe
            self._by_epoch[self._epoch] = source.urls() if isinstance(source, SharedList) else list(source)
        return self._by_epoch[self._epoch]

    def hold(self, urls: list[Any]) -> None:
        """Have these URLs in all epochs, as another process listed them."""
        self._by_epoch = {0: urls}

    def fingerprint(self) -> Fingerprint:
        """What a state is to remember of it."""
        return fingerprint(self._below())

    def digest(self) -> Fingerprint:
        """What states of earlier releases remember of it."""
        return digest_of_sizes(self.urls())

    def names(self) -> list[str]:
        """Its URLs as errors may show them, in the order of the fingerprint's places."""
        return sorted_names(self._below())

    def _below(self) -> list[Any]:
        """The URLs before they are shuffled by epoch: their order decides about all epochs."""
        below = self.below()
        return [url for listing in below for url in listing.urls()] if below else self.urls()

    def below(self) -> list[SharedListing]:
        """Those in it that do not depend on the epoch."""
        return [pipe for pipe in all_pipes(self.source_datapipe) if isinstance(pipe, SharedListing)]


class ChainTemplate:
    """A chain, ready to be copied for each stream of one pass.

    Args:
        pipe: the chain, which is left as it is.
        epoch: of the pass.
        num_streams: that this process reads at the same time.
        listed: what another process has listed, or the error instead, which is raised by :meth:`fingerprints`;
            ``None`` lists here.
    """

    def __init__(
        self, pipe: IterDataPipe[Any], epoch: int, num_streams: int, listed: Listed | Exception | None = None
    ) -> None:
        self.listings: list[SharedListing] = []
        self._listed = listed
        self._pipe = self._prepared(pipe, {})
        for found in all_pipes(self._pipe):
            if hasattr(type(found), "prepare_copy"):
                found.prepare_copy(num_streams)
            if hasattr(found, "set_epoch"):
                found.set_epoch(epoch)
        if isinstance(listed, Listed):
            for listing, urls in zip(self._below(), listed.urls, strict=True):
                listing.hold(urls)

    def fingerprints(self) -> list[Fingerprint]:
        """What a state is to remember of each listing; lists where that was not done."""
        if isinstance(self._listed, Exception):
            raise self._listed
        if self._listed is not None:
            return self._listed.fingerprints
        return [listing.fingerprint() for listing in self.listings]

    def listed(self) -> Listed:
        """What other processes need to know, so that they need not list."""
        return Listed([listing.urls() for listing in self._below()], self.fingerprints())

    def _below(self) -> list[SharedListing]:
        return [below for listing in self.listings for below in listing.below()]

    def _prepared(self, pipe: IterDataPipe[Any], made: dict[int, IterDataPipe[Any]]) -> IterDataPipe[Any]:
        if id(pipe) not in made:
            if all(map(gives_urls, all_pipes(pipe))):
                made[id(pipe)] = listing = SharedListing(_with_listing_below(pipe))
                self.listings.append(listing)
            else:
                made[id(pipe)] = twin = copy.copy(pipe)
                _replace_sources(twin, lambda source: self._prepared(source, made))
        return made[id(pipe)]

    def stream(self, world: World) -> IterDataPipe[Any]:
        """The chain for one stream."""
        twin = copied(self._pipe)
        for found in all_pipes(twin):
            if hasattr(type(found), "bind_stream"):
                found.bind_stream(world)
        return twin


def _has_epochs(pipe: IterDataPipe[Any]) -> bool:
    """Whether the order of a listing's pipe depends on the epoch."""
    return hasattr(type(pipe), "set_epoch") and not isinstance(pipe, SharedListing)


def _with_listing_below(pipe: IterDataPipe[Any]) -> IterDataPipe[Any]:
    """A copy of a listing, of which the part that does not depend on the epoch is made once."""
    if not any(map(_has_epochs, all_pipes(pipe))):
        return SharedListing(copied(pipe))
    twin = copy.copy(pipe)
    _replace_sources(twin, _with_listing_below)
    return twin


def copied(pipe: IterDataPipe[Any], made: dict[int, IterDataPipe[Any]] | None = None) -> IterDataPipe[Any]:
    """A chain of copies. Each use of a listing has a copy of its own, and these share what was listed."""
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
