"""What every reader of shards does, shown by a format of one line: a sample for each letter."""

from __future__ import annotations

import gc
import io
import json
import pickle
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import IterDataPipe
from torch.utils.data.datapipes.iter import IterableWrapper

from tests.support.fake_store import store_of
from tests.support.waiting import engine_threads, wait_for
from torchdata_remote import raise_error
from torchdata_remote.errors import MissingEndError, ShardReadError, StateError
from torchdata_remote.formats.error_policy import OnBadShard, ShardErrorHandler
from torchdata_remote.formats.grouping import SampleRun
from torchdata_remote.formats.position import ReadPosition
from torchdata_remote.pipes.base.shard_reader import ShardReader


class Letters(ShardReader):
    """``!`` is damage, ``?`` asks for a missing end to be accepted."""

    def __init__(
        self, source: IterDataPipe[Any], *, on_bad_shard: OnBadShard = raise_error, interleave: int = 1
    ) -> None:
        super().__init__(source, on_bad_shard=on_bad_shard, interleave=interleave, storage_options=None)

    def runs_in(self, url: str, stream: Any, guard: ShardErrorHandler, position: ReadPosition) -> Iterator[SampleRun]:
        at = position.batch_offset = position.start.byte
        text = stream.read().decode()
        for at, letter in enumerate(text, at + 1):  # noqa: B020  # where the next one begins
            if letter == "!":
                raise ShardReadError(f"{url}: damage", url=url)
            if letter == "?" and not guard.accepts(MissingEndError(f"{url}: no end", url=url)):
                raise ShardReadError(f"{url}: not accepted", url=url)
            self._skipped.count_member("letter")
            position.batch_offset, position.ended = at, at == position.start.byte + len(text)
            yield iter(({"__key__": letter, "__url__": url},))


class Opened(IterDataPipe[Any]):
    """Streams of others, remembered."""

    def __init__(self, *shards: bytes) -> None:
        self.streams = [io.BytesIO(shard) for shard in shards]

    def __iter__(self) -> Iterator[tuple[str, io.BytesIO]]:
        yield from ((f"https://host/{i}.letters?secret", stream) for i, stream in enumerate(self.streams))


def urls(count: int) -> IterDataPipe[Any]:
    return IterableWrapper([str(number) for number in range(count)])


def keys(pipe: IterDataPipe[Any]) -> str:
    return "".join(sample["__key__"] for sample in pipe)


def test_runs_in_is_abstract() -> None:
    """A subclass without ``runs_in`` is refused."""
    with pytest.raises(TypeError, match="runs_in"):
        ShardReader(IterableWrapper([]), on_bad_shard=raise_error, interleave=1, storage_options=None)  # type: ignore[abstract]


def test_shards_are_read_sequentially_or_interleaved() -> None:
    """One sample of each in turn."""
    assert keys(Letters(Opened(b"abc", b"d", b"ef"))) == "abcdef"
    assert keys(Letters(Opened(b"abc", b"d", b"ef"), interleave=2)) == "adbecf"
    with store_of({"0": b"abc", "1": b"d", "2": b"ef"}):
        for source in (urls(3), urls(3).async_prefetch()):
            assert keys(Letters(source)) == "abcdef"
            assert keys(Letters(source, interleave=2)) == "adbecf"


@pytest.mark.parametrize("interleave", [0, -1])
def test_interleave_below_1_is_refused(interleave: int) -> None:
    """Fewer than one shard cannot be read."""
    with pytest.raises(ValueError, match=f"at least 1, got {interleave}"):
        Letters(Opened(b"a"), interleave=interleave)


@pytest.mark.parametrize("interleave", [1, 2])
def test_every_opened_stream_is_closed(interleave: int) -> None:
    """At the end, after an error and after an early break."""
    whole = Opened(b"ab", b"c")
    keys(Letters(whole, interleave=interleave))
    assert all(stream.closed for stream in whole.streams)
    bad = Opened(b"ab", b"!")
    with pytest.raises(ShardReadError, match="damage"):
        keys(Letters(bad, interleave=interleave))
    assert all(stream.closed for stream in bad.streams)
    given_up = Opened(b"ab", b"cd")
    samples = iter(Letters(given_up, interleave=interleave))
    for _ in range(interleave):
        next(samples)
    del samples
    assert [stream.closed for stream in given_up.streams] == [True, interleave == 2]


def test_policy_skips_shards_and_skipped_counts_the_last_pass() -> None:
    """A policy that returns leaves the rest of that shard out; URLs are shown without their query."""
    asked: list[ShardReadError] = []
    pipe = Letters(Opened(b"a!b", b"c"), on_bad_shard=asked.append)
    assert keys(pipe) == "ac"
    assert [error.url for error in asked] == ["https://host/0.letters"]
    assert pipe.skipped.shards == {"https://host/0.letters": "https://host/0.letters: damage"}
    assert pipe.skipped.members == {"letter": 2}
    first = pipe.skipped
    assert keys(Letters(Opened(b"a?"), on_bad_shard=lambda error: True)) == "a?"
    with pytest.raises(ValueError, match="closed"):  # the streams were those of the first pass
        keys(pipe)
    assert pipe.skipped is not first
    assert not pipe.skipped.members


def state_after(pipe: Letters, num_samples: int) -> dict[str, Any]:
    """Where a pass is, as JSON has it."""
    samples = iter(pipe)
    assert len(list(islice(samples, num_samples))) == num_samples
    state: dict[str, Any] = json.loads(json.dumps(pipe.state_dict()))
    return state


def test_state_has_open_shards_in_the_order_of_the_round_robin() -> None:
    """Each with the place of its next sample, or with none if it has no more and its turn has not come since."""
    with store_of({"0": b"abc", "1": b"d", "2": b"ef"}):
        states = [state_after(Letters(urls(3), interleave=2), stop) for stop in range(7)]
        assert states == [
            {"open": [], "next": 0},
            {"open": [[0, [1]]], "next": 1},
            {"open": [[0, [1]], [1, None]], "next": 2},
            {"open": [[1, None], [0, [2]]], "next": 2},
            {"open": [[0, [2]], [2, [1]]], "next": 3},
            {"open": [[2, [1]], [0, None]], "next": 3},
            {"open": [[0, None], [2, None]], "next": 3},
        ]
        ended = Letters(urls(3), interleave=2)
        keys(ended)
        assert ended.state_dict() == {"open": [], "next": 3}


@given(
    shards=st.lists(st.text("abcd", max_size=4).map(str.encode), max_size=6),
    interleave=st.integers(1, 4),
    stop=st.integers(0, 24),
    prefetched=st.booleans(),
)
def test_pass_resumes_after_any_sample(shards: list[bytes], interleave: int, stop: int, prefetched: bool) -> None:
    """Whatever the lengths; the pass after it is whole. Bytes of samples that were handed out are not read again."""

    def pipe() -> Letters:
        source = urls(len(shards))
        return Letters(source.async_prefetch() if prefetched else source, interleave=interleave)

    with store_of({str(number): shard for number, shard in enumerate(shards)}) as store:
        whole = keys(pipe())
        stop = min(stop, len(whole))
        state = state_after(pipe(), stop)
        resumed = pipe()
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state, "until a pass begins"
        store.reads.clear()
        assert whole[:stop] + keys(resumed) == whole
        starts = {int(path): start for path, start, _, _ in store.reads if start}
        assert starts == {number: place[0] for number, place in state["open"] if place is not None and place[0]}
        ended = {number for number, place in state["open"] if place is None}
        assert {int(path) for path, *_ in store.reads}.isdisjoint(ended)
        assert keys(resumed) == whole


def test_resumed_pass_skips_bad_shards() -> None:
    """With a state before the damage or after it."""
    with store_of({"0": b"ab!c", "1": b"!", "2": b"de"}):
        for interleave in (1, 2, 3):
            whole = keys(Letters(urls(3), on_bad_shard=lambda error: None, interleave=interleave))
            assert sorted(whole) == list("abde")
            for stop in range(5):
                resumed = Letters(urls(3), on_bad_shard=lambda error: None, interleave=interleave)
                resumed.load_state_dict(state_after(resumed, stop))
                assert whole[:stop] + keys(resumed) == whole


@pytest.mark.parametrize("interleave", [1, 2])
def test_state_after_an_early_break_is_that_of_the_last_sample(interleave: int) -> None:
    """A loop may be left before the state is saved."""
    with store_of({"0": b"abc", "1": b"def"}):
        pipe = Letters(urls(2), interleave=interleave)
        samples = iter(pipe)
        head = "".join(next(samples)["__key__"] for _ in range(3))
        state = pipe.state_dict()
        del samples
        assert pipe.state_dict() == state
        pipe.load_state_dict(state)
        assert head + keys(pipe) == keys(Letters(urls(2), interleave=interleave))


def test_streams_of_other_openers_have_no_state() -> None:
    """They cannot be opened again at a position, but can be read."""
    pipe = Letters(Opened(b"ab", b"c"))
    samples = iter(pipe)
    assert next(samples)["__key__"] == "a"
    with pytest.raises(StateError, match=r"cannot be opened again.*async_prefetch"):
        pipe.state_dict()
    assert "".join(sample["__key__"] for sample in samples) == "bc"
    with pytest.raises(StateError, match="cannot be opened again"):
        pipe.state_dict()


def test_shard_of_the_state_that_the_chain_no_longer_yields_is_an_error() -> None:
    """Because there are fewer, because somebody filters them, or because others open them now; its number is told."""
    with store_of({str(number): b"abc" for number in range(4)}):
        state = state_after(Letters(urls(4), interleave=2), 9)
        assert [number for number, _ in state["open"]] == [3, 2]
        filtered = urls(4).async_prefetch().filter(_is_not_the_last)
        for source, message in (
            (urls(3), "expects 4 URLs"),
            (urls(3).async_prefetch(), "expects 4 URLs"),
            (filtered, "shard number 3"),
            (Opened(b"abc", b"abc"), "shard number 3"),
        ):
            pipe = Letters(source, interleave=2)
            pipe.load_state_dict(state)
            with pytest.raises(StateError, match=message):
                keys(pipe)


def test_state_that_does_not_fit_leaks_no_stream() -> None:
    """Shards that were opened before the missing one are closed."""
    with store_of({str(number): b"abc" * 100 for number in range(4)}):
        state = state_after(Letters(urls(4), interleave=2), 602)
        assert [number for number, _ in state["open"]] == [2, 3]
        before = engine_threads()
        pipe = Letters(urls(3), interleave=2)
        pipe.load_state_dict(state)
        with pytest.raises(StateError, match="expects 4 URLs"):
            keys(pipe)
        gc.collect()
        assert pipe is not None
        for thread in engine_threads() - before:
            thread.join(1)
        assert not engine_threads() - before


def _is_not_the_last(pair: tuple[str, Any]) -> bool:
    return pair[0] != "3"


def test_pickled_copy_of_a_running_pass_starts_from_the_beginning() -> None:
    """Unless a state was loaded, which is pickled too."""
    with store_of({"0": b"abc", "1": b"def"}):
        pipe = Letters(urls(2), interleave=2)
        samples = iter(pipe)
        next(samples)
        twin = pickle.loads(pickle.dumps(pipe))
        assert twin.state_dict() == {"open": [], "next": 0}
        assert keys(twin) == "adbecf"
        assert "".join(sample["__key__"] for sample in samples) == "dbecf"
        pipe.load_state_dict(state_after(Letters(urls(2), interleave=2), 3))
        assert keys(pickle.loads(pickle.dumps(pipe))) == "ecf"


def test_copies_in_one_process_have_separate_positions() -> None:
    """Each has its own place, at the same time."""
    with store_of({"0": b"abc", "1": b"def"}):
        pipe = Letters(urls(2))
        twin = pickle.loads(pickle.dumps(pipe))
        one, other = iter(pipe), iter(twin)
        got = [next(one)["__key__"], next(one)["__key__"], next(other)["__key__"]]
        assert got == ["a", "b", "a"]
        assert (pipe.state_dict()["open"], twin.state_dict()["open"]) == ([[0, [2]]], [[0, [1]]])


def test_interleave_is_an_order_option() -> None:
    """So a state with another value is refused."""
    assert Letters(urls(1), interleave=3).order_options() == {"interleave": 3}


@pytest.mark.parametrize("stop", [0, 1, 4])
def test_a_pass_that_was_begun_has_its_first_shard_under_way(stop: int) -> None:
    """Before it is iterated; then the same samples come, from where a state tells, and the next pass is whole."""
    with store_of({"0": b"abc", "1": b"def"}) as store:
        whole = keys(Letters(urls(2)))
        pipe = Letters(urls(2))
        pipe.load_state_dict(state_after(Letters(urls(2)), stop))
        store.reads.clear()
        assert list(pipe.warm_up()) == []
        wait_for(lambda: any(path == str(stop // 3) and start == stop % 3 for path, start, *_ in store.reads))
        assert keys(pipe) == whole[stop:]
        assert keys(pipe) == whole
