"""What is known of training frameworks: which split again or read ahead, and what ``len`` of a loader is for them."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

from torch.utils.data import DataLoader, get_worker_info

from ..errors import SplitTwiceError, StateError

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
LIGHTNING_LINE = "LightningResume() of torchdata_remote.loaders.trainers to Trainer(callbacks=[...])"
_LINES = {
    "ray.train": "loader.trained(number) after each step",
    "lightning.pytorch": LIGHTNING_LINE,
    "pytorch_lightning": LIGHTNING_LINE,
}


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


def num_batches(lengths: Sequence[int], batch_size: int | None, *, drop_last: bool) -> int:
    """Count the batches of a loader whose workers have these numbers of samples; samples if it does not batch.

    Example:
        >>> num_batches([30, 30], 4, drop_last=False)
        16
    """
    if batch_size is None:
        return sum(lengths)
    return sum((length + (0 if drop_last else batch_size - 1)) // batch_size for length in lengths)


def length_for_caller(lengths_of: Callable[[int], Sequence[int]]) -> int:
    """Return a stream's number of samples; to a calling ``DataLoader``, its number of batches times the batch size.

    ``DataLoader`` divides the samples of all workers by the batch size, although each worker has a last batch of its
    own. Frameworks that stop after ``len(loader)`` batches would drop the other batches.

    Args:
        lengths_of: number of workers -> number of samples of each of them.
    """
    loader = next((found for found in callers() if isinstance(found, DataLoader)), None)
    if loader is None or get_worker_info() is not None:
        return sum(lengths_of(1))
    lengths = lengths_of(max(1, loader.num_workers))
    return num_batches(lengths, loader.batch_size, drop_last=loader.drop_last) * (loader.batch_size or 1)


def missing_line() -> str | None:
    """The line that a script needs if a framework that reads ahead has called the caller of this."""
    module = str(sys._getframe(2).f_globals.get("__name__"))
    return next((line for package, line in _LINES.items() if module.startswith(package)), None)


def warn_of_missing_line(line: str) -> None:
    """Warn of a state that may be ahead of the training."""
    warnings.warn(
        f"The framework that reads this loader may be a batch ahead of the training, which a resume would leave out: "
        f"add {line}.",
        RuntimeWarning,
        stacklevel=3,
    )
