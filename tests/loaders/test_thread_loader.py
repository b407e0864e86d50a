"""``thread_loader``: a thread makes batches ahead, ends with its pass, and copies batches to a device."""

from __future__ import annotations

import gc
import os
import queue
import subprocess
import sys
import threading
import traceback
import weakref
from collections import UserDict, namedtuple
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch

import torchdata_remote as tdr
from torchdata_remote.errors import StateError

TIMEOUT_S = 120


class Numbers(tdr.IterDataPipe[int]):
    """Numbers from 0, with a position; ``function`` is called with each before it is handed out."""

    def __init__(self, count: int, function: Callable[[int], object] = lambda number: None) -> None:
        self.count, self.function = count, function
        self.closed_at: list[int] = []  # of all copies
        self._next = self._first = 0

    def __iter__(self) -> Iterator[int]:
        self._next, self._first = self._first, 0
        try:
            for number in range(self._next, self.count):
                self.function(number)
                self._next = number + 1
                yield number
        finally:
            self.closed_at.append(self._next)

    def state_dict(self) -> int:
        return self._next

    def load_state_dict(self, state: int) -> None:
        self._next = self._first = state


def loader_of(count: int, function: Callable[[int], object] = lambda number: None, **options: Any) -> Any:
    return tdr.thread_loader(Numbers(count, function), **{"batch_size": 4, "collate_fn": list, **options})


def batch_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "torchdata_remote-batches"]


def await_end() -> None:
    """Wait until no thread makes batches."""
    for thread in batch_threads():
        thread.join(TIMEOUT_S)
    assert not batch_threads()


@pytest.mark.parametrize("prefetch_batches", [1, 2, 5])
def test_exactly_so_many_batches_are_made_ahead(prefetch_batches: int) -> None:
    """While the consumer is busy; by one thread."""
    made: queue.SimpleQueue[int] = queue.SimpleQueue()
    loader = loader_of(80, made.put, prefetch_batches=prefetch_batches)
    num_made = 0
    for num_taken, _ in enumerate(loader, 1):
        expected = min(80, 4 * (num_taken + prefetch_batches))
        while num_made < expected:
            assert made.get(timeout=TIMEOUT_S) == num_made
            num_made += 1
        if num_taken == 5:
            assert len(batch_threads()) == 1
        assert made.empty()
    await_end()


def test_an_error_is_raised_in_its_place_with_the_traceback_of_the_function() -> None:
    """After the batches before it; the state has the rule of ``stateful_loader``."""

    def fail(number: int) -> None:
        if number == 9:
            raise ZeroDivisionError("on purpose")

    for loader in (loader_of(16, fail), tdr.stateful_loader(Numbers(16, fail), batch_size=4, collate_fn=list)):
        batches = iter(loader)
        assert list(islice(batches, 2)) == [[0, 1, 2, 3], [4, 5, 6, 7]]
        state = loader.state_dict()
        with pytest.raises(ZeroDivisionError, match="on purpose") as caught:
            next(batches)
        assert "in fail" in "".join(traceback.format_exception(caught.value))
        with pytest.raises(StateError, match="cannot go on"):
            next(batches)
        assert loader.state_dict() == state
        loader.load_state_dict(state)
        with pytest.raises(ZeroDivisionError):
            next(iter(loader))
    await_end()


def test_a_pass_that_is_left_ends_its_thread_and_closes_its_chain() -> None:
    """By ``break``; the next pass is the next epoch, and the loop's state is where it was left."""
    source = Numbers(40)
    loader = tdr.thread_loader(source, batch_size=4, collate_fn=list)
    for batch in loader:
        if batch[0] == 8:
            break
    await_end()
    assert len(source.closed_at) == 1
    assert 12 < source.closed_at[0] <= 12 + 2 * 4
    state = loader.state_dict()
    assert (state["epoch"], state["streams"][0][1]["passed"]) == (0, 12)
    assert next(iter(loader)) == [0, 1, 2, 3]
    assert loader.state_dict()["epoch"] == 1


def test_the_next_pass_waits_for_the_function_of_the_pass_that_was_left() -> None:
    """So that functions without locks are called by one thread at a time."""
    entered, blocked = queue.SimpleQueue[None](), queue.SimpleQueue[None]()
    calls: list[int] = []
    num_running = [0]

    def function(number: int) -> None:
        num_running[0] += 1
        calls.append(num_running[0])
        if len(calls) == 6:
            entered.put(None)
            blocked.get(timeout=TIMEOUT_S)
        num_running[0] -= 1

    loader = loader_of(12, function, prefetch_batches=1)
    batches = iter(loader)
    assert next(batches) == [0, 1, 2, 3]
    entered.get(timeout=TIMEOUT_S)
    del batches
    releasing = threading.Timer(0.2, blocked.put, (None,))  # a pass that does not wait would have begun by then
    releasing.start()
    assert len(list(loader)) == 3
    assert max(calls) == 1
    releasing.join()


def test_a_forgotten_loader_is_collected_with_its_thread() -> None:
    loader = loader_of(4_000)
    batches = iter(loader)
    next(batches)
    reference = weakref.ref(loader)
    del loader, batches
    gc.collect()
    await_end()
    assert reference() is None


def test_a_forked_child_is_told_to_begin_a_pass_of_its_own() -> None:
    """And can; it has no copy of the thread."""
    loader = loader_of(12)
    batches = iter(loader)
    next(batches)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        answer = "nothing"
        try:
            next(batches)
        except RuntimeError as error:
            answer = f"{error} / {len(list(loader))}"
        finally:
            os.write(writing, answer.encode())
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answers:
        answer = answers.read()
    os.waitpid(child, 0)
    assert "begun in another process" in answer
    assert answer.endswith(" / 3")
    assert len(list(batches)) == 2


def test_threads_are_as_many_as_the_processors_of_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """``torchrun`` tells how many ranks share the machine."""
    assert loader_of(4).num_threads == len(os.sched_getaffinity(0))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1000")
    assert loader_of(4).num_threads == 1
    assert loader_of(4, num_threads=0).num_threads == 0
    with pytest.raises(ValueError, match="num_workers must be 0"):
        tdr.loaders.ThreadLoader(tdr.Resumable(Numbers(4)), num_workers=2)


def named(number: int) -> str:
    return threading.current_thread().name


def test_the_functions_of_the_chain_are_called_outside_of_the_main_thread() -> None:
    """Those of ``parallel_map`` by other threads, of which the loader tells how many."""
    names = {
        name for batch in tdr.thread_loader(Numbers(8).map(named), collate_fn=list, batch_size=2) for name in batch
    }
    assert names == {"torchdata_remote-batches"}


EXITING = """
import atexit, threading

iterators = []

@atexit.register
def read_on():
    try:
        print(sum(1 for _ in iterators[0]))
    except Exception as error:
        print(type(error).__name__, error)

from tests.loaders.test_thread_loader import loader_of

release = threading.Event()
waiting, busy = iter(loader_of(4_000)), iter(loader_of(4_000, lambda number: number == 7 and release.wait(60)))
iterators.append(waiting)
print(next(waiting), next(busy))
threading.Timer(0.1, release.set).start()
"""


def test_a_process_exits_while_batches_are_made() -> None:
    """One thread waits for its consumer, one is in a function; reading on after the threads have ended is an error."""
    done = subprocess.run([sys.executable, "-c", EXITING], capture_output=True, text=True, timeout=240, check=False)
    first, last = done.stdout.splitlines()
    assert (done.returncode, first, done.stderr) == (0, "[0, 1, 2, 3] [0, 1, 2, 3]", "")
    assert last.startswith("PoolClosedError Nothing is fetched once the interpreter shuts down")


# Devices


def tensors_of(numbers: list[int]) -> dict[str, Any]:
    return {"x": torch.tensor(numbers), "keys": [str(number) for number in numbers]}


@pytest.mark.parametrize("device", ["cpu", "meta", torch.device("cpu"), None])
def test_batches_are_on_the_device(device: Any) -> None:
    """What is no tensor stays as it is."""
    batches = list(loader_of(8, collate_fn=tensors_of, device=device))
    assert {batch["x"].device.type for batch in batches} == {getattr(device, "type", device) or "cpu"}
    assert [batch["keys"][0] for batch in batches] == ["0", "4"]


Pair = namedtuple("Pair", "x y")  # as users write it


def test_each_tensor_in_a_batch_is_moved_in_collections_of_each_kind() -> None:
    """A mapping that cannot be changed becomes a dict."""
    part = torch.zeros(1)
    batch = [Pair(part, {"a": part}), MappingProxyType({"b": part}), UserDict({"c": (part,)})]
    (found,) = loader_of(4, device="meta", collate_fn=lambda _: batch)
    moved = [found[0].x, found[0].y["a"], found[1]["b"], found[2]["c"][0]]
    assert [tensor.device.type for tensor in moved] == ["meta"] * 4
    assert part.device.type == "cpu"
    assert type(found[0]) is Pair


def test_a_device_that_torch_does_not_know_is_refused() -> None:
    with pytest.raises(ValueError, match="device must be one of torch's, such as 'cuda', got 'gpu'"):
        loader_of(4, device="gpu")
    with pytest.raises(TypeError, match="device must be a str such as 'cuda'"):
        loader_of(4, device=1.5)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_pinning_without_a_gpu_warns() -> None:
    with pytest.warns(RuntimeWarning, match="pin_memory=True has no effect"):
        assert len(list(loader_of(8, pin_memory=True))) == 2


NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
NUM_SAMPLES = 48


def gpu_loader_of(folder: Path, device: str | None, **options: Any) -> Any:
    pipe = tdr.stream_shards(f"{folder}/", seed=0).decode_sample().to_tuple("npy", "__key__")
    return tdr.thread_loader(pipe, batch_size=4, num_threads=4, prefetch_batches=3, device=device, **options)


@pytest.fixture(scope="module")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("gpu")
    source = np.random.default_rng(0)
    with tdr.ShardWriter(f"{place}/{{shard}}.tar", max_shard_samples=8) as writer:
        for number in range(NUM_SAMPLES):
            writer.write({"__key__": str(number), "npy": source.integers(0, 256, 1 << 20, np.uint8)})
    return place


@NEEDS_GPU
@pytest.mark.parametrize("pin_memory", [True, False])
def test_batches_on_the_gpu_are_those_in_memory_while_it_computes(arrays: Path, pin_memory: bool) -> None:
    """Memory of a batch is used again only when the consumer's stream has used it, and a batch is waited for."""
    expected = [(values.long().sum(1), keys) for values, keys in gpu_loader_of(arrays, None)]
    matrix = torch.randn(2_048, 2_048, device="cuda")
    found = []
    for values, keys in gpu_loader_of(arrays, "cuda", pin_memory=pin_memory):
        for _ in range(20):
            torch.mm(matrix, matrix)
        assert values.device.type == "cuda"
        found.append((values.long().sum(1), keys))  # computed behind the products, when later batches are copied
        del values
    assert [keys for _, keys in found] == [keys for _, keys in expected]
    assert all(torch.equal(sums.cpu(), others) for (sums, _), (others, _) in zip(found, expected, strict=True))


@NEEDS_GPU
def test_a_pass_on_the_gpu_resumes_in_memory(arrays: Path) -> None:
    """The state is that after the last batch handed out, whatever was copied ahead."""
    on_gpu, in_memory = gpu_loader_of(arrays, "cuda"), gpu_loader_of(arrays, None)
    batches = iter(on_gpu)
    head = [keys for _, keys in (next(batches) for _ in range(5))]
    in_memory.load_state_dict(on_gpu.state_dict())
    rest = [keys for _, keys in in_memory]
    assert sorted(int(key) for keys in [*head, *rest] for key in keys) == list(range(NUM_SAMPLES))
