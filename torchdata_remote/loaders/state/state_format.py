"""The state of a pass over streams: its format, its checks, merging, and that of all ranks as one text."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from operator import itemgetter
from typing import Any

from ...core.arguments import explained
from ...errors import StateError
from .chain_options import differing_options
from .fingerprints import difference

VERSION = 4
ENDED = "ended"

State = dict[str, Any]
Row = list[Any]
"""A stream in a state: number, place, and the share of the data if that is not the one of its number."""
_FIELDS = ("version", "chain", "listing", "epoch", "num_streams", "streams", "digest")


def make_state(
    chain: Sequence[str],
    listing: Sequence[Mapping[str, Any]] | None,
    epoch: int,
    num_streams: int,
    streams: Iterable[Row],
    turns: Sequence[Sequence[int]] = (),
) -> State:
    """Make a state: plain JSON, of lists rather than dicts, which ``StatefulDataLoader`` would traverse for each batch.

    Args:
        chain: each pipe's name with the options on which its order depends.
        listing: fingerprints of the listings; ``None`` if nothing was listed.
        epoch: of the pass.
        num_streams: in the whole world.
        streams: those of this process. Their places are ``None`` at the beginning, ``"ended"``, or the number of items
            that were handed out, the position of the chain, and the marks of its pipes.
        turns: of each rank: rank, ranks, workers, and the worker whose batch is next.
    """
    state = {
        "version": VERSION,
        "chain": list(chain),
        "listing": None if listing is None else list(listing),
        "epoch": epoch,
        "num_streams": num_streams,
        "streams": sorted(streams, key=itemgetter(0)),
        **({"turns": sorted(map(list, turns))} if turns else {}),
    }
    made: State = json.loads(json.dumps(state))  # as it comes back from a checkpoint, with lists for tuples
    return {**made, "digest": "-".join(_digests(made))}


def _digests(state: Mapping[str, Any]) -> list[str]:
    """The digests of what a state holds: one that was cut, edited or put together of two is noticed.

    That of the listing is a second one, because a user may set the listing to ``None``.
    """
    content = {name: value for name, value in state.items() if name not in ("listing", "digest")}
    parts = [content, *([] if state["listing"] is None else [state["listing"]])]
    return [blake2b(json.dumps(part, sort_keys=True).encode(), digest_size=8).hexdigest() for part in parts]


def check_state(state: Any) -> None:
    """Check that this is a state of this version.

    Raises:
        StateError: if it is not, or if it is damaged.
    """
    if isinstance(state, Mapping) and state.get("version", VERSION) != VERSION:
        raise StateError(
            f"The state has version {state['version']!r}, this package reads version {VERSION}. Resume with the "
            "release of torchdata_remote that wrote it, train to the end of the epoch there, and begin the next one "
            "here by set_epoch()."
        )
    if not isinstance(state, Mapping) or not all(field in state for field in _FIELDS):
        fields = ", ".join(_FIELDS)
        raise StateError(f"Expected a state with {fields}; got {type(state).__name__}: {state!r:.200}")
    try:
        found, saved = _digests(state), state["digest"].split("-")
        is_whole = found == saved[: 1 if state["listing"] is None else None]
    except (AttributeError, TypeError, ValueError):
        is_whole = False
    if not is_whole:
        raise StateError("The state is damaged: it differs from its digest. Load another one.")


def check_same(what: str, in_state: Any, here: Any, advice: str) -> None:
    """Compare a value of the state with the current one.

    Raises:
        StateError: if they differ; names both.
    """
    if in_state != here:
        raise StateError(f"The state has the {what} {in_state}, here it is {here}. {advice}")


def check_same_chain(in_state: Sequence[str], here: Sequence[str]) -> None:
    """Compare the chain of the state with the current one.

    Raises:
        StateError: if they differ; names the options that do, or both chains if their pipes differ.
    """
    advice = "Build the chain as it was, or begin anew."
    if differing := differing_options(in_state, here, ("was", "is")):
        raise StateError(f"The state is of a chain with other options. {'; '.join(differing)}. {advice}")
    check_same("chain", list(in_state), list(here), advice)


def check_same_listing(
    in_state: Sequence[Mapping[str, Any]],
    here: Sequence[Mapping[str, Any]],
    advice: str,
    *,
    names: Callable[[int], Sequence[str]] = lambda number: (),
) -> None:
    """Refuse a state of other objects. Compares the fields that both fingerprints have.

    Args:
        in_state: fingerprints of the listings when the state was saved.
        here: fingerprints of the current listings.
        advice: what to do.
        names: returns the sorted URLs of a current listing, by its number; empty if unknown.

    Raises:
        StateError: names objects that differ, and how: the state's value before the current one.
    """
    if len(in_state) != len(here):
        raise StateError(f"The state has {len(in_state)} listings, here are {len(here)}. {advice}")
    for number, (first, second) in enumerate(zip(in_state, here, strict=True)):
        if first and second and difference(first, second) is not None:  # empty for a further source of a mixture
            differs = difference(first, second, names(number))
            raise StateError(f"The listing of the state is another one than here: {differs}. {advice}")


def begin_next_epoch(state: State, num_streams: int, own: Iterable[int], *, keep_listing: bool = False) -> State:
    """Make the state after a pass that has ended in all slots.

    Args:
        state: of the pass.
        num_streams: of the next one, in the whole world.
        own: those of this rank.
        keep_listing: whether the next epoch reads the listing of this one. Otherwise it lists again, and the state has
            no fingerprints.
    """
    listing = state["listing"] if keep_listing else None
    return make_state(state["chain"], listing, state["epoch"] + 1, num_streams, [[number, None] for number in own])


def states_to_merge(states: Any) -> list[Any]:
    """Return the states that a function merges, as a list.

    Raises:
        StateError: if they are not in a list, or none.
    """
    if isinstance(states, Mapping | str | bytes) or not isinstance(states, Iterable):
        advice = " Write [state]." if isinstance(states, Mapping) else ""
        raise StateError(f"Expected a list of states, one of each rank, got {type(states).__name__}.{advice}")
    found = list(states)
    if not found:
        raise StateError("There is no state to merge.")
    return found


@explained
def merge_states(states: Iterable[Mapping[str, Any]]) -> State:
    """Merge the states of all ranks, or of all workers, into one.

    Args:
        states: results of ``stateful_loader(...).state_dict()`` or ``Resumable.state_dict()``, at the same step of all
            ranks, in any order.

    Returns:
        A state that each rank of any world can load.

    Raises:
        StateError: if they are of different chains, listings, numbers of streams or epochs, or if a stream is in two of
            them.

    Example:
        >>> from torchdata_remote import Resumable, merge_states
        >>> state = Resumable(IterableWrapper(["memory://d/0.tar"]).async_prefetch()).state_dict()
        >>> merge_states([state]) == state
        True
    """
    all_states = states_to_merge(states)
    for state in all_states:
        check_state(state)
    first = min(all_states, key=itemgetter("epoch"))
    epoch = first["epoch"]
    listing = next((state["listing"] for state in all_states if state["listing"] is not None), None)
    streams: dict[int, Row] = {}
    advice = "Merge states of one training only."
    for state in all_states:
        if differing := differing_options(first["chain"], state["chain"], ("is", "and in another state")):
            raise StateError(f"The states are of chains with other options. {'; '.join(differing)}. {advice}")
        check_same("chain", state["chain"], first["chain"], advice)
        if state["epoch"] == epoch:
            check_same("number of streams", state["num_streams"], first["num_streams"], advice)
        if state["listing"] is not None:
            check_same_listing(listing or (), state["listing"], advice)
        for row in _in_epoch(state, epoch, first["num_streams"]):
            if row[0] in streams:
                raise StateError(f"Stream {row[0]} is in two of the states. Merge each rank's state once, of one step.")
            streams[row[0]] = row
    turns = [turn for state in all_states for turn in state.get("turns", [])]
    num_ended = sum(state["num_streams"] != first["num_streams"] for state in all_states)
    if num_ended:  # they begin the next epoch with other streams, and have read those that no other rank has
        if num_ended + len({rank for rank, *_ in turns}) != max((turn[1] for turn in turns), default=0):
            raise StateError("Ranks have ended the epoch, and states of others are missing. Merge those of all ranks.")
        streams = {number: streams.get(number, [number, ENDED]) for number in range(first["num_streams"])}
    return make_state(first["chain"], listing, epoch, first["num_streams"], streams.values(), turns)


def _in_epoch(state: Mapping[str, Any], epoch: int, num_streams: int) -> Iterable[Row]:
    """The rows of a state's streams in an epoch; ended, if the state is the start of the next one.

    None if that has other streams: those of the epoch were divided, in more ranks than saved it.
    """
    if state["epoch"] == epoch:
        return list(state["streams"])
    if state["epoch"] > epoch + 1 or any(row[1] is not None for row in state["streams"]):
        raise StateError(
            f"One state is in epoch {epoch}, another one has begun epoch {state['epoch']}. Save the states of all "
            "ranks at the same step; equalize_ranks() keeps ranks in the same epoch."
        )
    rows = [[number, ENDED, *share] for number, _, *share in state["streams"]]
    return rows if state["num_streams"] == num_streams else ()


ALL_RANKS = "all_ranks"


def states_in(argument: Any) -> list[State]:
    """Check and unpack an argument of ``load_state_dict``.

    Args:
        argument: one state, of a rank or of all ranks, or a list of them. A ``"listing"`` beside the state of all ranks
            replaces the one in it.

    Raises:
        StateError: for another type, or JSON that is cut off.
    """
    if isinstance(argument, (str, bytes)) or not isinstance(argument, (Mapping, Sequence)):
        raise StateError(
            f"Expected a state, as returned by state_dict(), or a list of states; got {type(argument).__name__}: "
            f"{argument!r:.200}"
        )
    return list(map(_state_in, [argument] if isinstance(argument, Mapping) else argument))


def _state_in(argument: Any) -> State:
    if not isinstance(argument, Mapping):
        raise StateError(f"Expected a state, a dict; got {type(argument).__name__}: {argument!r:.200}")
    if ALL_RANKS not in argument:
        check_state(argument)
        return dict(argument)
    text = argument[ALL_RANKS]
    try:
        state = json.loads(text)
    except (TypeError, ValueError) as error:
        raise StateError(
            f"The state of all ranks is damaged ({error}): its {ALL_RANKS!r} is {text!r:.100}. Load another checkpoint."
        ) from error
    if not isinstance(state, dict):
        raise StateError(
            f"The state of all ranks is damaged: its {ALL_RANKS!r} is {text!r:.100}. Load another checkpoint."
        )
    return {**state, "listing": argument["listing"]} if "listing" in argument else state
