"""The pipes of a chain, and what they say of themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from textwrap import indent
from typing import Any

from ..core import arguments as check
from ..core.arguments import explained
from ..core.iter_datapipe import IterDataPipe


def name_of(pipe: object) -> str:
    """Name of a pipe's class, without torch's suffix."""
    return type(pipe).__name__.removesuffix("IterDataPipe").lstrip("_")


def functional_name(kind: type) -> str:
    """Functional name of a class of pipes of this package."""
    return re.sub("(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower()


def sources_of(pipe: Any) -> Iterator[IterDataPipe[Any]]:
    """Yield the direct sources of a pipe: attributes that are pipes, or lists or dicts of them."""
    for value in getattr(pipe, "__dict__", {}).values():  # a source may be a list
        if isinstance(value, IterDataPipe):
            yield value
        elif isinstance(value, dict):
            yield from (part for part in value.values() if isinstance(part, IterDataPipe))
        # The first item decides, because a list may be one of a million URLs
        elif type(value) in (list, tuple) and value and isinstance(value[0], IterDataPipe):
            yield from value


def all_pipes(pipe: IterDataPipe[Any]) -> list[IterDataPipe[Any]]:
    """List the pipes of a chain once each, sources first."""
    visited: dict[int, IterDataPipe[Any]] = {}

    def visit(current: IterDataPipe[Any]) -> None:
        if id(current) not in visited:
            for source in sources_of(current):
                visit(source)
            visited[id(current)] = current

    visit(pipe)
    return list(visited.values())


def splits_of(pipe: IterDataPipe[Any]) -> list[Any]:
    """List the pipes of a chain that split it: ``sharding_filter_rank``."""
    return [found for found in all_pipes(pipe) if hasattr(type(found), "current_world")]


def describe(pipe: IterDataPipe[Any]) -> str:
    """Describe a pipe by its name and the options that determine the order of its items."""
    options = pipe.order_options() if hasattr(pipe, "order_options") else {}
    shown = ", ".join(f"{name}={value!r}" for name, value in options.items())
    return f"{name_of(pipe)}({shown})"


@explained
def show(pipe: IterDataPipe[Any]) -> str:
    """Draw a chain as text: a line for each pipe, sources first, with the options that determine the order.

    Args:
        pipe: the last one.

    Returns:
        The lines. Several sources of a pipe are indented.

    Raises:
        TypeError: if it is no pipe.

    Example:
        >>> print(show(IterableWrapper(["a", "b"]).shuffle_shards(seed=3).sharding_filter_rank()))
        IterableWrapper()
        ShuffleShards(seed=3)
        ShardingFilterRank()
    """
    if not isinstance(pipe, IterDataPipe):
        raise check.marked(TypeError(f"expected a pipe, got {check.shown(pipe)}."))
    sources = [show(source) for source in sources_of(pipe)]
    if len(sources) > 1:
        sources = [indent(f"source {number}:\n{indent(text, '  ')}", "  ") for number, text in enumerate(sources, 1)]
    return "\n".join([*sources, describe(pipe)])
