"""``equalize_ranks``: give each rank the same number of samples, without communication."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeVar

from ..core.arguments import check
from ..core.frameworks.collating import check_item
from ..core.frameworks.loader_length import length_for_caller
from ..core.iter_datapipe import Batcher, Filter, IterDataPipe, functional_datapipe
from ..core.partition import EqualizeMode
from ..errors import SampleError
from ..fetch.listing.source_argument import pipe_of
from ..formats.sample import describe_item
from .base.chain import all_pipes
from .base.counted import CountedPipe
from .base.slots import is_endless
from .base.threaded import ThreadedMap

T = TypeVar("T")


@functional_datapipe("equalize_ranks")
class EqualizeRanks(CountedPipe[T]):
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
        super().__init__(pipe_of(source_datapipe, of="equalize_ranks", holds="samples"))
        self.mode = check.choice("mode", mode, EqualizeMode)
        sharding = self._sharding()
        between = [pipe for pipe in all_pipes(source_datapipe) if pipe not in all_pipes(sharding)]
        for pipe in between:
            if isinstance(pipe, (Batcher, Filter)) or getattr(type(pipe), "changes_count", False):
                raise ValueError(
                    f"equalize_ranks counts samples, and {type(pipe).__name__} changes their number: put it after "
                    "equalize_ranks."
                )
            if isinstance(pipe, ThreadedMap):
                pipe.policy.require_equal_counts()
            if getattr(pipe, "drops_samples", False):
                raise ValueError(
                    f"equalize_ranks counts the rows of row groups, and {type(pipe).__name__}(filter=) drops some. "
                    "Write what the filter accepts into shards (write_shards), or stop after a number of batches."
                )
        if is_endless(sharding):
            raise ValueError(
                "equalize_ranks counts the samples of a pass, and repeat_epochs() above it has no end: put it after."
            )
        sharding.share_equally(self.mode)

    def _sharding(self) -> Any:
        found = [pipe for pipe in all_pipes(self.source_datapipe) if hasattr(pipe, "share_equally")]
        if len(found) != 1:
            raise ValueError(
                f"equalize_ranks needs one sharding_filter_rank() above it, and there are {len(found)}. With mix(), "
                "equalize each of its sources, or pass stop= a number of samples."
            )
        return found[0]

    def __iter__(self) -> Iterator[T]:
        self._begin()
        is_first = True
        for sample in self.source_datapipe:
            self._num_passed += 1
            if is_first:
                is_first = False
                check_item(self, sample, where=describe_item(sample))
            yield sample
        expected = self._sharding().num_samples
        if self._num_passed != expected:
            raise SampleError(
                f"{self._num_passed:,} samples were read, and the manifest has {expected:,} for this slot. A shard "
                "was skipped, or a pipe above equalize_ranks drops samples: other ranks would wait for them."
            )

    def order_options(self) -> Mapping[str, Any]:
        return {"mode": self.mode.value}

    def __len__(self) -> int:
        sharding = self._sharding()
        if sharding.knows_worker():
            length: int = sharding.share_length()
            return length
        return length_for_caller(lambda num_workers: [sharding.share_length(num_workers)] * num_workers)
