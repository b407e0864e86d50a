"""Which share of a number of items a reader has, how many items a pass has, and whether it ends."""

from __future__ import annotations

from typing import Any

from ..core import arguments as check
from ..core.iter_datapipe import Batcher, IterDataPipe, Mapper
from ..core.world import counted
from ..errors import EmptyShareError
from .chain import all_pipes, name_of, sources_of
from .env import Env
from .shares import Share


def share_at(pipe: IterDataPipe[Any], env: Env) -> Share:
    """Return the share of the items of a chain that this pass has.

    A chain that is not split, or not split yet, has one reader: each process has all of its items.
    """
    for found in all_pipes(pipe):
        if hasattr(type(found), "current_world") and getattr(found, "split", True):
            return Share.of(found.current_world()) if env.share is None else env.share
        if isinstance(num_shares := _own(found, "num_of_instances"), int):  # torch's sharding_filter
            return Share(_own(found, "instance_id"), num_shares)
    return Share()


def amount_at(pipe: Any, number: int, env: Env) -> int:
    """Return how many of so many items, which all readers of a pipe's source share, this pass has."""
    return share_at(pipe.source_datapipe, env).amount(number, env.number_of(pipe), env.epoch)


def require_shares(number: int, share: Share, *, of: str) -> None:
    """Check that no slot is left without an item.

    Raises:
        EmptyShareError: in all slots, so that none of them waits for the others.
    """
    if number < share.count:
        raise EmptyShareError(
            f"{of}({number}) is divided among all readers, so some of {counted(share.count, 'reader')} would have "
            f"none. Take {share.count} or more, or call {of} before sharding_filter_rank()."
        )


def length_of(pipe: Any, env: Env) -> int:
    """Count the items of a pass.

    Raises:
        TypeError: if the number is not known before it is read.
    """
    if hasattr(type(pipe), "length"):
        length: int = pipe.length(env)
        return length
    if isinstance(pipe, Mapper):
        return length_of(pipe.datapipe, env)
    if isinstance(pipe, Batcher):
        whole, rest = divmod(length_of(pipe.datapipe, env), pipe.batch_size)
        return whole + (rest > 0 and not pipe.drop_last)
    # A length is that of a whole pass, and says nothing of a share
    if not hasattr(type(pipe), "__len__") or env.share not in (None, Share()):
        raise TypeError(f"{name_of(pipe)} does not say how many items a share has")
    return len(pipe)


def is_endless(pipe: IterDataPipe[Any]) -> bool:
    """Whether a pass over the chain has no end: below ``repeat_epochs()``."""
    own: bool | None = _own(pipe, "is_endless")
    if own is not None:
        return own
    sources = list(sources_of(pipe))
    return bool(sources) and all(map(is_endless, sources))


def require_end(pipe: IterDataPipe[Any]) -> None:
    """Check that a pass over URLs that are all listed before the first one is used has an end.

    Raises:
        ValueError: below ``repeat_epochs()`` without a number, which would be listed until memory is used up.
    """
    if is_endless(pipe):
        raise check.marked(
            ValueError("all URLs are listed here, and repeat_epochs() above has no end: put it after the reader.")
        )


def _own(pipe: Any, name: str) -> Any:
    """Return an attribute of a pipe, not a functional name; ``None`` if it has none. A source may be a list."""
    return getattr(pipe, "__dict__", {}).get(name)
