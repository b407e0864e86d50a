"""States of mixtures whose weights have changed, or that got further sources, since the state was saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import StateError
from .chain_options import parsed

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
