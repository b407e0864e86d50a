"""``stateful_loader`` and ``thread_loader``: two fronts of one loader, over processes and over a thread."""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Callable
from functools import partial
from multiprocessing.context import BaseContext
from typing import Any, Literal

import torch

from ..core import arguments as check
from ..core.arguments import check_start_method, explained, seconds, whole, whole_or_none
from ..core.collating import collate_samples
from ..core.iter_datapipe import IterDataPipe
from ..core.workers import SentFunction, start_worker
from .loader import StatefulLoader, ThreadLoader
from .loader_options import check_function
from .resumable import Resumable, dataset_of


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
    state_of_all_ranks: bool | None = None,
    list_once: bool = False,
    list_in_rank_0: bool = False,
    equalize: bool = True,
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
    exchanges the ranks' states. ``state_dict`` waits for the other ranks only with ``state_of_all_ranks``.

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
        state_of_all_ranks: ``True``: ``state_dict`` is a collective call: each rank makes it, and gets the state of all
            ranks as one ``str``, for checkpoints that store rank 0's objects only (``torch.distributed.checkpoint``,
            Fabric, Ray Train). ``False``: it is the state of this rank. ``None``: the same, and with a process group
            it warns once. Accelerate and the callback for Lightning set ``True``.
        list_once: all epochs read the listing of the first one. Otherwise each epoch lists again, and reads objects
            that were added or replaced since.
        list_in_rank_0: with a process group, rank 0 lists, and sends the listing to the other ranks. All ranks then
            have to start each epoch together. An error of rank 0 is raised in all ranks.
        equalize: whether all ranks end an epoch after the same number of batches, where samples are shuffled and a
            manifest with indexes counts them. Their shares differ by one sample; what is left out, less than a batch in
            a worker and other samples in each epoch, is said once. Elsewhere rank 0 warns.

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
    num_workers = whole("num_workers", num_workers, at_least=0)
    prefetch_factor = whole_or_none("prefetch_factor", prefetch_factor)
    timeout_s = seconds("timeout_s", timeout_s, positive=False)
    batches = _batch_options(batch_size, collate_fn, drop_last=drop_last, pin_memory=pin_memory)
    check_function("worker_init_fn", worker_init_fn)
    check_start_method(multiprocessing_context)
    workers: dict[str, Any] = {}
    if num_workers > 0:
        workers = {
            "multiprocessing_context": _start_method(multiprocessing_context),
            "persistent_workers": True,
            "prefetch_factor": prefetch_factor,
            "timeout": timeout_s,
            "worker_init_fn": SentFunction(partial(start_worker, worker_init_fn)),
        }
    return StatefulLoader(
        dataset_of(pipe, num_streams),
        num_workers=num_workers,
        state_of_all_ranks=state_of_all_ranks,
        list_once=list_once,
        list_in_rank_0=list_in_rank_0,
        equalize=equalize,
        **batches,
        **workers,
    )


def _batch_options(
    batch_size: int | None, collate_fn: Callable[[list[Any]], Any] | None, *, drop_last: bool, pin_memory: bool | None
) -> dict[str, Any]:
    """Check the options of both fronts that concern batches, and return those of the loader."""
    batch_size = whole_or_none("batch_size", batch_size)
    drop_last, pin_memory = check.flag("drop_last", drop_last), check.flag_or_none("pin_memory", pin_memory)
    check_function("collate_fn", collate_fn)
    return {
        "batch_size": batch_size,
        "drop_last": drop_last,
        "collate_fn": collate_samples if collate_fn is None and batch_size is not None else collate_fn,
        "pin_memory": torch.cuda.is_available() if pin_memory is None else pin_memory,
    }


@explained
def thread_loader(
    pipe: IterDataPipe[Any] | Resumable,
    *,
    batch_size: int | None = None,
    num_threads: int | None = None,
    prefetch_batches: int = 2,
    num_streams: int | None = None,
    drop_last: bool = False,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    device: torch.device | str | int | None = None,
    pin_memory: bool | None = None,
    state_of_all_ranks: bool | None = None,
    list_once: bool = False,
    list_in_rank_0: bool = False,
    equalize: bool = True,
) -> ThreadLoader:
    """Build a loader without processes: a thread reads the chain and makes batches, other threads decode.

    Nothing has to be started but threads, so that the first requests are sent at once, and a batch is handed out where
    it was made, without a way through shared memory. Choose it for chains that spend their time in libraries which
    release Python's lock: fetching, parsing, ``decode_image``, ``decode_sample``, and with a Python without that lock
    ("free-threaded"), for all chains. Choose :func:`stateful_loader` with workers for functions that compute in Python.

    States are those of :func:`stateful_loader`: each loads what the other has saved, in any world. The state is what
    was handed out; batches that were made ahead are made again after a resume. What else is said there about epochs,
    listings, ranks and process groups holds here as well.

    The functions of the chain, and ``collate_fn``, are called in another thread than the loop's. An error is raised in
    its place, after the batches before it. A ``break`` ends the thread after the sample that it is reading.

    Args:
        pipe: the chain, with ``sharding_filter_rank`` after its URLs.
        batch_size: samples in a batch; ``None`` hands out the chain's items one by one.
        num_threads: for pipes of the chain that were given no ``num_threads``; ``None`` takes one for each processor of
            this rank, 0 calls their functions in the thread that reads.
        prefetch_batches: batches that are made ahead, at most; each is held in memory.
        num_streams: in all ranks together, as for :class:`Resumable`; ``None`` takes one for each rank.
        drop_last: whether the last batch is dropped if it is not full.
        collate_fn: makes a batch from a list of samples; ``None`` is torch's ``default_collate``.
        device: to which batches are copied, on a stream of its own; ``None`` leaves them in memory.
        pin_memory: ``None`` pins if there is a GPU.
        state_of_all_ranks: as for :func:`stateful_loader`.
        list_once: as for :func:`stateful_loader`.
        list_in_rank_0: as for :func:`stateful_loader`.
        equalize: as for :func:`stateful_loader`.

    Returns:
        ThreadLoader: an iterable of batches, with ``state_dict``, ``load_state_dict`` and ``set_epoch``.

    Raises:
        StateError: if the chain cannot be resumed; names what to use instead.

    Example:
        >>> from torchdata_remote import ShardWriter
        >>> with ShardWriter("memory://threads/{shard}.tar", overwrite=True) as writer:
        ...     _ = [writer.write({"__key__": str(i), "cls": i}) for i in range(5)]
        >>> pipe = IterableWrapper(["memory://threads/0.tar"]).shard_tar_reader().to_tuple("__key__")
        >>> loader = thread_loader(pipe, batch_size=2)
        >>> batches = iter(loader)
        >>> next(batches)
        [('0', '1')]
        >>> loader.load_state_dict(loader.state_dict())
        >>> list(loader)
        [[('2', '3')], [('4',)]]
    """
    batches = _batch_options(batch_size, collate_fn, drop_last=drop_last, pin_memory=pin_memory)
    if pin_memory and not torch.cuda.is_available():
        warnings.warn(
            "thread_loader: pin_memory=True has no effect, because torch finds no GPU that it could copy to.",
            RuntimeWarning,
            stacklevel=3,
        )
    return ThreadLoader(
        dataset_of(pipe, num_streams),
        num_threads=num_threads,
        prefetch_batches=prefetch_batches,
        device=device,
        state_of_all_ranks=state_of_all_ranks,
        list_once=list_once,
        list_in_rank_0=list_in_rank_0,
        equalize=equalize,
        **batches,
    )
