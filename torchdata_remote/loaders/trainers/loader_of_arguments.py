"""Build a loader with the options of transformers' ``TrainingArguments``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...errors import StateError
from ..loader import StatefulLoader
from ..resumable import Resumable
from ..stateful_loader import stateful_loader
from ..thread.thread_loader import thread_loader


def loader_of(
    dataset: Resumable, args: Any, *, batch_size: int, collate_fn: Callable[[list[Any]], Any], num_threads: int | None
) -> StatefulLoader:
    """Build the loader of a trainer.

    Args:
        dataset: the chain.
        args: of ``Trainer``.
        batch_size: of one process.
        collate_fn: of ``Trainer``.
        num_threads: of a loader without workers; ``None`` for one with them.

    Raises:
        StateError: for threads and workers.
    """
    options: dict[str, Any] = {
        "batch_size": batch_size,
        "drop_last": args.dataloader_drop_last,
        "collate_fn": collate_fn,
        "pin_memory": args.dataloader_pin_memory and torch.cuda.is_available(),
        "state_of_all_ranks": True,
    }
    if num_threads is None:
        return stateful_loader(
            dataset,
            num_workers=args.dataloader_num_workers,
            prefetch_factor=args.dataloader_prefetch_factor,
            multiprocessing_context=getattr(args, "dataloader_multiprocessing_context", None) or "forkserver",
            **options,
        )
    if args.dataloader_num_workers:
        raise StateError(
            f"transformers Trainer: num_threads={num_threads} and dataloader_num_workers="
            f"{args.dataloader_num_workers}. Set one of them: threads make the batches in place of workers."
        )
    return thread_loader(
        dataset, num_threads=num_threads, prefetch_batches=args.dataloader_prefetch_factor or 2, **options
    )
