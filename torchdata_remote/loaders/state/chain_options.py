"""Which options differ between two chains of the same pipes, as a state describes them."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

_UNSET = object()
_IN_RECIPE = {  # what stream_shards calls the options of a pipe
    ("ShuffleSamples", "buffer_size"): "shuffle_buffer_size",
    ("ShuffleSamples", "max_buffer_bytes"): "shuffle_buffer_bytes",
}


def differing_options(first: Sequence[str], second: Sequence[str], verbs: tuple[str, str]) -> list[str] | None:
    """Name each option that differs between two chains of the same pipes.

    Args:
        first: each pipe's name with its options: ``"ShuffleShards(seed=0)"``.
        second: the same of the other chain.
        verbs: written before the values: ``("was", "is")``.

    Returns:
        The differences; ``None`` if the chains have other pipes, or options that cannot be compared one by one.

    Example:
        >>> differing_options(["Mixed(seed=1, stop=5)"], ["Mixed(seed=2, stop=5)"], ("was", "is"))
        ['Mixed: seed was 1, is 2']
    """
    pipes, others = [list(map(parsed, chain)) for chain in (first, second)]
    names = [None if pipe is None else pipe[0] for pipe in pipes]
    if None in names or names != [None if pipe is None else pipe[0] for pipe in others]:
        return None
    found = []
    for number, (one, other) in enumerate(zip(pipes, others, strict=True), 1):
        if one is None or other is None or one == other:
            continue
        name = one[0]
        which = name if names.count(name) == 1 else f"{name} (pipe {number} of {len(names)})"
        for option in {**one[1], **other[1]}:
            before, after = (_shown(options, option) for options in (one[1], other[1]))
            if before != after:
                recipe = _IN_RECIPE.get((name, option))
                known_as = f"{option} ({recipe}= of stream_shards)" if recipe else option
                found.append(f"{which}: {known_as} {verbs[0]} {before}, {verbs[1]} {after}")
    return found


def _shown(options: Mapping[str, Any], name: str) -> str:
    value = options.get(name, _UNSET)
    return "not set" if value is _UNSET else repr(value)


def parsed(pipe: str) -> tuple[str, dict[str, Any]] | None:
    """Take a pipe's name and its options apart; ``None`` if an option is no literal."""
    try:
        call = ast.parse(pipe, mode="eval").body
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)):
            return None
        return call.func.id, {str(option.arg): ast.literal_eval(option.value) for option in call.keywords}
    except (ValueError, SyntaxError):
        return None
