"""``stateful_loader``: a loader of batches that can be stopped anywhere and resumed in any world."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from functools import partial
from multiprocessing.context import BaseContext
from typing import Any, Literal

import torch

from ..core.arguments import check
from ..core.arguments.amounts import seconds, whole, whole_or_none
from ..core.arguments.calls import explained
from ..core.frameworks.collating import collate_samples
from ..core.iter_datapipe import IterDataPipe
from ..core.processes.job_signals import start_worker
from ..core.processes.worker_start import SentFunction
from .copies import dataset_of
from .loader import StatefulLoader
from .loader_options import check_functions
from .resumable import Resumable


def _start_method(requested: str | BaseContext) -> str | BaseContext:
    is_missing = requested == "forkserver" and requested not in multiprocessing.get_all_start_methods()
    return "spawn" if is_missing else requested


@explained
def stateful_loader(
    pipe: IterDataPipe[Any] | Resumable,
    *,
    batch_size: int | None = None,
    num_workers: int = 0,
    num_streams: int | None = None,
    drop_last: bool = False,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    pin_memory: bool | None = None,
    prefetch_factor: int | None = None,
    multiprocessing_context: Literal["forkserver", "spawn", "fork"] | BaseContext = "forkserver",
    worker_init_fn: Callable[[int], None] | None = None,
    timeout_s: float = 0,
    state_of_all_ranks: bool = False,
    list_once: bool = False,
    list_in_rank_0: bool = False,
) -> StatefulLoader:
    """Build a loader of batches that can be stopped anywhere and resumed with other numbers of workers and ranks.

    It is torchdata's ``StatefulDataLoader`` over ``Resumable(pipe)``, with persistent workers. With the same numbers of
    ranks and workers, the batches after a resume are those of a run without a stop. With other numbers, each stream
    continues (see :class:`Resumable`), and the rest of the epoch is handed out exactly once.

    Workers ignore Ctrl-C, SIGTERM, SIGUSR1 and SIGUSR2, which reach all processes of a job, so that the training
    process can save the state, and end when that process ends. Workers that do not end when they are asked to are
    killed after 5 s.

    The state is always that after the last batch that was handed out, also where an error, Ctrl-C or the exception of a
    signal handler ended the wait for the next one. That pass cannot go on (:class:`StateError`): begin another one,
    after ``load_state_dict``.

    torch's random state is not changed: the workers' seeds depend on ``torch.initial_seed()`` and the epoch.

    Each rank lists once an epoch, in the process that calls this, and passes the listing to its workers.

    With a process group, ranks compare shards, chain, epoch, number of streams and positions before the first batch: in
    each pass with ``equalize_ranks``, otherwise in the first one and after a state was loaded. ``load_state_dict``
    exchanges the ranks' states. ``state_dict`` waits for the other ranks only with ``state_of_all_ranks``, or if a
    framework calls it that stores one state for all ranks.

    Args:
        pipe: the chain, with ``sharding_filter_rank`` after its URLs.
        batch_size: samples in a batch; ``None`` hands out the chain's items one by one.
        num_workers: processes in each rank; 0 reads in this one.
        num_streams: in all ranks together, as for :class:`Resumable`; ``None`` takes one for each worker of each rank.
        drop_last: whether a worker's last batch is dropped if it is not full.
        collate_fn: makes a batch from a list of samples; ``None`` is torch's ``default_collate``.
        pin_memory: ``None`` pins if there is a GPU.
        prefetch_factor: batches that each worker prefetches; ``None`` is torch's 2.
        multiprocessing_context: how workers start; Windows has no ``"forkserver"`` and takes ``"spawn"`` instead. Both
            send functions of a notebook, lambdas and closures by value.
        worker_init_fn: called with the worker's number when it starts.
        timeout_s: seconds that a batch may take; 0 waits without limit.
        state_of_all_ranks: ``state_dict`` is a collective call: each rank makes it, and gets the state of all ranks as
            one ``str``, for checkpoints that store rank 0's objects only (``torch.distributed.checkpoint``, Lightning,
            Accelerate).
        list_once: all epochs read the listing of the first one. Otherwise each epoch lists again, and reads objects
            that were added or replaced since.
        list_in_rank_0: with a process group, rank 0 lists, and sends the listing to the other ranks. All ranks then
            have to start each epoch together. An error of rank 0 is raised in all ranks.

    Returns:
        StatefulLoader: an iterable of batches, with ``state_dict``, ``load_state_dict`` and ``set_epoch``.

    Raises:
        StateError: if the chain cannot be resumed; names what to use instead.
        WorkerStartError: when a pass starts, without `if __name__ == "__main__":`; or if workers cannot be sent the
            chain, or would read ``memory://``.

    Example:
        >>> from torchdata_remote import ShardWriter
        >>> with ShardWriter("memory://load/{shard}.tar", overwrite=True) as writer:
        ...     _ = [writer.write({"__key__": str(i), "cls": i}) for i in range(5)]
        >>> pipe = IterableWrapper(["memory://load/0.tar"]).sharding_filter_rank().shard_tar_reader().to_tuple("__key__")
        >>> loader = stateful_loader(pipe, batch_size=2)
        >>> batches = iter(loader)
        >>> next(batches)
        [('0', '1')]
        >>> loader.load_state_dict(loader.state_dict())
        >>> list(loader)
        [[('2', '3')], [('4',)]]
    """
    batch_size, num_workers = whole_or_none("batch_size", batch_size), whole("num_workers", num_workers, at_least=0)
    prefetch_factor = whole_or_none("prefetch_factor", prefetch_factor)
    timeout_s = seconds("timeout_s", timeout_s, positive=False)
    drop_last, pin_memory = check.flag("drop_last", drop_last), check.flag_or_none("pin_memory", pin_memory)
    check_functions(
        context=multiprocessing_context, functions={"collate_fn": collate_fn, "worker_init_fn": worker_init_fn}
    )
    workers: dict[str, Any] = {}
    if num_workers > 0:
        workers = {
            "multiprocessing_context": _start_method(multiprocessing_context),
            "persistent_workers": True,
            "prefetch_factor": prefetch_factor,
            "timeout": timeout_s,
            "worker_init_fn": SentFunction(
                partial(start_worker, worker_init_fn), "stateful_loader(worker_init_fn=...)"
            ),
        }
    return StatefulLoader(
        dataset_of(pipe, num_streams),
        batch_size=batch_size,
        num_workers=num_workers,
        drop_last=drop_last,
        collate_fn=collate_samples if collate_fn is None and batch_size is not None else collate_fn,
        pin_memory=torch.cuda.is_available() if pin_memory is None else pin_memory,
        state_of_all_ranks=state_of_all_ranks,
        list_once=list_once,
        list_in_rank_0=list_in_rank_0,
        **workers,
    )
