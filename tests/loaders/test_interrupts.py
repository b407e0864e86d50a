"""Ctrl-C, and whatever else a signal handler raises, while a loader is read: the state is that of the last batch."""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torchdata.stateful_dataloader import StatefulDataLoader

import torchdata_remote as tdr
from torchdata_remote.errors import StateError

NUM_SAMPLES, BATCH_SIZE, TIMEOUT_S = 30, 4, 120
KINDS = ("stateful_loader", "thread_loader", "PrefetchingLoader")
Step = Callable[[Any], Any]


@pytest.fixture(scope="module", autouse=True)
def _data() -> None:
    with tdr.ShardWriter("memory://interrupts/{shard}.tar", max_shard_samples=7, overwrite=True) as writer:
        for i in range(NUM_SAMPLES):
            writer.write({"__key__": f"{i:02d}", "cls": i})


def loader_of(kind: str, step: Step = lambda item: item, collate: Step = list, batch_size: int | None = 4) -> Any:
    """A loader of keys, in 5 streams."""
    if batch_size is None:
        collate = partial(_itself, collate)
    if kind == "PrefetchingLoader":
        data = tdr.ShardedDataset("memory://interrupts/", transform=lambda sample: step(sample["__key__"]))
        return tdr.PrefetchingLoader(data, batch_size=batch_size, shuffle=True, seed=0, collate_fn=collate)
    pipe = tdr.stream_shards("memory://interrupts/", seed=0, shuffle_buffer_size=6).to_tuple("__key__").map(step)
    make = tdr.thread_loader if kind == "thread_loader" else tdr.stateful_loader
    return make(pipe, batch_size=batch_size, num_streams=5, collate_fn=collate)


def _itself(collate: Step, item: Any) -> Any:
    return collate([item])


class Interruption:
    """Lets the handler of a signal raise an error in the main thread, at a call of it."""

    def __init__(self, call: int, error: type[BaseException]) -> None:
        self._call, self._error = call, error
        self._num_calls = 0
        self._handled: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.is_expected = True

    def __call__(self, item: Any) -> Any:
        self._num_calls += 1
        if self._num_calls == self._call:
            if threading.current_thread() is threading.main_thread():
                signal.raise_signal(signal.SIGINT)
            else:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                self._handled.get(timeout=TIMEOUT_S)
        return item

    def handle(self, number: int, frame: object) -> None:
        self._handled.put(None)
        if self.is_expected:
            raise self._error


@contextmanager
def handling(number: signal.Signals, handler: Any) -> Iterator[None]:
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def assert_exactly_once(make: Callable[[], Any], whole: list[Any], seen: list[Any], loader: Any, batches: Any) -> None:
    """What was seen, and what the state or the same iterator goes on with, are all batches."""
    state = loader.state_dict()
    again = make()
    again.load_state_dict(state)
    rest = list(again) if state["epoch"] == 0 else []
    assert seen + rest == whole
    try:
        went_on = list(batches)
    except StateError:
        with pytest.raises(StateError, match="cannot go on"):
            next(batches)
    else:
        assert seen + went_on == whole


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15)  # each reads the data three times
@given(
    call=st.integers(1, NUM_SAMPLES),
    batch_size=st.sampled_from([None, 1, 4, 50]),
    in_collate=st.booleans(),
    error=st.sampled_from([KeyboardInterrupt, SystemExit, TimeoutError]),
)
def test_an_interrupt_of_the_wait_loses_and_repeats_no_sample(
    kind: str, call: int, batch_size: int | None, in_collate: bool, error: type[BaseException]
) -> None:
    """The same iterator goes on exactly, or says that it cannot; it does not end as if it were complete."""
    make = partial(loader_of, kind, batch_size=batch_size)
    whole = list(make())
    interruption = Interruption(call, error)
    loader = make(collate=interruption) if in_collate else make(interruption)
    batches, seen = iter(loader), []
    with handling(signal.SIGINT, interruption.handle):
        try:
            for batch in batches:
                seen.append(batch)  # what was handed out before the interrupt
            assert in_collate
        except error:
            pass
    assert_exactly_once(make, whole, [list(batch) for batch in seen], loader, batches)


@pytest.mark.skipif(not hasattr(signal, "SIGVTALRM"), reason="no timer of processor time")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Python drops what finalizers raise
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=15)
@given(after_us=st.integers(1, 8_000), batch_size=st.sampled_from([None, 3]))
def test_an_interrupt_at_any_instruction_loses_and_repeats_no_sample(
    kind: str, after_us: int, batch_size: int | None
) -> None:
    """A timer of processor time interrupts the loader's own code, too."""
    make = partial(loader_of, kind, batch_size=batch_size)
    whole = list(make())
    interruption = Interruption(0, KeyboardInterrupt)
    loader = make()
    batches, seen = iter(loader), []
    with handling(signal.SIGVTALRM, interruption.handle):
        try:
            signal.setitimer(signal.ITIMER_VIRTUAL, after_us / 1e6)
            for batch in batches:
                seen.append(batch)  # what was handed out before the interrupt
            interruption.is_expected = False
        except KeyboardInterrupt:
            pass
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    assert_exactly_once(make, whole, seen, loader, batches)


def _interrupts_trainer(trainer: int, key: tuple[str]) -> tuple[str]:
    if key == ("20",):
        os.kill(trainer, signal.SIGINT)
    return key


@pytest.mark.parametrize("kind", ["stateful_loader", "PrefetchingLoader"])
def test_an_interrupt_of_the_wait_for_workers_loses_no_sample(kind: str) -> None:
    def make(trainer: int | None = None) -> Any:
        step = _interrupts_trainer
        options: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "fork", "collate_fn": list}
        if kind == "PrefetchingLoader":
            data = tdr.ShardedDataset("memory://interrupts/", transform=lambda sample: (sample["__key__"],))
            if trainer is not None:
                data = tdr.ShardedDataset(
                    "memory://interrupts/", transform=lambda sample: step(trainer, (sample["__key__"],))
                )
            return tdr.PrefetchingLoader(data, batch_size=BATCH_SIZE, **options)
        pipe: Any = tdr.stream_shards("memory://interrupts/", shuffle=False).to_tuple("__key__")
        pipe = pipe.map(tuple if trainer is None else partial(step, trainer))
        return tdr.stateful_loader(pipe, batch_size=BATCH_SIZE, num_streams=4, **options)

    whole = list(make())
    loader = make(os.getpid())
    batches, seen = iter(loader), list[Any]()
    with pytest.raises(KeyboardInterrupt):
        seen.extend(batches)
    assert len(seen) < len(whole)
    assert_exactly_once(make, whole, seen, loader, batches)


def test_torchdatas_own_loader_refuses_to_go_on_after_an_interrupt() -> None:
    """And has no state of the middle of a sample."""
    interruption = Interruption(9, KeyboardInterrupt)
    pipe: Any = tdr.stream_shards("memory://interrupts/").to_tuple("__key__").map(interruption)
    loader = StatefulDataLoader(tdr.Resumable(pipe), batch_size=BATCH_SIZE)
    batches = iter(loader)
    with handling(signal.SIGINT, interruption.handle), pytest.raises(KeyboardInterrupt):
        list(batches)
    with pytest.raises(StateError, match="cannot go on"):
        next(batches)
    with pytest.raises(StateError, match="in the middle of a sample"):
        loader.state_dict()
