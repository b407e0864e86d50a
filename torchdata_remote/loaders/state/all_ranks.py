"""The state of all ranks as one string of JSON, and the states in an argument of ``load_state_dict``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import StateError
from .state_format import State, check_state

ALL_RANKS = "all_ranks"
CYCLED = "again"
"""Key beside ``ALL_RANKS``, if Lightning's epoch had read a whole pass of the loader before this one."""


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
