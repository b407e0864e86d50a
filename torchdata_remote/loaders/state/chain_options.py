"""Compare the chain of a state with the current one, whose mixture may have other weights or further sources."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import StateError

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


State = dict[str, Any]


def with_mixture_of(here: Sequence[str], state: Mapping[str, Any]) -> State:
    """Give the chain of a state the weights and the further sources of the current mixture.

    Weights of mixtures within the mixture are not changed.

    Args:
        here: the current chain.
        state: its chain has the same mixture at the end, with other weights or fewer sources. Others are returned as
            they are, to be compared.

    Returns:
        The state, with an empty fingerprint for the listing of each source that was added.

    Raises:
        StateError: if the mixture does not have a source of the state, or has them in another order.

    Example:
        >>> here = ["A()", "B()", "Mixed(weights={'a': 1.0, 'b': 1.0}, seed=0, stop=5, pipes={'a': 1, 'b': 1})"]
        >>> chain = ["A()", "Mixed(weights={'a': 1.0}, seed=0, stop=5, pipes={'a': 1})"]
        >>> with_mixture_of(here, {"chain": chain, "listing": [{"num_urls": 2}], "streams": []})
        {'chain': ['A()', 'B()', "Mixed(weights={'a': 1.0, 'b': 1.0}, seed=0, stop=5, pipes={'a': 1, 'b': 1})"], \
'listing': [{'num_urls': 2}, {}], 'streams': []}
    """
    chain, listing = list(state["chain"]), state["listing"]
    before, now = _last_mixture(chain), _last_mixture(here)
    if before is None or now is None:
        return dict(state)
    (end, options), (end_here, current) = before, now
    names = current["pipes"]
    if gone := [name for name in options["pipes"] if name not in names]:
        raise StateError(
            f"The state has the source {gone[0]!r}, which the mixture here does not have. Keep it in mix(), with the "
            "weight 0 in a schedule."
        )
    if list(options["pipes"]) != [name for name in names if name in options["pipes"]]:
        raise StateError(
            f"The state has the sources {', '.join(options['pipes'])}, here they are {', '.join(names)}. Pass them to "
            "mix() in their order before."
        )
    sources = chain[:end]
    if added := [name for name in names if name not in options["pipes"]]:
        blocks, blocks_here = _blocks(sources, options["pipes"]), _blocks(here[:end_here], names)
        sources = [pipe for name in names for pipe in blocks.get(name, blocks_here[name])]
        state = _renumbered(state, blocks, blocks_here, end)
        if listing is not None:
            _require_one_listing_each(listing, options["pipes"], added)
            known = dict(zip(options["pipes"], listing, strict=True))
            listing = [known.get(name, {}) for name in names]
    mixture = {**current, "seed": options["seed"], "stop": options["stop"]}
    return {**state, "chain": [*sources, _described(mixture), *chain[end + 1 :]], "listing": listing}


def _last_mixture(chain: Sequence[str]) -> tuple[int, dict[str, Any]] | None:
    """The mixture that is no source of another one: its place in a chain, and its options."""
    for index in reversed(range(len(chain))):
        if chain[index].startswith("Mixed("):
            found = parsed(chain[index])
            return None if found is None else (index, found[1])
    return None


def _described(options: Mapping[str, Any]) -> str:
    return f"Mixed({', '.join(f'{name}={value!r}' for name, value in options.items())})"


def _blocks(pipes: Sequence[str], sizes: Mapping[str, int]) -> dict[str, Sequence[str]]:
    """Split the pipes of all sources into those of each."""
    if sum(sizes.values()) != len(pipes):
        raise StateError("A source was added to a mixture whose sources share pipes. Build a chain for each source.")
    blocks, start = {}, 0
    for name, size in sizes.items():
        blocks[name], start = pipes[start : start + size], start + size
    return blocks


def _renumbered(
    state: Mapping[str, Any], before: Mapping[str, Sequence[str]], here: Mapping[str, Sequence[str]], end: int
) -> State:
    """Give the marks of a state the numbers that its pipes have among those of further sources.

    Args:
        state: to change.
        before: name of each source in the state -> its pipes.
        here: the same of all sources.
        end: number of the mixture in the state.
    """
    old = [(name, at) for name, pipes in before.items() for at in range(len(pipes))]
    new = {key: number for number, key in enumerate((name, at) for name in here for at in range(len(here[name])))}

    def marks_of(marks: Sequence[Any]) -> list[Any]:
        return [[new[old[number]] if number < end else number - end + len(new), *rest] for number, *rest in marks]

    def share_of(number: int, count: int, *cuts: Sequence[Any]) -> list[Any]:
        return [number, count, *([marks_of(marks), *parts] for marks, *parts in cuts)]

    rows = [
        [
            number,
            {**place, "marks": marks_of(place["marks"])} if isinstance(place, Mapping) else place,
            *(share_of(*share) for share in shares),
        ]
        for number, place, *shares in state["streams"]
    ]
    return {**state, "streams": rows}


def _require_one_listing_each(listing: Sequence[Any], names: Mapping[str, int], added: Sequence[str]) -> None:
    if len(listing) != len(names):
        raise StateError(
            f"The source {added[0]!r} was added to a mixture, and the state has {len(listing)} listings of its "
            f"{len(names)} sources. Sources can be added where each has one listing, or at the start of an epoch."
        )
