"""``repeat_epochs``: several passes over a chain in one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from ..core.arguments.amounts import whole_or_none
from ..core.iter_datapipe import IterDataPipe, functional_datapipe
from ..errors import SampleError
from ..fetch.listing.source_argument import pipe_of
from .base.chain import Snapshot, forget_start, load_state, snapshots_of, state_of, warm_up
from .base.datapipe import StatefulPipe
from .base.epochs import EpochPipe, of_pass, set_epoch_of_pass

T = TypeVar("T")


@functional_datapipe("repeat_epochs")
class RepeatEpochs(EpochPipe[T], StatefulPipe[T]):
    """Read a chain several times in one pass, each time in another order (functional name: ``repeat_epochs``).

    Each pass over the source is an epoch of its own for the pipes above: ``shuffle_shards``, ``shuffle_samples`` and
    ``mix`` have another order. Pipes after it see one long pass: a ``shuffle_samples`` mixes the end of a pass with the
    start of the next one, ``pack`` and ``batch`` leave no incomplete row or batch between them.

    Without a number it never ends. Then bound it by ``take``, which gives all ranks the same number of items, or by the
    steps of the training. With a number, ranks are as many items apart as in that many epochs of the source.

    It is not called ``repeat``, because torchdata has a pipe of that name, which repeats each item.

    Args:
        source_datapipe: any items, in samples or URLs.
        times: number of passes; ``None`` for no end.

    Yields:
        The same items.

    Raises:
        SampleError: if a pass over the source has no items, and there is no end.

    Example:
        >>> list(RepeatEpochs(IterableWrapper("ab"), 3))
        ['a', 'b', 'a', 'b', 'a', 'b']
    """

    needs_source_state = True
    changes_count = True
    state_fields = ("passes", "at")
    state_counts = ("passes",)
    repeats_sources = True

    def __init__(self, source_datapipe: IterDataPipe[T], times: int | None = None) -> None:
        super().__init__()
        self.source_datapipe = pipe_of(source_datapipe, of="repeat_epochs", holds="items")
        self.times = whole_or_none("times", times)
        self.is_endless = self.times is None
        self._num_passes, self._start = 0, None  # of the source; state from which its pass has started
        self._has_started = False  # whether this pass over the source has yielded
        self._is_warm, self._epoch = False, 0
        self._more = 0  # by which the epoch of the source is larger

    def warm_up(self) -> Iterator[None]:
        state, self._epoch = self._take_loaded() or {"passes": 0, "at": None}, self._epochs.next_epoch()
        self._open(state["passes"], state["at"])
        self._is_warm = True
        return warm_up(self.source_datapipe) if self._is_due() else iter(())

    def _open(self, num_passes: int, start: Any) -> None:
        self._num_passes, self._start, self._has_started = num_passes, start, False
        self._more = set_epoch_of_pass(self.source_datapipe, self._epoch, num_passes)
        forget_start(self.source_datapipe)
        if start is not None:
            load_state(self.source_datapipe, start)

    def _is_due(self) -> bool:
        return self.times is None or self._num_passes < self.times

    def forget_start(self) -> None:
        super().forget_start()
        self._is_warm = False

    def __iter__(self) -> Iterator[T]:
        if not self._is_warm:
            for _ in self.warm_up():
                pass
        self._is_warm = False
        while self._is_due():
            more = self._more if self.marks_passes else 0
            for item in self.source_datapipe:
                self._has_started = True
                yield of_pass(item, more) if more else item
            if self.times is None and self._start is None and not self._has_started:
                raise SampleError("repeat_epochs: a pass over the source has no items, and so would all the next ones.")
            self._open(self._num_passes + 1, None)

    def _state(self) -> Any:
        return {"passes": self._num_passes, "at": state_of(self.source_datapipe) if self._has_started else self._start}

    def snapshots(self) -> Callable[[], Snapshot]:
        of_source = snapshots_of(self.source_datapipe)

        def take() -> Snapshot:
            num_passes, start = self._num_passes, self._start
            at = of_source() if self._has_started else lambda: start
            return lambda: {"passes": num_passes, "at": at()}

        return take

    def bind_stream(self, world: Any) -> None:
        super().bind_stream(world)
        self._is_warm = self._has_started = False

    def __len__(self) -> int:
        if self.times is None:
            raise TypeError("repeat_epochs() has no end: give it a number of times, or chain take(n)")
        return self.times * len(self.source_datapipe)
