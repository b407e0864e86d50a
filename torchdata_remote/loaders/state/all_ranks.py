"""The state of all ranks as one string of JSON, which checkpoints hold whole; and the states that a user loads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ...errors import StateError
from .state_format import State

ALL_RANKS = "all_ranks"
AGAIN = "again"  # beside it: Lightning's epoch has had a whole pass before this one


def given_states(given: Any) -> list[State]:
    """The states in what ``load_state_dict`` was given.

    Args:
        given: one state, of a rank or of all ranks, or a list of such. A ``"listing"`` beside the state of all ranks
            takes the place of the one in it.

    Raises:
        StateError: for what is no state, or is cut off.
    """
    if isinstance(given, (str, bytes)) or not isinstance(given, (Mapping, Sequence)):
        raise StateError(
            f"Expected a state, as state_dict() gave it, or a list of such; got {type(given).__name__}: {given!r:.200}"
        )
    return list(map(_state, [given] if isinstance(given, Mapping) else given))


def _state(given: Any) -> State:
    if not isinstance(given, Mapping):
        raise StateError(f"Expected a state, a dict; got {type(given).__name__}: {given!r:.200}")
    if ALL_RANKS not in given:
        return dict(given)
    text = given[ALL_RANKS]
    try:
        state = json.loads(text)
    except (TypeError, ValueError) as error:
        raise StateError(
            f"The state of all ranks is damaged ({error}): its {ALL_RANKS!r} is {text!r:.100}. Load another checkpoint."
        ) from error
    if not isinstance(state, dict):
        raise StateError(f"The state of all ranks is damaged: its {ALL_RANKS!r} is {text!r:.100}. Load another one.")
    return {**state, "listing": given["listing"]} if "listing" in given else state
