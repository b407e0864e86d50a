"""``thread_loader``: a loader without processes, whose batches a background thread makes ahead."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ...core.arguments import check
from ...core.arguments.amounts import whole, whole_or_none
from ...core.arguments.calls import explained
from ...core.frameworks.collating import collate_samples
from ...core.iter_datapipe import IterDataPipe
from ...core.notices.progress_bar import waiting
from ...core.processes.processors import num_processors_of_rank
from ..batch_options import BatchOptions
from ..copies import dataset_of
from ..loader import StatefulLoader
from ..loader_options import check_function
from ..resumable import Resumable
from .batch_maker import BatchMaker
from .batches_ahead import BatchesAhead, BatchThread
from .device_copies import BatchCopies, device_of


@explained
class ThreadLoader(StatefulLoader):
    """What :func:`thread_loader` returns: a :class:`StatefulLoader` whose batches are made by a thread of this process.

    Args:
        dataset: the chain.
        num_threads: for the pipes that decode in threads; ``None`` for one for each processor of this rank.
        prefetch_batches: number of batches that are made ahead.
        device: to which batches are copied; ``None`` for none.
        **options: of :class:`StatefulLoader`.
    """

    own_options = ("num_threads", "prefetch_batches", "device")

    def __init__(
        self,
        dataset: Resumable,
        *,
        num_threads: int | None = None,
        prefetch_batches: int = 2,
        device: torch.device | str | int | None = None,
        **options: Any,
    ) -> None:
        num_threads = whole_or_none("num_threads", num_threads, at_least=0)
        if options.get("num_workers"):
            raise check.marked(
                ValueError("num_workers must be 0, because this loader has no processes; stateful_loader has them.")
            )
        self.prefetch_batches, self.device = whole("prefetch_batches", prefetch_batches), device_of(device)
        super().__init__(dataset, **options)
        self.num_threads = num_processors_of_rank() if num_threads is None else num_threads
        to_gpu = self.device is not None and self.device.type == "cuda"
        dataset.batch_options = BatchOptions.of(self, num_threads=self.num_threads, to_gpu=to_gpu)
        self._threads: list[BatchThread] = []  # of passes that may not have ended

    def _started(self) -> Iterator[Any]:
        self._join_stopped()
        copies = BatchCopies(self.device, pin_memory=self.pin_memory and torch.cuda.is_available())
        items = iter(self.dataset)
        snapshot = self.dataset.snapshot_of_pass()
        thread = BatchThread(BatchMaker(items, self, copies), copies, snapshot, self.prefetch_batches)
        self._threads.append(thread)
        return BatchesAhead(thread, copies, snapshot)

    def _join_stopped(self) -> None:
        """Wait for the passes that were left early, so that no two of them call the functions of the chain."""
        stopped = [thread for thread in self._threads if thread.is_stopping]
        with waiting("ending the pass before"):
            for thread in stopped:
                thread.join()
        self._threads = [thread for thread in self._threads if thread not in stopped]


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
    state_of_all_ranks: bool = False,
    list_once: bool = False,
    list_in_rank_0: bool = False,
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
    drop_last, pin_memory = check.flag("drop_last", drop_last), check.flag_or_none("pin_memory", pin_memory)
    batch_size = whole_or_none("batch_size", batch_size)
    check_function("collate_fn", collate_fn)
    if pin_memory and not torch.cuda.is_available():
        warnings.warn(
            "thread_loader: pin_memory=True has no effect, because torch finds no GPU that it could copy to.",
            RuntimeWarning,
            stacklevel=3,
        )
    return ThreadLoader(
        dataset_of(pipe, num_streams),
        batch_size=batch_size,
        num_threads=num_threads,
        prefetch_batches=prefetch_batches,
        device=device,
        drop_last=drop_last,
        collate_fn=collate_samples if collate_fn is None and batch_size is not None else collate_fn,
        pin_memory=torch.cuda.is_available() if pin_memory is None else pin_memory,
        state_of_all_ranks=state_of_all_ranks,
        list_once=list_once,
        list_in_rank_0=list_in_rank_0,
    )
