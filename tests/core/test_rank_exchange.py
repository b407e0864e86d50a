"""Exchanges between ranks; ``resume/test_loader.py`` and ``trainers/test_mesh.py`` run them with process groups."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from torchdata_remote import World
from torchdata_remote.core import rank_exchange
from torchdata_remote.core.rank_exchange import all_alike, exchanged, from_rank_0, warning_of_missing_ranks
from torchdata_remote.errors import RemoteDataError, StateError


def test_an_exchange_that_takes_long_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that save in the main process only would wait without a word."""
    messages: list[str] = []
    warned = threading.Event()

    def warn(message: str, *_: Any, **__: Any) -> None:
        messages.append(message)
        warned.set()

    monkeypatch.setattr(warnings, "warn", warn)
    with warning_of_missing_ranks("save", after_s=0):
        assert warned.wait(timeout=60)
    assert messages[0].startswith("This rank is to save, and has waited 0 s")


def test_an_exchange_that_ends_in_time_does_not_warn() -> None:
    """The thread that would warn ends with it."""
    before = threading.active_count()
    with warning_of_missing_ranks("save", after_s=3600):
        timers = [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
        assert timers
    for timer in timers:
        timer.join(timeout=60)
    assert threading.active_count() <= before


Answer = tuple[str, int, int, Any, str | None]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Lets rank 0 of 2 be in a process group, where rank 1 answers so."""

    def make(*of_rank_1: Any) -> None:
        queued = iter(of_rank_1)
        monkeypatch.setattr(rank_exchange, "in_group", lambda world: world == HERE)
        monkeypatch.setattr(rank_exchange, "_number", lambda world: world.rank)
        monkeypatch.setattr(rank_exchange, "_gathered", lambda world, doing, own: [own, next(queued)])

    return make


HERE = World(0, 2)


def test_values_come_in_the_order_of_the_ranks(answers: Callable[..., None]) -> None:
    """By their numbers in the job."""
    answers(("count", 1, 1, 5, None))
    assert exchanged(HERE, "count", 4) == {0: 4, 1: 5}


def test_ranks_that_call_different_things_are_refused(answers: Callable[..., None]) -> None:
    """One exchange is never taken for another."""
    answers(("load a state", 1, 1, [], None))
    with pytest.raises(StateError, match="rank 0 is to take its first batch, rank 1 is to load a state"):
        exchanged(HERE, "take its first batch", None)


def test_ranks_with_equal_worlds_are_refused(answers: Callable[..., None]) -> None:
    """Both would read the same samples."""
    answers(("count", 0, 1, 5, None))
    with pytest.raises(StateError, match="rank 0 reads as rank 0, rank 1 reads as rank 0 of 2"):
        exchanged(HERE, "count", 4)


def test_an_error_of_one_rank_is_raised_in_all_ranks(answers: Callable[..., None]) -> None:
    """The rank that has it raises its own, the others say whose it was."""
    answers(("count", 1, 1, None, "ValueError: three"))
    with pytest.raises(RemoteDataError, match="Rank 1 failed to count: ValueError: three"):
        exchanged(HERE, "count", 4)
    answers(("count", 1, 1, 5, None))
    with pytest.raises(ValueError, match="mine"):
        exchanged(HERE, "count", None, ValueError("mine"))
    with pytest.raises(ValueError, match="mine"):
        exchanged(World(), "count", None, ValueError("mine"))


def test_values_of_another_exchange_are_refused(answers: Callable[..., None]) -> None:
    """Such as a value that the training itself gathers."""
    answers({"loss": 0.5})
    with pytest.raises(StateError, match="Another exchange"):
        exchanged(HERE, "count", 4)


def test_of_equal_values_a_digest_is_exchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 4,096 ranks listings of 4 kB would be 16 MB in each rank, in every epoch."""
    sent = []

    def gathered(_world: World, _doing: str, own: Answer) -> list[Answer]:
        sent.append(own[3])
        return [own, (own[0], 1, 1, own[3], None)]

    monkeypatch.setattr(rank_exchange, "in_group", lambda world: True)
    monkeypatch.setattr(rank_exchange, "_number", lambda world: world.rank)
    monkeypatch.setattr(rank_exchange, "_gathered", gathered)
    assert all_alike(HERE, "compare", ["s3://b/0.tar"] * 1000)
    assert [len(value) for value in sent] == [32]


def test_rank_0_makes_it_where_there_is_no_group() -> None:
    """A single rank exchanges nothing."""
    assert all_alike(World(), "compare", [1])
    assert exchanged(World(), "count", 4) == {0: 4}
    with pytest.raises(ValueError, match="broken"):
        from_rank_0(World(), "list", _broken)


def _broken() -> None:
    raise ValueError("broken")
