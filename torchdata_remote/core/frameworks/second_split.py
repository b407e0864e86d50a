"""Detect a framework that splits samples over its processes which a chain has split already."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator

from torch.utils.data import get_worker_info

from ...errors import SplitTwiceError
from ..iter_datapipe import IterDataPipe
from ..world import detect_rank
from .call_stack import callers

# Modules whose classes rebuild a DataLoader over an IterableDataset: rank 0 reads and sends each rank its share
# (DataLoaderDispatcher), or each rank reads everything and keeps its share (IterableDatasetShard).
_MODULES = ("accelerate.data_loader", "transformers.trainer_pt_utils")
# Classes of these modules that do not split. All others, also unknown ones, are assumed to split.
_PASS_ON = frozenset(
    {
        "BatchSamplerShard",
        "DataLoaderShard",
        "MpDeviceLoaderWrapper",
        "NoneType",
        "SeedableRandomSampler",
        "SkipBatchSampler",
        "SkipDataLoader",
    }
)


def second_splitter() -> str | None:
    """Find a framework's class that splits this chain's samples over several processes; ``None`` if there is none.

    Searches the stack and, in a worker, the dataset of its loader.
    """
    if not any(module in sys.modules for module in _MODULES):
        return None
    return next((_name(reader) for reader in _readers() if _splits(reader)), None)


def warn_of_skipping() -> None:
    """Warn if a chain is read from an epoch's beginning only to skip the batches that were trained on before.

    Accelerate's ``skip_first_batches`` and a resumed ``Trainer`` do this, and do not set the epoch of the chain.
    """
    for caller in callers(_MODULES[0]):
        if getattr(caller, "skip_batches", 0) and isinstance(getattr(caller, "dataset", None), IterDataPipe):
            in_trainer = next(callers("transformers.trainer"), None) is not None
            warnings.warn(
                "Accelerate's skip_first_batches reads a chain from its beginning, in the order of its first epoch. In "
                "a later epoch samples are repeated, and others left out. "
                f"{_FOR_TRAINER if in_trainer else _FOR_ACCELERATE}",
                RuntimeWarning,
                stacklevel=2,
            )
            return


def _readers() -> Iterator[object]:
    info = get_worker_info()
    if info is not None and type(info.dataset).__module__ in _MODULES:
        yield info.dataset
    yield from callers(*_MODULES)


def _splits(reader: object) -> bool:
    if any(kind.__name__ in _PASS_ON for kind in type(reader).__mro__):
        return False
    # IterableDatasetShard has the number itself, DataLoaderDispatcher in its PartialState.
    for holder in (reader, getattr(reader, "state", None)):
        num_processes = getattr(holder, "num_processes", None)
        if isinstance(num_processes, int):
            return num_processes > 1
    return detect_rank()[1] > 1


def _name(reader: object) -> str:
    kind = type(reader)  # reader.__class__ is that of the loader inside
    return f"{kind.__module__.partition('.')[0]}'s {kind.__name__}"


def refuse_second_split(name: str, splitter: str | None) -> None:
    """Refuse to read if a framework would split the samples again.

    Args:
        name: of the pipe or dataset that is about to read.
        splitter: the result of :func:`second_splitter`.

    Raises:
        SplitTwiceError: if there is one.
    """
    if splitter is None:
        return
    in_trainer = next(callers("transformers.trainer"), None) is not None
    remedy = _FOR_TRAINER if in_trainer else f"{_FOR_ACCELERATE} {_FOR_TRAINER}"
    raise SplitTwiceError(
        f"{name}: {splitter} would split over the processes what this chain has split already, so that samples would "
        f"be lost. {remedy}"
    )


_FOR_ACCELERATE = (
    "Under Accelerate prepare a loader that it leaves as it is: "
    "accelerator.prepare(torchdata_remote.stateful_loader(pipe, batch_size=..., num_workers=...))."
)
_FOR_TRAINER = (
    "Under the transformers Trainer put the mixin before it: class MyTrainer(RemoteTrainerMixin, Trainer), from "
    "torchdata_remote.loaders.trainers."
)
