"""Policies for bad shards, members and samples, and a record of what they skipped."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import NoReturn

from ..errors import BadMemberError, MissingEndError, MissingKeyError, ShardReadError

OnBadShard = Callable[[ShardReadError], object]
OnBadMember = Callable[[BadMemberError], object]
OnBadSample = Callable[[Exception], object]


def raise_error(error: Exception) -> NoReturn:
    """Stop at a bad shard, at a bad member or sample, or at an item that cannot be read.

    Raises:
        Exception: the error itself.
    """
    try:
        raise error
    finally:
        # Or error and frame would keep each other, and the objects of the frames above, until they are collected
        del error


def skip_with_warning(error: Exception) -> None:
    """Skip a bad member or sample, or the rest of a bad shard, with a ``RuntimeWarning`` that gives the reason.

    As ``on_bad_shard``: the sample that was being read is skipped, too, because it may lack members. As
    ``on_bad_member``: only the first one in each shard causes a warning; ``skipped.bad_members`` counts all. As
    ``on_missing_key`` of ``select``: the keys that are there are selected. As ``on_bad_sample``: the pipe warns at the
    end of the epoch.
    """
    what = ""
    if isinstance(error, MissingKeyError):
        what = "They are left out."
    elif isinstance(error, BadMemberError) and error.num_before is not None:
        what = "" if error.num_before else "It is left out; others of this shard are counted without a warning."
    elif isinstance(error, ShardReadError):
        what = "The rest of the shard is left out."
    if what:
        warnings.warn(f"{error} {what}", RuntimeWarning, stacklevel=2)


def accept_missing_end(error: ShardReadError) -> bool:
    """Accept a tar without its end-of-archive blocks as complete, and stop at every other error.

    For archives whose writer omits the blocks. An upload that was cut short after a member looks the same, and is not
    noticed.

    Raises:
        ShardReadError: the error itself, if it is another one.
    """
    try:
        return isinstance(error, MissingEndError) or raise_error(error)
    finally:
        del error  # see raise_error


@dataclass
class Skipped:
    """Shards, members and samples that a chain skipped in its latest pass, in this process.

    Args:
        shards: URL -> reason, for each shard whose rest was skipped.
        members: number of members that are not part of samples, by kind: ``"directory"``, ``"link"``, ``"device"``,
            ``"meta"``, ``"macos"``.
        bad_members: reason -> number of members that ``on_bad_member`` skipped: ``"it has no extension"``.
        num_missing_ends: archives that were accepted without their end-of-archive blocks.
        bad_samples: (URL, key) -> error, for each sample that ``on_bad_sample`` skipped.
        num_empty: intact archives without a single sample.
    """

    shards: dict[str, str] = field(default_factory=dict)
    members: Counter[str] = field(default_factory=Counter)
    bad_members: Counter[str] = field(default_factory=Counter)
    num_missing_ends: int = 0
    bad_samples: dict[tuple[str, str], str] = field(default_factory=dict)
    num_empty: int = 0

    def count_member(self, kind: str) -> None:
        """Count a member that is not part of a sample."""
        self.members[kind] += 1

    def count_empty(self, error: ShardReadError) -> None:
        """Count an archive without a sample, and warn of the first one."""
        self.num_empty += 1
        if self.num_empty == 1:
            what = "It is passed over; others are counted without a warning."
            warnings.warn(f"{error} {what}", RuntimeWarning, stacklevel=2)

    @classmethod
    def of_all(cls, readers: Iterable[Skipped]) -> Skipped:
        """Add up what several readers skipped."""
        total = cls()
        for skipped in readers:
            for name, value in vars(skipped).items():
                mine = getattr(total, name)
                if isinstance(value, int):
                    setattr(total, name, mine + value)
                else:
                    mine.update(value)
        return total


class LinkCounter:
    """Counts the links of one archive that are left out.

    Args:
        url: of the archive, as messages may show it.
    """

    def __init__(self, url: str) -> None:
        self.number, self._url, self._first = 0, url, ""

    def __call__(self, name: str, *_: object) -> None:
        """Count a link."""
        self._first = self._first or name
        self.number += 1

    def warn(self) -> None:
        """Say how many there were, and how to pack files in place of links."""
        if self.number:
            warnings.warn(
                f"{self._url}: links are left out ({self.number:,}, such as {self._first!r:.200}): they have no data, "
                "and samples or members are missing. Pack files in place of them: tar --hard-dereference "
                "--dereference, zip without --symlinks. shard_dataset follows the links within a tar.",
                RuntimeWarning,
                stacklevel=2,
            )


class MemberErrorHandler:
    """Applies a policy to the bad members of one shard.

    Args:
        policy: raises, or returns to skip the member.
        skipped: counts the skipped members.
    """

    def __init__(self, policy: OnBadMember, skipped: Skipped) -> None:
        self._policy, self._skipped, self._num_skipped = policy, skipped, 0

    def __call__(self, error: BadMemberError) -> None:
        """Return if the member is to be skipped.

        Raises:
            BadMemberError: the error itself, or another error of the policy.
        """
        error.num_before = self._num_skipped
        try:
            self._policy(error)
            self._num_skipped += 1
            self._skipped.bad_members[error.reason or "unknown"] += 1
        finally:
            del error  # see raise_error


class ShardErrorHandler:
    """Context manager that applies a policy to the errors of one shard, once to each.

    Args:
        url: of the shard, as errors may show it.
        policy: raises, or returns to skip the rest of the shard; returns ``True`` to accept a ``MissingEndError``.
        skipped: records the skipped shards.
        on_bad_member: raises, or returns to skip a bad member. Its errors are errors of the shard.
        num_samples: of the shard, by its manifest; ``None`` if that is unknown.
    """

    def __init__(
        self,
        url: str,
        policy: OnBadShard,
        skipped: Skipped,
        on_bad_member: OnBadMember = raise_error,
        num_samples: int | None = None,
    ) -> None:
        self._url, self._policy, self._skipped, self._num_samples = url, policy, skipped, num_samples
        self.on_bad_member, self.on_link = MemberErrorHandler(on_bad_member, skipped), LinkCounter(url)
        self._refused: ShardReadError | None = None

    def accepts(self, error: ShardReadError) -> bool:
        """Return whether a shard with this error is accepted as complete."""
        if self._policy(error) is True:
            self._skipped.num_missing_ends += 1
            return True
        self._refused = error
        return False

    def on_empty(self, error: ShardReadError) -> None:
        """Count an archive without a sample, and say it of the first one.

        Raises:
            ShardReadError: if the manifest counts samples of it.
        """
        if self._num_samples:
            what = f"Its manifest counts {self._num_samples:,} samples: write the shard again."
            raise ShardReadError(f"{error} {what}", url=self._url)
        self._skipped.count_empty(error)

    def __enter__(self) -> ShardErrorHandler:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if kind is not GeneratorExit:
            self.on_link.warn()
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
                # Without this frame, which holds the error
                error.__traceback__ = traceback
                return False
        self._refused = None
        self._skipped.shards[self._url] = str(error)
        return True
