"""Refuse a framework that splits samples over its processes which a chain has split already, or skips them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType

from torch.utils.data import get_worker_info

from ...errors import SplitTwiceError, StateError

# Classes that split an IterableDataset: rank 0 reads and sends each rank its share, or each rank keeps its share
_SPLITTERS = ("DataLoaderDispatcher", "IterableDatasetShard")
_FOR_ACCELERATE = (
    "Under Accelerate prepare a loader that it leaves as it is: "
    "accelerator.prepare(torchdata_remote.stateful_loader(pipe, batch_size=..., num_workers=...)). "
    "accelerator.load_state() continues after its last batch."
)
_FOR_TRAINER = (
    "Under the transformers Trainer put the mixin before it: class MyTrainer(RemoteTrainerMixin, Trainer), from "
    "torchdata_remote.loaders.trainers, and pass train_dataset=pipe."
)
_ADVICE = f"{_FOR_ACCELERATE} {_FOR_TRAINER}"


def callers() -> Iterator[object]:
    """Yield the ``self`` of each method on this thread's stack, innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if "self" in frame.f_code.co_varnames:
            yield frame.f_locals.get("self")
        frame = frame.f_back


def refuse_second_split(name: str) -> None:
    """Refuse to read if Accelerate, also within the transformers ``Trainer``, splits the samples again, or skips some.

    Searches the stack and, in a worker, the dataset of its loader; not in a process without Accelerate.

    Args:
        name: of the pipe or dataset that is about to read.

    Raises:
        SplitTwiceError: if samples would be split again.
        StateError: if ``skip_first_batches`` would drop batches, which starts a chain in the order of its first epoch.
    """
    if "accelerate" not in sys.modules:
        return
    for reader in (getattr(get_worker_info(), "dataset", None), *callers()):
        kind = type(reader)  # reader.__class__ is that of the loader inside
        package = kind.__module__.partition(".")[0]
        if kind.__name__ in _SPLITTERS and _num_processes(reader) > 1:
            raise SplitTwiceError(
                f"{name}: {package}'s {kind.__name__} would split over the processes what this chain has split "
                f"already, so that samples would be lost. {_ADVICE}"
            )
        if package == "accelerate" and getattr(reader, "skip_batches", False):
            raise StateError(
                f"{name}: Accelerate's skip_first_batches would read batches again and drop them, of the first epoch's "
                f"order or also those after a loaded state: leave it out. {_ADVICE}"
            )


def _num_processes(reader: object) -> int:
    # IterableDatasetShard has the number itself, DataLoaderDispatcher in its PartialState
    return int(getattr(reader, "num_processes", None) or reader.state.num_processes)  # type: ignore[attr-defined]
