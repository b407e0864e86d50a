"""The state of a chain: where it lies, and what a chain consists of.

A pipe's state tells where it is in what it hands out: plain JSON, after the item that was handed out last. Pipes that
hand out one item for each they take, or for some, have none of their own: theirs is their source's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ...core.iter_datapipe import Batcher, Filter, IterDataPipe, Mapper
from ...errors import StateError

_ENDED = object()

PASS_THROUGH = (Mapper, Filter, Batcher)  # of torch; Collator is a Mapper


def state_of(pipe: IterDataPipe[Any]) -> Any:
    """Where a pipe is.

    Raises:
        StateError: if it does not know.
    """
    return require_state(pipe).state_dict()


def load_state(pipe: IterDataPipe[Any], state: Any) -> None:
    """Let a pipe's next pass go on where another one was."""
    require_state(pipe).load_state_dict(state)


def warm_up(pipe: IterDataPipe[Any]) -> Iterator[None]:
    """Bring what a pipe's first item needs, in steps, which several streams take by turns. Then it is iterated."""
    found = state_owner(pipe)
    steps: Iterator[None] = found.warm_up() if hasattr(found, "warm_up") else iter(())
    return steps


def take_together(steps: Iterable[Iterator[None]]) -> Iterator[None]:
    """The steps of several pipes' :func:`warm_up` by turns, so that the requests of all are under way at once."""
    under_way = list(steps)
    while under_way:
        under_way = [of_one for of_one in under_way if next(of_one, _ENDED) is not _ENDED]
        yield


def state_owner(pipe: IterDataPipe[Any]) -> IterDataPipe[Any]:
    """The pipe whose items these are, one for one or some of them: itself, or a source of torch's own pipes."""
    while isinstance(pipe, PASS_THROUGH):
        pipe = pipe.datapipe
    return pipe


def require_state(pipe: IterDataPipe[Any]) -> Any:
    """The pipe that knows where a pipe is.

    Raises:
        StateError: if nobody does.
    """
    found = state_owner(pipe)
    if not hasattr(found, "state_dict"):
        raise StateError(
            f"{name_of(found)} does not count what it hands out. Put sharding_filter_rank() after it: it does."
        )
    return found


def name_of(pipe: IterDataPipe[Any]) -> str:
    """A pipe's class, as users know it."""
    return type(pipe).__name__.removesuffix("IterDataPipe").lstrip("_")


def sources_of(pipe: IterDataPipe[Any]) -> Iterator[tuple[str, str | None, IterDataPipe[Any]]]:
    """The pipes that a pipe takes items from: attribute, key if that is a dict, pipe."""
    for name, value in getattr(pipe, "__dict__", {}).items():  # a source may be a list
        if isinstance(value, IterDataPipe):
            yield name, None, value
        elif isinstance(value, dict):
            yield from ((name, key, item) for key, item in value.items() if isinstance(item, IterDataPipe))


def all_pipes(pipe: IterDataPipe[Any]) -> list[IterDataPipe[Any]]:
    """A chain's pipes, sources first, each once."""
    found: dict[int, IterDataPipe[Any]] = {}

    def visit(here: IterDataPipe[Any]) -> None:
        if id(here) not in found:
            for _, _, source in sources_of(here):
                visit(source)
            found[id(here)] = here

    visit(pipe)
    return list(found.values())


def describe(pipe: IterDataPipe[Any]) -> str:
    """A pipe's name, with the options on which its items' order depends."""
    options = pipe.order_options() if hasattr(pipe, "order_options") else {}
    shown = ", ".join(f"{name}={value!r}" for name, value in options.items())
    return f"{name_of(pipe)}({shown})"
