from __future__ import annotations

import gc
import pickle
import weakref

import pytest

from torchdata_remote.errors import MissingEndError, ShardReadError
from torchdata_remote.policies import (
    OnBadShard,
    ShardGuard,
    Skipped,
    accept_missing_end,
    raise_error,
    skip_with_warning,
)

URL = "s3://b/t-000.tar"
BAD, ENDLESS = ShardReadError("damaged", url=URL), MissingEndError("no end", url=URL)


@pytest.mark.parametrize("error", [BAD, ENDLESS])
def test_raise_error_raises(error: ShardReadError) -> None:
    """The error itself."""
    with pytest.raises(ShardReadError) as caught:
        raise_error(error)
    assert caught.value is error


@pytest.mark.parametrize("error", [BAD, ENDLESS])
def test_skip_with_warning_warns(error: ShardReadError) -> None:
    """The warning repeats the error, and says that something is left out."""
    with pytest.warns(RuntimeWarning, match=rf"^{error} The rest of the shard is left out"):
        skip_with_warning(error)


def test_accept_missing_end_accepts_nothing_else() -> None:
    """Any other error is raised."""
    assert accept_missing_end(ENDLESS)
    with pytest.raises(ShardReadError, match="damaged"):
        accept_missing_end(BAD)


@pytest.mark.parametrize("policy", [raise_error, skip_with_warning, accept_missing_end])
def test_policies_go_to_workers(policy: OnBadShard) -> None:
    """They pickle."""
    assert pickle.loads(pickle.dumps(policy)) is policy


def test_a_guard_asks_once_about_each_error() -> None:
    """Also where the reader asked beforehand whether the end may lack; what was left out is noted."""
    asked: list[ShardReadError] = []
    skipped = Skipped()
    with ShardGuard(URL, asked.append, skipped) as guard:
        assert not guard.accepts(ENDLESS)
        raise ENDLESS
    assert asked == [ENDLESS]
    assert skipped.shards == {URL: "no end"}
    with ShardGuard("s3://b/t-001.tar", asked.append, skipped):
        raise BAD
    assert asked == [ENDLESS, BAD]
    assert list(skipped.shards) == [URL, "s3://b/t-001.tar"]


def test_an_accepted_end_is_not_skipped() -> None:
    """Nothing was left out; it is counted. Only ``True`` accepts, not whatever a function happens to return."""
    skipped = Skipped()
    with ShardGuard(URL, accept_missing_end, skipped) as guard:
        assert guard.accepts(ENDLESS)
    assert (skipped.shards, skipped.num_missing_ends) == ({}, 1)
    with ShardGuard(URL, lambda error: 1, skipped) as guard:
        assert not guard.accepts(ENDLESS)
    assert skipped.num_missing_ends == 1


@pytest.mark.parametrize("policy", [raise_error, accept_missing_end])
def test_an_error_is_gone_when_nobody_holds_it(policy: OnBadShard) -> None:
    """Without waiting for a garbage collection: the frames in its traceback hold streams and threads."""

    def read() -> weakref.ref[ShardReadError]:
        try:
            with ShardGuard(URL, policy, Skipped()):
                raise ShardReadError("damaged", url=URL)
        except ShardReadError as error:
            return weakref.ref(error)
        raise AssertionError("it was to be raised")

    gc.disable()
    try:
        assert read()() is None
    finally:
        gc.enable()


def test_other_errors_are_not_the_guards() -> None:
    """A store that fails is no bad shard, nor is a consumer that gives up."""
    for error in (OSError("store"), KeyboardInterrupt(), GeneratorExit()):
        with pytest.raises(type(error)), ShardGuard(URL, skip_with_warning, Skipped()):
            raise error
