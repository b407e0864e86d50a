"""The state of a pass over streams: its format, its checks, and merging."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ...core.arguments.calls import explained
from ...core.world import World
from ...errors import StateError
from .chain_options import differing_options
from .fingerprints import difference

VERSION = 2
ENDED = "ended"

State = dict[str, Any]
_FIELDS = ("version", "chain", "listing", "epoch", "num_streams", "streams")


def make_state(
    chain: Sequence[str],
    listing: Sequence[Mapping[str, Any]] | None,
    epoch: int,
    num_streams: int,
    streams: Mapping[int, Any],
) -> State:
    """Make a state: plain JSON, of lists rather than dicts, which ``StatefulDataLoader`` would traverse for each batch.

    Args:
        chain: each pipe's name with the options on which its order depends.
        listing: fingerprints of the listings; ``None`` if nothing was listed.
        epoch: of the pass.
        num_streams: in the whole world.
        streams: position of each stream of this process: ``None`` at the beginning, ``"ended"``, or the number of items
            that were handed out with the position of the chain.
    """
    return {
        "version": VERSION,
        "chain": list(chain),
        "listing": None if listing is None else list(listing),
        "epoch": epoch,
        "num_streams": num_streams,
        "streams": [[number, streams[number]] for number in sorted(streams)],
    }


def check_state(state: Any) -> None:
    """Check that this is a state of this version.

    Raises:
        StateError: if it is not, or if it is damaged.
    """
    if isinstance(state, Mapping) and state.get("version", VERSION) != VERSION:
        raise StateError(
            f"The state has version {state['version']!r}, this package reads version {VERSION}. Install the release of "
            "torchdata_remote that wrote it, or a later one."
        )
    if not isinstance(state, Mapping) or not all(field in state for field in _FIELDS):
        fields = ", ".join(_FIELDS)
        raise StateError(f"Expected a state with {fields}; got {type(state).__name__}: {state!r:.200}")
    for name, is_valid in _FIELD_CHECKS.items():
        if name in state and not is_valid(state[name]):
            raise StateError(f"The state is damaged: its {name} is {state[name]!r:.200}. Load another one.")
    numbers = [number for number, _ in state["streams"]]
    if len(set(numbers)) < len(numbers) or max(numbers, default=-1) >= state["num_streams"]:
        raise StateError(
            f"The state is damaged: of {state['num_streams']} streams, each at most once, it has the numbers "
            f"{sorted(numbers)!r:.200}. Load another one."
        )


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _are(rows: object, is_valid: Callable[[Any], bool]) -> bool:
    return isinstance(rows, (list, tuple)) and all(map(is_valid, rows))


def _is_stream(row: object) -> bool:
    return isinstance(row, (list, tuple)) and len(row) == 2 and _is_number(row[0]) and _is_position(row[1])


def _is_position(value: object) -> bool:
    if isinstance(value, Mapping):
        return "at" in value and _is_number(value.get("passed"))
    return value is None or value == ENDED


_FIELD_CHECKS: dict[str, Callable[[Any], bool]] = {
    "chain": lambda chain: _are(chain, lambda pipe: isinstance(pipe, str)),
    "listing": lambda listing: listing is None or _are(listing, lambda known: isinstance(known, Mapping)),
    "epoch": _is_number,
    "num_streams": _is_number,
    "streams": lambda streams: _are(streams, _is_stream),
    "turns": lambda turns: _are(turns, lambda turn: _are(turn, _is_number) and len(turn) == 4),
}


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


def begin_next_epoch(state: State, *, keep_listing: bool = False) -> State:
    """Make the state after a pass that has ended in all slots.

    Args:
        state: of the pass.
        keep_listing: whether the next epoch reads the listing of this one. Otherwise it lists again, and the state has
            no fingerprints.
    """
    streams = dict.fromkeys(number for number, _ in state["streams"])
    listing = state["listing"] if keep_listing else None
    return make_state(state["chain"], listing, state["epoch"] + 1, state["num_streams"], streams)


def state_of_rank(state: State, world: World) -> State:
    """Select the streams of one rank, for any number of workers: stream *v* belongs to rank *v* % world size."""
    streams = [row for row in state["streams"] if row[0] % world.world_size == world.rank]
    return {**state, "streams": streams}


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
    first = all_states[0]
    epoch = min(state["epoch"] for state in all_states)
    listing = next((state["listing"] for state in all_states if state["listing"] is not None), None)
    streams: dict[int, Any] = {}
    advice = "Merge states of one training only."
    for state in all_states:
        if differing := differing_options(first["chain"], state["chain"], ("is", "and in another state")):
            raise StateError(f"The states are of chains with other options. {'; '.join(differing)}. {advice}")
        check_same("chain", state["chain"], first["chain"], advice)
        check_same("number of streams", state["num_streams"], first["num_streams"], advice)
        if state["listing"] is not None:
            check_same_listing(listing or (), state["listing"], advice)
        for number, position in _in_epoch(state, epoch).items():
            if number in streams:
                raise StateError(f"Stream {number} is in two of the states. Merge each rank's state once, of one step.")
            streams[number] = position
    merged = make_state(first["chain"], listing, epoch, first["num_streams"], streams)
    turns = sorted(turn for state in all_states for turn in state.get("turns", []))
    if turns:
        merged["turns"] = turns
    return merged


def _in_epoch(state: Mapping[str, Any], epoch: int) -> dict[int, Any]:
    """The positions of a state's streams in an epoch; ended, if the state is the start of the next one."""
    streams = dict(state["streams"])
    if state["epoch"] == epoch:
        return streams
    if state["epoch"] > epoch + 1 or any(at is not None for at in streams.values()):
        raise StateError(
            f"One state is in epoch {epoch}, another one has begun epoch {state['epoch']}. Save the states of all "
            "ranks at the same step; equalize_ranks() keeps ranks in the same epoch."
        )
    return dict.fromkeys(streams, ENDED)
