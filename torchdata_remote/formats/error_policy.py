"""What becomes of bad shards and of bad members: functions to choose from, and what they left out."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import NoReturn

from ..errors import BadMemberError, MissingEndError, RemoteDataError, ShardReadError

OnBadShard = Callable[[ShardReadError], object]
OnBadMember = Callable[[BadMemberError], object]


def raise_error(error: RemoteDataError) -> NoReturn:
    """Stop at a bad shard, at a bad member, or at an item that cannot be read.

    Raises:
        RemoteDataError: the error itself.
    """
    try:
        raise error
    finally:
        del error  # or error and frame would keep each other, and what the frames above hold, until they are collected


def skip_with_warning(error: ShardReadError) -> None:
    """Leave out a bad member, or the rest of a bad shard, with a ``RuntimeWarning`` that says what was wrong.

    As ``on_bad_shard``: the sample that was being read is part of the rest, since it may lack members. As
    ``on_bad_member``: only the first one of each shard is warned of; ``skipped.bad_members`` counts all.
    """
    if isinstance(error, BadMemberError) and error.num_before is not None:
        if error.num_before == 0:
            what = "It is left out; others of this shard are counted without a warning."
            warnings.warn(f"{error} {what}", RuntimeWarning, stacklevel=2)
        return
    warnings.warn(f"{error} The rest of the shard is left out.", RuntimeWarning, stacklevel=2)


def accept_missing_end(error: ShardReadError) -> bool:
    """Take a tar without its end-of-archive blocks for whole, and stop at everything else.

    For archives whose writer leaves the blocks out. An upload that was cut short after a member looks the same, and is
    not noticed.

    Raises:
        ShardReadError: the error itself, where it is another one.
    """
    if isinstance(error, MissingEndError):
        return True
    try:
        raise error
    finally:
        del error  # see raise_error


@dataclass
class Skipped:
    """What a reader left out in its latest pass, in this process.

    Args:
        shards: URL -> why, of each shard of which the rest was left out.
        members: how many of each kind were passed over: ``"directory"``, ``"link"``, ``"device"``, ``"meta"``.
        bad_members: why -> how many members were left out for it by ``on_bad_member``: ``"it has no extension"``.
        num_missing_ends: archives that were taken for whole without their end-of-archive blocks.
    """

    shards: dict[str, str] = field(default_factory=dict)
    members: Counter[str] = field(default_factory=Counter)
    bad_members: Counter[str] = field(default_factory=Counter)
    num_missing_ends: int = 0

    def count_member(self, kind: str) -> None:
        """Count a member that was passed over."""
        self.members[kind] += 1


class MemberErrorHandler:
    """Ask a policy about the bad members of one shard.

    Args:
        policy: raises, or returns to leave the member out.
        skipped: where that is noted.
    """

    def __init__(self, policy: OnBadMember, skipped: Skipped) -> None:
        self._policy, self._skipped, self._num_skipped = policy, skipped, 0

    def __call__(self, error: BadMemberError) -> None:
        """Return if the member is to be left out.

        Raises:
            BadMemberError: the error itself, or what else the policy raises.
        """
        error.num_before = self._num_skipped
        try:
            self._policy(error)
            self._num_skipped += 1
            self._skipped.bad_members[error.reason or "unknown"] += 1
        finally:
            del error  # see raise_error


class ShardErrorHandler:
    """While it is entered, a policy is asked about the errors of one shard, about each of them once.

    Args:
        url: of the shard, as errors may show it.
        policy: raises, or returns; then the rest of the shard is left out, unless it returned ``True`` for a
            ``MissingEndError``.
        skipped: where that is noted.
        on_bad_member: raises, or returns to leave a bad member out. What it raises is an error of the shard.
    """

    def __init__(
        self, url: str, policy: OnBadShard, skipped: Skipped, on_bad_member: OnBadMember = raise_error
    ) -> None:
        self._url, self._policy, self._skipped = url, policy, skipped
        self.on_bad_member = MemberErrorHandler(on_bad_member, skipped)
        self._refused: ShardReadError | None = None

    def accepts(self, error: ShardReadError) -> bool:
        """Whether a shard with that error is taken for whole."""
        if self._policy(error) is True:
            self._skipped.num_missing_ends += 1
            return True
        self._refused = error
        return False

    def __enter__(self) -> ShardErrorHandler:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if not isinstance(error, ShardReadError):
            return False
        error.url = self._url
        if isinstance(error, BadMemberError):
            error.num_before = None
        if error is not self._refused:
            try:
                self._policy(error)
            except ShardReadError as raised:
                if raised is not error:
                    raise
                error.__traceback__ = traceback  # without this frame, which holds the error
                return False
        self._refused = None
        self._skipped.shards[self._url] = str(error)
        return True
