"""``parallel_map``: call a function with each item, in threads, in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ..core.arguments import check
from ..core.arguments.amounts import seed_of
from ..core.iter_datapipe import IterDataPipe, functional_datapipe
from ..fetch.listing.source_argument import pipe_of
from ..formats.error_policy import OnBadSample, raise_error
from .base.draws import Draws
from .base.epochs import EpochPipe
from .base.threaded import ThreadedMap

T = TypeVar("T")
U = TypeVar("U")


@functional_datapipe("parallel_map")
class ParallelMap(ThreadedMap[U], EpochPipe[U]):
    """Call a function with each item, in threads, in order (functional name: ``parallel_map``).

    The results have the order of the items. An error of the function is raised in the place of its item, after the
    results before it. The state is that of the source after the item that was handed out last: it is the same with any
    number of threads, and with ``map``, and loads with any other.

    Threads are faster where the function releases Python's global lock: decoders of images, NumPy, OpenCV and torch do
    for the most part, loops in Python do not. All pipes of a process with the same number of threads share them, as all
    streams of a ``Resumable`` do. They are started by the first item and ended with the pass.

    The function is called in several threads at once, in no certain order, so it must not change what they share.
    Random numbers from ``random``, ``numpy.random`` or torch's default generator differ from run to run then: pass
    ``seed``, and draw from the generator that the function gets. What a library allows in one thread only, such as one
    open file or database handle, belongs into a ``threading.local``.

    Args:
        source_datapipe: any items.
        function: called with an item, and with ``seed`` also with a ``numpy.random.Generator``; what it returns is
            handed out. With worker processes, what it refers to has to pickle.
        seed: of the random numbers, any int. They are determined by the seed, the epoch, the sample's key and the path
            of its shard below the source, so they are the same in every world, after a resume, and in a copy of the
            folder. A ``torch.Generator`` is made by ``torch.Generator().manual_seed(int(rng.integers(2**63)))``.
        num_threads: that call it. The thread that iterates calls it as well, with an item that it needs and that none
            of them has begun. 0 calls it in that thread only, and takes nothing ahead. ``None`` for those that the
            loader gives, as ``thread_loader`` does, or 0. Each worker of a ``DataLoader`` has as many.
        max_ahead: number of items that are taken from the source before they are asked for, which bounds the memory.
            ``None`` for twice the threads. The streams of a ``Resumable`` in one process share it; each has one at
            least.
        on_bad_sample: called with the error of the function for a sample: as of ``decode_sample``.

    Yields:
        What the function returns.

    Raises:
        SampleError: with ``seed`` for an item without a key: put it before ``to_tuple``.
        Exception: of the function.

    Example:
        >>> list(ParallelMap(IterableWrapper(["a", "b", "c"]), str.upper, num_threads=2))
        ['A', 'B', 'C']
    """

    def __init__(
        self,
        source_datapipe: IterDataPipe[T],
        function: Callable[..., U],
        *,
        seed: int | None = None,
        num_threads: int | None = None,
        max_ahead: int | None = None,
        on_bad_sample: OnBadSample = raise_error,
    ) -> None:
        self.source_datapipe = pipe_of(source_datapipe, of="parallel_map", holds="items")
        EpochPipe.__init__(self)
        ThreadedMap.__init__(self, num_threads, max_ahead, on_bad_sample)
        self._function = check.function("function", function, example="transform")
        self.seed = None if seed is None else seed_of(seed, or_none="a function of one argument")

    def function_of_pass(self) -> Callable[[Any], U]:
        function, epoch = self._function, self._epochs.next_epoch()
        return function if self.seed is None else Draws(self, self.seed, epoch).given_to(function)
