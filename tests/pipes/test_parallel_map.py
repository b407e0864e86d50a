"""A function for each item, in threads: order, state, errors, look-ahead, and the threads themselves."""

from __future__ import annotations

import gc
import json
import os
import pickle
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from tests.support.archive_bytes import pack_tar
from tests.support.waiting import engine_threads, wait_for
from torchdata_remote import (
    IterableWrapper,
    IterDataPipe,
    ParallelMap,
    Resumable,
    World,
    index_shards,
    mix,
    stateful_loader,
    stream_shards,
    thread_loader,
)
from torchdata_remote.core.threads.shared_pool import shared_pools
from torchdata_remote.errors import StateError
from torchdata_remote.pipes.base.chain import load_state, state_of
from torchdata_remote.testing import assert_resumes_everywhere

SHARD_SIZES = (3, 1, 5, 2, 4)


def _write(folder: str, sizes: Sequence[int]) -> list[str]:
    """Write shards of so many samples, and return their URLs."""
    urls = []
    for number, size in enumerate(sizes):
        urls.append(f"{folder}{number:03d}.tar")
        shard = pack_tar((f"{number}{index}.cls", b"3") for index in range(size))
        fsspec.filesystem("memory").pipe(urls[-1], shard)
    return urls


@pytest.fixture(scope="module", autouse=True)
def _shards() -> None:
    _write("memory://parallel-map/", SHARD_SIZES)
    index_shards("memory://parallel-map/")


def _key(sample: dict[str, Any]) -> str:
    return str(sample["__key__"])


def _same(item: Any) -> Any:
    return item


def _read(interleave: int, world: World | None = None) -> IterDataPipe[Any]:
    urls = IterableWrapper(["memory://parallel-map/"]).list_remote(pattern="*.tar")
    return urls.shuffle_shards(seed=1).sharding_filter_rank(world=world).shard_tar_reader(interleave=interleave)


def _mixed(num_threads: int) -> IterDataPipe[Any]:
    world = World()
    one, other = _read(2, world), _read(1, world).parallel_map(_same, num_threads=num_threads)
    return mix({"one": (one, 2), "other": (other, 1)}, seed=3, stop="all_exhausted")


def _indexed() -> IterDataPipe[Any]:
    urls = IterableWrapper(["memory://parallel-map/index.json"]).list_remote()
    return urls.sharding_filter_rank().shard_tar_reader(interleave=2)


def _is_kept(sample: Any) -> bool:
    return _key(sample)[-1] not in "13"


CHAINS: dict[str, Callable[[int], IterDataPipe[Any]]] = {
    **{
        f"interleave {interleave}": lambda n, interleave=interleave: _read(interleave).parallel_map(_key, num_threads=n)  # type: ignore[misc]
        for interleave in (1, 2, 3, 16)
    },
    "shuffle before": lambda n: _read(2).shuffle_samples(buffer_size=4).parallel_map(_key, num_threads=n),
    "shuffle by bytes before": lambda n: (
        _read(2).shuffle_samples(buffer_size=9, max_buffer_bytes=3_000).parallel_map(_key, num_threads=n)
    ),
    "shuffle behind": lambda n: _read(3).parallel_map(_key, num_threads=n).shuffle_samples(buffer_size=4),
    "filter before": lambda n: _read(2).filter(_is_kept).parallel_map(_key, num_threads=n),
    "filter behind": lambda n: _read(2).parallel_map(_same, num_threads=n).filter(_is_kept),
    "batch before": lambda n: _read(2).batch(4).parallel_map(len, num_threads=n),
    "batch behind": lambda n: _read(2).parallel_map(_key, num_threads=n).batch(4),
    "several": lambda n: _read(3).decode_sample(num_threads=n).parallel_map(_key, num_threads=n).map(str.upper),
    "equalize before": lambda n: _indexed().equalize_ranks().parallel_map(_key, num_threads=n),
    "equalize behind": lambda n: _indexed().parallel_map(_key, num_threads=n).equalize_ranks(),
    "mix before": lambda n: _mixed(n).parallel_map(_key, num_threads=n),
    "URLs": lambda n: (
        IterableWrapper(["memory://parallel-map/"])
        .list_remote(pattern="*.tar")
        .sharding_filter_rank()
        .parallel_map(str.lower, num_threads=n)
    ),
}


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS.keys())
@pytest.mark.parametrize("num_threads", [1, 3])
def test_items_and_states_are_those_without_threads(
    chain: Callable[[int], IterDataPipe[Any]], num_threads: int
) -> None:
    """After each item of two epochs, and after the last one."""
    plain, threaded = chain(0), chain(num_threads)
    for _ in range(2):
        items = iter(threaded)
        for item in plain:
            assert next(items) == item
            assert _state(threaded) == _state(plain)
        assert next(items, None) is None
        assert _state(threaded) == _state(plain)


def _state(pipe: IterDataPipe[Any]) -> Any:
    return json.loads(json.dumps(state_of(pipe)))


@pytest.mark.parametrize("chain", CHAINS.values(), ids=CHAINS.keys())
def test_resumes_after_each_item(chain: Callable[[int], IterDataPipe[Any]]) -> None:
    """A state of one number of threads loads with another one, at each point."""
    expected = list(Resumable(chain(0)))
    for stop in range(len(expected) + 1):
        stopped = Resumable(chain(2))
        head = list(islice(stopped, stop))
        for num_threads in (0, 3):
            resumed = Resumable(chain(num_threads))
            resumed.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
            assert [*head, *resumed] == expected


@pytest.mark.parametrize("num_streams", [2, 5])
def test_streams_resume_everywhere(num_streams: int) -> None:
    """Each stream has a look-ahead of its own, and its state is that of what it handed out."""
    assert_resumes_everywhere(lambda: CHAINS["interleave 2"](2), num_streams=num_streams)


@given(
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=6),
    interleave=st.integers(1, 7),
    num_threads=st.integers(1, 3),
    max_ahead=st.integers(1, 9),
    stop=st.integers(0, 30),
)
def test_state_of_any_shards_at_any_point(
    sizes: list[int], interleave: int, num_threads: int, max_ahead: int, stop: int
) -> None:
    """Shards that end at different times; the resumed chain has another look-ahead, and stops again."""
    urls = _write("memory://any-shards/", sizes)

    def chain(num_threads: int, max_ahead: int | None = None) -> IterDataPipe[Any]:
        read = IterableWrapper(urls).sharding_filter_rank(world=World()).shard_tar_reader(interleave=interleave)
        return read.parallel_map(_key, num_threads=num_threads, max_ahead=max_ahead)

    plain, threaded = chain(0), chain(num_threads, max_ahead)
    expected = list(chain(0))
    stop = min(stop, len(expected))
    assert list(islice(threaded, stop)) == list(islice(plain, stop)) == expected[:stop]
    assert _state(threaded) == _state(plain)
    resumed, last = chain(2), chain(0)
    load_state(resumed, _state(threaded))
    again = list(islice(resumed, 2))
    load_state(last, _state(resumed))
    assert [*expected[:stop], *again, *last] == expected


def test_items_are_handled_concurrently() -> None:
    """As many as there are threads, and no more."""
    barrier, most, busy = threading.Barrier(3, timeout=60), [], []

    def meet(item: int) -> int:
        busy.append(item)
        most.append(len(busy))
        barrier.wait()
        busy.remove(item)
        return item

    assert list(IterableWrapper(range(9)).parallel_map(meet, num_threads=3)) == list(range(9))
    assert max(most) == 3


def test_order_does_not_depend_on_the_duration() -> None:
    """The first item is the last one to be ready."""
    others = threading.Semaphore(0)

    def last(item: int) -> int:
        if item:
            others.release()
        else:
            assert all(others.acquire(timeout=60) for _ in range(3))
        return item

    assert list(IterableWrapper(range(4)).parallel_map(last, num_threads=2, max_ahead=4)) == [0, 1, 2, 3]


class _Counted(IterDataPipe[int]):
    """Numbers, and how many were taken."""

    def __init__(self, count: int) -> None:
        self.count, self.taken = count, 0

    def __iter__(self) -> Iterator[int]:
        for number in range(self.count):
            self.taken += 1
            yield number


@pytest.mark.parametrize(
    ("options", "ahead"),
    [
        ({"num_threads": 0}, 0),
        ({"num_threads": 2}, 4),
        ({"num_threads": 2, "max_ahead": 1}, 1),
        ({"num_threads": 1}, 2),
    ],
)
def test_look_ahead_is_bounded(options: dict[str, Any], ahead: int) -> None:
    """What was taken from the source and not handed out; by default, twice the threads."""
    source = _Counted(50)
    for number in source.parallel_map(abs, **options):
        assert source.taken == min(50, number + 1 + ahead)


def test_streams_share_the_look_ahead() -> None:
    """240 streams of 240 shards have one item ahead each, one pool of threads, and resume exactly."""
    urls = _write("memory://many/", [2] * 240)
    taken: list[str] = []
    used: set[int] = set()

    def chain(num_threads: int) -> Resumable:
        read = IterableWrapper(urls).sharding_filter_rank().shard_tar_reader().map(partial(_take, taken))
        return Resumable(read.parallel_map(partial(_use, used), num_threads=num_threads), num_streams=240)

    expected = list(chain(0))
    data = chain(3)
    before = engine_threads()
    taken.clear()
    used.clear()
    items = iter(data)
    head = list(islice(items, 100))
    assert len(taken) == 200
    head += islice(items, 200)
    assert len(used - {threading.get_ident()}) <= 3
    resumed = chain(0)
    resumed.load_state_dict(json.loads(json.dumps(data.state_dict())))
    assert [*head, *resumed] == expected
    del items
    wait_for(lambda: not engine_threads() - before)


def _take(taken: list[str], sample: Any) -> str:
    taken.append(_key(sample))
    return taken[-1]


def _use(used: set[int], key: str) -> str:
    used.add(threading.get_ident())
    return key


def test_error_is_raised_in_its_place() -> None:
    """After the results before it, with the state after its item, as without threads."""

    def fail(sample: Any) -> str:
        if _key(sample) == "21":
            raise LookupError("sample 21")
        return _key(sample)

    outcomes = []
    for num_threads in (0, 2):
        pipe = _read(2).parallel_map(fail, num_threads=num_threads)
        got: list[str] = []
        with pytest.raises(LookupError, match="sample 21") as caught:
            got.extend(pipe)
        outcomes.append((got, _state(pipe), str(caught.value).partition("\n")[0]))
    assert outcomes[0] == outcomes[1]


def test_error_of_the_source_is_raised_in_its_place() -> None:
    """The items before it are handed out, also those that were taken ahead."""

    class Broken(IterDataPipe[int]):
        def __iter__(self) -> Iterator[int]:
            yield from range(3)
            raise OSError("no more")

    for num_threads in (0, 2):
        items = iter(Broken().parallel_map(_same, num_threads=num_threads))
        assert [next(items), next(items), next(items)] == [0, 1, 2]
        with pytest.raises(OSError, match="no more"):
            next(items)
        assert next(items, None) is None


def test_rest_is_read_after_an_error() -> None:
    """A chain that failed is resumed from the state behind the item, or begun anew."""

    def fail(sample: Any) -> str:
        if _key(sample) == "22":
            raise LookupError
        return _key(sample)

    expected = [_key(sample) for sample in _read(1)]
    pipe = _read(1).parallel_map(fail, num_threads=2)
    items = iter(pipe)
    got: list[str] = []
    with pytest.raises(LookupError):
        got.extend(items)
    state = _state(pipe)
    rest = _read(1).parallel_map(_key, num_threads=2)
    rest.load_state_dict(state)
    assert [*got, "22", *rest] == expected


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit, StopIteration, MemoryError])
def test_error_of_any_kind_arrives(error: type[BaseException]) -> None:
    """Also those that are no ``Exception``, as without threads; the threads survive them."""

    def fail(item: int) -> int:
        if item == 2:
            raise error
        return item

    kinds = []
    for num_threads in (0, 2):
        items = iter(IterableWrapper(range(5)).parallel_map(fail, num_threads=num_threads))
        assert [next(items), next(items)] == [0, 1]
        with pytest.raises(BaseException) as caught:  # noqa: PT011
            next(items)
        kinds.append(type(caught.value))
    assert kinds[0] is kinds[1]
    assert list(IterableWrapper(range(5)).parallel_map(abs, num_threads=2)) == list(range(5))


def test_interrupt_of_the_consumer_ends_the_pass() -> None:
    """Ctrl-C in the source or while a result is waited for is raised at once, and not in the place of an item."""

    class Interrupted(IterDataPipe[int]):
        def __iter__(self) -> Iterator[int]:
            yield from range(3)
            raise KeyboardInterrupt

    before = engine_threads()
    items = iter(Interrupted().parallel_map(abs, num_threads=2))
    with pytest.raises(KeyboardInterrupt):
        next(items)
    wait_for(lambda: not engine_threads() - before)


def test_break_ends_the_threads() -> None:
    """Nothing of the items stays in memory, and the position is that of the last one handed out."""

    class Item:
        pass

    before = engine_threads()
    alive: weakref.WeakSet[Item] = weakref.WeakSet()

    def make(_: int) -> Item:
        item = Item()
        alive.add(item)
        return item

    for _ in IterableWrapper(range(100)).parallel_map(make, num_threads=0).parallel_map(_same, num_threads=2):
        break
    del _
    wait_for(lambda: not engine_threads() - before)
    gc.collect()
    wait_for(lambda: not alive)


def test_item_is_released_when_it_was_handed_out() -> None:
    """The pipe keeps neither a result nor the item it was made of."""

    class Item:
        pass

    made: list[weakref.ref[Item]] = []

    def make(_: int) -> Item:
        item = Item()
        made.append(weakref.ref(item))
        return item

    items = iter(IterableWrapper(range(4)).parallel_map(make, num_threads=1, max_ahead=1))
    first = weakref.ref(next(items))
    next(items)
    wait_for(lambda: first() is None)


def test_passes_with_equal_numbers_share_their_threads() -> None:
    """Two chains of two threads have two; one that ends leaves them to the other."""
    before = engine_threads()
    one, other = (iter(IterableWrapper(range(50)).parallel_map(abs, num_threads=2)) for _ in range(2))
    assert [next(one), next(other)] == [0, 0]
    assert len(engine_threads() - before) <= 2
    del one
    assert list(other) == list(range(1, 50))
    wait_for(lambda: not engine_threads() - before)


def test_function_may_read_a_chain_with_threads() -> None:
    """Of the same pool: each consumer handles what no thread has begun, so that they never wait for each other."""

    def read(number: int) -> list[int]:
        return list(IterableWrapper(range(number)).parallel_map(abs, num_threads=2))

    def read_in_a_thread(number: int) -> list[int]:
        with ThreadPoolExecutor(1) as threads:
            return threads.submit(read, number).result(60)

    for function in (read, read_in_a_thread):
        made = list(IterableWrapper(range(9)).parallel_map(function, num_threads=2))
        assert made == [list(range(number)) for number in range(9)]


def test_a_pool_that_others_keep_busy_is_waited_for_once() -> None:
    """Not for each item: a chain of 100 items beside another one's slow functions took 10 s."""
    hold, begun = threading.Event(), threading.Semaphore(0)

    def block(_: int) -> None:
        begun.release()
        hold.wait(60)

    busy = threading.Thread(target=lambda: list(IterableWrapper(range(2)).parallel_map(block, num_threads=2)))
    busy.start()
    try:
        for _ in range(2):
            assert begun.acquire(timeout=60)
        start_s = time.monotonic()
        assert list(IterableWrapper(range(100)).parallel_map(abs, num_threads=2)) == list(range(100))
        assert time.monotonic() - start_s < 5
    finally:
        hold.set()
        busy.join(60)


def test_an_item_that_no_thread_has_begun_is_handled_by_its_consumer() -> None:
    """While the only thread of the pool is at work for another chain; once."""
    begun, ended = threading.Semaphore(0), threading.Semaphore(0)
    calls: list[tuple[int, int]] = []

    def block() -> None:
        begun.release()
        ended.acquire(timeout=60)

    def noted(number: int) -> int:
        calls.append((number, threading.get_ident()))
        return number

    pool = shared_pools().join(1)
    try:
        pool.submit(block)
        assert begun.acquire(timeout=60)
        assert list(IterableWrapper(range(5)).parallel_map(noted, num_threads=1)) == list(range(5))
        assert calls == [(number, threading.get_ident()) for number in range(5)]
    finally:
        ended.release()
        shared_pools().leave(pool)


@pytest.mark.parametrize(
    "error", [KeyError(3), OSError(2, "No such file"), ValueError(("shape", 3)), ValueError("text")]
)
@pytest.mark.parametrize("num_threads", [0, 2])
def test_errors_of_the_function_keep_their_arguments(error: Exception, num_threads: int) -> None:
    """As those of ``map`` do, under the loaders and ``Resumable``."""

    def fail(number: Any) -> Any:
        raise type(error)(*error.args)

    _write("memory://arguments/", [2])
    samples = stream_shards("memory://arguments/", shuffle=False)
    for read in (Resumable, stateful_loader, thread_loader):
        for pipe in (
            samples.parallel_map(fail, num_threads=num_threads),
            samples.map(fail).parallel_map(str, num_threads=num_threads),
        ):
            with pytest.raises(type(error)) as caught:
                list(read(pipe))
            if isinstance(error.args[0], str) and read is Resumable:
                continue  # torch's note is at the end of the text
            assert caught.value.args == error.args


def test_chain_may_be_read_by_several_threads() -> None:
    """Each reads its own pass, of the same shared threads."""
    results: list[list[int]] = []
    chains = [IterableWrapper(range(200)).parallel_map(abs, num_threads=2) for _ in range(4)]
    readers = [threading.Thread(target=lambda chain=chain: results.append(list(chain))) for chain in chains]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(60)
    assert results == [list(range(200))] * 4


def test_epochs_have_their_order() -> None:
    """``set_epoch`` reaches the pipes before it."""
    plain, threaded = _read(2).map(_key), _read(2).parallel_map(_key, num_threads=2)
    epochs = [list(plain) for _ in range(3)]
    assert [list(threaded) for _ in range(3)] == epochs
    threaded.set_epoch(1)
    assert list(threaded) == epochs[1]
    assert len({tuple(epoch) for epoch in epochs}) > 1


def test_new_pass_replaces_one_that_was_given_up() -> None:
    """The position is that of the new pass, whenever the old one is closed."""
    pipe = _read(1).parallel_map(_key, num_threads=2)
    old = iter(pipe)
    next(old)
    new = iter(pipe)
    pipe.set_epoch(0)
    first = next(new)
    old.close()  # type: ignore[attr-defined]
    plain = _read(1).parallel_map(_key, num_threads=0)
    assert next(iter(plain)) == first
    assert _state(pipe) == _state(plain)


def test_pickled_in_the_middle_of_a_pass() -> None:
    """The copy starts at the beginning, with the same options."""
    pipe = _read(2).parallel_map(_key, num_threads=2, max_ahead=3)
    items = iter(pipe)
    next(items)
    copy = pickle.loads(pickle.dumps(pipe))
    assert (copy.num_threads, copy.max_ahead) == (2, 3)
    copy.set_epoch(0)
    assert list(copy) == [_key(sample) for sample in _read(2)]


def test_length_is_that_of_the_source() -> None:
    assert len(IterableWrapper(range(7)).parallel_map(abs)) == 7


def test_state_of_a_source_without_one() -> None:
    """It is refused where it is asked for, as without threads."""
    pipe = IterableWrapper(range(3)).parallel_map(abs, num_threads=2)
    assert next(iter(pipe)) == 0
    with pytest.raises(StateError, match="IterableWrapper does not count"):
        pipe.state_dict()


class _OwnState(IterDataPipe[int]):
    """A user's pipe, whose state is one dict that it changes."""

    def __init__(self) -> None:
        self.state = {"next": 0}

    def __iter__(self) -> Iterator[int]:
        while self.state["next"] < 6:
            self.state["next"] += 1
            yield self.state["next"]
        self.state["next"] = 0

    def state_dict(self) -> dict[str, int]:
        return self.state

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.state = dict(state)


def test_state_of_a_users_pipe() -> None:
    """It is copied after each item, whatever the pipe does with it later."""
    pipe = _OwnState().parallel_map(abs, num_threads=2)
    for item in pipe:
        assert pipe.state_dict() == {"next": item}


def test_forked_after_use() -> None:
    """A child has threads of its own, and cannot continue a pass of its parent."""
    pipe = IterableWrapper(range(20)).parallel_map(abs, num_threads=2)
    items = iter(pipe)
    next(items)
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            try:
                next(items)
            except RuntimeError as error:
                found = str(error)
            pipe = IterableWrapper(range(20)).parallel_map(abs, num_threads=2)
            os.write(writing, f"{found} {list(pipe) == list(range(20))}".encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as lines:
        text = lines.read()
    os.waitpid(child, 0)
    assert "begun in another process" in text
    assert text.endswith("True")
    assert list(items) == list(range(1, 20))


@pytest.mark.parametrize("context", ["fork", "forkserver"])
def test_workers_of_a_loader_have_threads(context: str, tmp_path: Path) -> None:
    """Forked after use, and started anew."""
    for number in range(4):
        names = [f"{number}{index}.cls" for index in range(number + 1)]
        (tmp_path / f"{number}.tar").write_bytes(pack_tar((name, b"3") for name in names))
    urls = IterableWrapper([str(tmp_path)]).list_remote(pattern="*.tar").sharding_filter_rank()
    pipe = urls.shard_tar_reader().parallel_map(_key, num_threads=2)
    expected = sorted(pipe)
    loader = DataLoader(pipe, batch_size=4, num_workers=2, multiprocessing_context=context)
    assert sorted(key for batch in loader for key in batch) == expected
    assert len(expected) == 10


def test_stateful_loader_resumes() -> None:
    """Batches of a loader whose chain has threads."""
    expected = [list(batch) for batch in stateful_loader(CHAINS["interleave 2"](0), batch_size=4)]
    for stop in range(len(expected) + 1):
        loader = stateful_loader(CHAINS["interleave 2"](2), batch_size=4)
        head = [list(batch) for batch in islice(loader, stop)]
        other = stateful_loader(CHAINS["interleave 2"](1), batch_size=4)
        other.load_state_dict(loader.state_dict())
        assert [*head, *map(list, other)] == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_threads": -1}, "num_threads must be an int of at least 0 or None, got -1"),
        ({"num_threads": "2"}, "num_threads must be an int of at least 0 or None, got '2'"),
        ({"max_ahead": 0}, "max_ahead must be an int of at least 1 or None, got 0"),
        ({"function": "abs"}, "function must be a function such as transform, got 'abs'"),
    ],
)
def test_arguments_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        ParallelMap(IterableWrapper([1]), **{"function": abs, **options})
