from __future__ import annotations

import gc
import pickle
import weakref

import pytest

from torchdata_remote.errors import BadMemberError, MissingEndError, ShardReadError
from torchdata_remote.formats.error_policy import (
    MemberErrorHandler,
    OnBadShard,
    ShardErrorHandler,
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


def test_the_error_handler_applies_the_policy_once_to_each_error() -> None:
    """Also where the reader asked beforehand whether the end may lack; what was left out is noted."""
    asked: list[ShardReadError] = []
    skipped = Skipped()
    with ShardErrorHandler(URL, asked.append, skipped) as guard:
        assert not guard.accepts(ENDLESS)
        raise ENDLESS
    assert asked == [ENDLESS]
    assert skipped.shards == {URL: "no end"}
    with ShardErrorHandler("s3://b/t-001.tar", asked.append, skipped):
        raise BAD
    assert asked == [ENDLESS, BAD]
    assert list(skipped.shards) == [URL, "s3://b/t-001.tar"]


def test_an_accepted_end_is_not_skipped() -> None:
    """Nothing was left out; it is counted. Only ``True`` accepts, not whatever a function happens to return."""
    skipped = Skipped()
    with ShardErrorHandler(URL, accept_missing_end, skipped) as guard:
        assert guard.accepts(ENDLESS)
    assert (skipped.shards, skipped.num_missing_ends) == ({}, 1)
    with ShardErrorHandler(URL, lambda error: 1, skipped) as guard:
        assert not guard.accepts(ENDLESS)
    assert skipped.num_missing_ends == 1


@pytest.mark.parametrize("is_member", [False, True])
@pytest.mark.parametrize("policy", [raise_error, accept_missing_end])
def test_an_error_is_freed_when_it_is_not_referenced(policy: OnBadShard, is_member: bool) -> None:
    """Without waiting for a garbage collection: the frames in its traceback hold streams and threads."""

    def read() -> weakref.ref[ShardReadError]:
        try:
            with ShardErrorHandler(URL, policy, Skipped(), policy) as guard:
                if is_member:
                    guard.on_bad_member(bad_member())
                raise ShardReadError("damaged", url=URL)
        except ShardReadError as error:
            return weakref.ref(error)
        raise AssertionError("it was to be raised")

    gc.disable()
    try:
        assert read()() is None
    finally:
        gc.enable()


def bad_member(number: int = 0) -> BadMemberError:
    return BadMemberError(f"member {number}", url=URL, member=f"README{number}", reason="it has no extension")


def test_the_first_bad_member_of_a_shard_is_warned_of_and_all_are_counted() -> None:
    """An archive with a million of them does not fill the screen."""
    skipped = Skipped()
    for _ in range(2):
        guard = MemberErrorHandler(skip_with_warning, skipped)
        with pytest.warns(RuntimeWarning, match="^member 0 It is left out") as caught:
            list(map(guard, map(bad_member, range(3))))
        assert len(caught) == 1
    assert skipped.bad_members == {"it has no extension": 6}
    assert not skipped.shards


def test_a_bad_member_that_is_not_left_out_makes_the_shard_a_bad_one() -> None:
    """The policy about shards is asked then, and its warning says that the shard is left out."""
    skipped = Skipped()
    with (
        pytest.warns(RuntimeWarning, match="The rest of the shard is left out"),
        ShardErrorHandler(URL, skip_with_warning, skipped) as guard,
    ):
        guard.on_bad_member(bad_member())
    assert list(skipped.shards) == [URL]
    assert not skipped.bad_members
    with pytest.raises(BadMemberError), ShardErrorHandler(URL, raise_error, skipped) as guard:
        guard.on_bad_member(bad_member())


def test_other_errors_of_a_policy_are_raised() -> None:
    """A function of the user may stop by an error of its own."""

    def refuse(error: BadMemberError) -> None:
        raise KeyError(error.member)

    with (
        pytest.raises(KeyError, match="README0"),
        ShardErrorHandler(URL, skip_with_warning, Skipped(), refuse) as guard,
    ):
        guard.on_bad_member(bad_member())


def test_a_bad_member_is_rebuilt_from_its_message() -> None:
    """As torch does on the way out of a worker; a pickle keeps the rest."""
    assert str(BadMemberError(str(bad_member()))) == "member 0"
    copy = pickle.loads(pickle.dumps(bad_member()))
    assert (copy.member, copy.reason, copy.url) == ("README0", "it has no extension", URL)


def test_the_error_handler_ignores_other_errors() -> None:
    """A store that fails is no bad shard, nor is a consumer that gives up."""
    for error in (OSError("store"), KeyboardInterrupt(), GeneratorExit()):
        with pytest.raises(type(error)), ShardErrorHandler(URL, skip_with_warning, Skipped()):
            raise error
