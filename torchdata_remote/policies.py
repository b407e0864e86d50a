"""What becomes of a shard that cannot be read: functions to choose from, and what they left out."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from .errors import MissingEndError, ShardReadError

OnBadShard = Callable[[ShardReadError], object]


def raise_error(error: ShardReadError) -> bool:
    """Stop at a bad shard.

    Raises:
        ShardReadError: the error itself.
    """
    raise error


def skip_with_warning(error: ShardReadError) -> bool:
    """Leave out the rest of a bad shard, with a ``RuntimeWarning`` that says what was wrong."""
    warnings.warn(f"{error} The rest of the shard is left out.", RuntimeWarning, stacklevel=2)
    return False


def accept_missing_end(error: ShardReadError) -> bool:
    """Take a tar without its end-of-archive blocks for whole, and stop at everything else.

    For archives whose writer leaves the blocks out. An upload that was cut short after a member looks the same, and is
    not noticed.

    Raises:
        ShardReadError: the error itself, where it is another one.
    """
    if not isinstance(error, MissingEndError):
        raise error
    return True


@dataclass
class Skipped:
    """What a reader left out in its latest pass, in this process.

    Args:
        shards: URL -> why, of each shard of which the rest was left out.
        members: how many of each kind were passed over: ``"directory"``, ``"link"``, ``"device"``, ``"meta"``.
    """

    shards: dict[str, str] = field(default_factory=dict)
    members: Counter[str] = field(default_factory=Counter)

    def count_member(self, kind: str) -> None:
        """Count a member that was passed over."""
        self.members[kind] += 1


class ShardGuard:
    """While it is entered, a policy is asked about the errors of one shard, about each of them once.

    Args:
        url: of the shard, as errors may show it.
        policy: raises, or returns; then the rest of the shard is left out, unless it returned something true for a
            ``MissingEndError``.
        skipped: where that is noted.
    """

    def __init__(self, url: str, policy: OnBadShard, skipped: Skipped) -> None:
        self._url, self._policy, self._skipped = url, policy, skipped
        self._refused: ShardReadError | None = None

    def accepts(self, error: ShardReadError) -> bool:
        """Whether a shard with that error is taken for whole."""
        if self._policy(error):
            return True
        self._refused = error
        return False

    def __enter__(self) -> ShardGuard:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> bool:
        if not isinstance(error, ShardReadError):
            return False
        error.url = self._url
        if error is not self._refused:
            self._policy(error)
        self._refused = None
        self._skipped.shards[self._url] = str(error)
        return True
