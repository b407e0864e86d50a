"""State of a chain of pipes, and the pipes that it consists of.

The state of a pipe is its position in its output: plain JSON, after the item that was yielded last. A pipe that yields
one item for each that it takes, or for some of them, has no state of its own: its source has it.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from typing import Any

from ...core.iter_datapipe import Batcher, Filter, IterDataPipe, Mapper
from ...errors import StateError

Snapshot = Callable[[], Any]
"""Returns a state, or raises the error of a pipe that has none."""

_ENDED = object()
_PACKAGE = f"{__name__.partition('.')[0]}."

PASS_THROUGH = (Mapper, Filter, Batcher)  # of torch; Collator is a Mapper


def state_of(pipe: IterDataPipe[Any]) -> Any:
    """Return the state of a pipe, or of the source that owns it.

    Raises:
        StateError: if no pipe owns a state.
    """
    owner = require_state(pipe)
    state = owner.state_dict()
    # A pipe of a user may hand out what it changes later
    return state if type(owner).__module__.startswith(_PACKAGE) else copy.deepcopy(state)


def snapshots_of(pipe: IterDataPipe[Any]) -> Callable[[], Snapshot]:
    """Return a function that takes snapshots of the state, for a pipe that takes items ahead.

    Call this before the pass, and the function after each item. A pipe whose state is large has a cheaper way,
    ``snapshots``.
    """
    owner: Any = state_owner(pipe)
    kind: type = type(owner)
    if _has_snapshots(kind):
        take: Callable[[], Snapshot] = owner.snapshots()
        return take

    if not hasattr(owner, "state_dict"):
        without = partial(state_of, owner)
        return lambda: without

    def copied() -> Snapshot:
        try:
            state = copy.deepcopy(require_state(owner).state_dict())  # a pipe without the hook may change it later
        except Exception as error:  # noqa: BLE001  # raised where the state is asked for
            return _Failed(error)
        return lambda: state

    return copied


class _Failed:
    def __init__(self, error: Exception) -> None:
        self._error = error.with_traceback(None)  # its frames would keep a sample in memory

    def __call__(self) -> Any:
        raise self._error.with_traceback(None)


@lru_cache
def _has_snapshots(kind: type) -> bool:
    """Whether the hook was written for the state of this class, and not for that of a base class."""
    for base in kind.__mro__:
        if "snapshots" in vars(base):
            return True
        if "state_dict" in vars(base) or "_state" in vars(base):
            return False
    return False


def load_state(pipe: IterDataPipe[Any], state: Any) -> None:
    """Resume the pipe's next pass from a state."""
    require_state(pipe).load_state_dict(state)


def warm_up(pipe: IterDataPipe[Any]) -> Iterator[None]:
    """Warm up a pipe: yield after each step, so that several streams can be warmed up concurrently."""
    owner = state_owner(pipe)
    steps: Iterator[None] = owner.warm_up() if hasattr(owner, "warm_up") else iter(())
    return steps


def forget_start(pipe: IterDataPipe[Any]) -> None:
    """Drop what was loaded or warmed up for a pass over a chain that has not begun: the next one would take it."""
    for found in all_pipes(pipe):
        if hasattr(type(found), "forget_start"):
            found.forget_start()


def take_together(steps: Iterable[Iterator[None]]) -> Iterator[None]:
    """Run several :func:`warm_up` in turn, so that the requests of all are in flight together."""
    running = list(steps)
    while running:
        running = [warm_up_steps for warm_up_steps in running if next(warm_up_steps, _ENDED) is not _ENDED]
        yield


def state_owner(pipe: IterDataPipe[Any]) -> IterDataPipe[Any]:
    """Return the pipe that owns the state: ``pipe`` itself, or the source of torch's pass-through pipes."""
    while isinstance(pipe, PASS_THROUGH):
        pipe = pipe.datapipe
    return pipe


def require_state(pipe: IterDataPipe[Any]) -> Any:
    """Return the pipe that owns the state.

    Raises:
        StateError: if it cannot be saved.
    """
    owner = state_owner(pipe)
    if not hasattr(owner, "state_dict"):
        raise StateError(
            f"{name_of(owner)} does not count the items that it yields. Put sharding_filter_rank() after it: that does."
        )
    return owner


def name_of(pipe: IterDataPipe[Any]) -> str:
    """Name of a pipe's class, without torch's suffix."""
    return type(pipe).__name__.removesuffix("IterDataPipe").lstrip("_")


def functional_name(pipe: IterDataPipe[Any]) -> str:
    """Functional name of a pipe of this package."""
    return re.sub("(?<=[a-z])(?=[A-Z])", "_", name_of(pipe)).lower()


def sources_of(pipe: IterDataPipe[Any]) -> Iterator[tuple[str, str | None, IterDataPipe[Any]]]:
    """Yield the direct sources of a pipe as (attribute, key if the attribute is a dict, pipe)."""
    for name, value in getattr(pipe, "__dict__", {}).items():  # a source may be a list
        if isinstance(value, IterDataPipe):
            yield name, None, value
        elif isinstance(value, dict):
            yield from ((name, key, item) for key, item in value.items() if isinstance(item, IterDataPipe))


def all_pipes(pipe: IterDataPipe[Any]) -> list[IterDataPipe[Any]]:
    """List the pipes of a chain once each, sources first."""
    visited: dict[int, IterDataPipe[Any]] = {}

    def visit(current: IterDataPipe[Any]) -> None:
        if id(current) not in visited:
            for _, _, source in sources_of(current):
                visit(source)
            visited[id(current)] = current

    visit(pipe)
    return list(visited.values())


def upstream(pipe: IterDataPipe[Any]) -> list[IterDataPipe[Any]]:
    """List the pipes of a chain once each, sources first: also those that torch's ``zip``, ``concat`` and ``mux`` hold.

    Their positions cannot be saved, so :func:`all_pipes`, by which states are made, has none of them.
    """
    visited: dict[int, IterDataPipe[Any]] = {}

    def visit(current: IterDataPipe[Any]) -> None:
        if id(current) not in visited:
            for _, _, source in sources_of(current):
                visit(source)
            for value in getattr(current, "__dict__", {}).values():  # a source may be a list
                # The first item decides, because the list may be one of a million URLs
                if type(value) in (list, tuple) and value and isinstance(value[0], IterDataPipe):
                    for source in value:
                        visit(source)
            visited[id(current)] = current

    visit(pipe)
    return list(visited.values())


def describe(pipe: IterDataPipe[Any]) -> str:
    """Describe a pipe by its name and the options that determine the order of its items."""
    options = pipe.order_options() if hasattr(pipe, "order_options") else {}
    shown = ", ".join(f"{name}={value!r}" for name, value in options.items())
    return f"{name_of(pipe)}({shown})"
