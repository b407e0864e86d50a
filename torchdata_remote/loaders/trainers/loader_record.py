"""The file in a checkpoint folder of the transformers ``Trainer`` that holds the place of all processes' loaders."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...errors import StateError
from ..state.all_ranks import ALL_RANKS
from ..state.state_format import check_state

LOADER_FILE = "torchdata_remote.json"
STATE_FILE = "trainer_state.json"  # of Trainer, which writes it later

Record = dict[str, Any]


def write_record(folder: Path, record: Record) -> None:
    """Store a record, whole or not at all."""
    new = folder / f"{LOADER_FILE}.new"
    new.write_text(json.dumps(record))
    os.replace(new, folder / LOADER_FILE)


def read_record(folder: Path) -> tuple[Record, int]:
    """The record of a checkpoint, and the optimizer steps that were done when it was saved.

    Raises:
        StateError: if the checkpoint has no record, or a file of it is damaged; names the file, and the newest
            checkpoint beside it that is whole.
    """
    record = _read(folder, LOADER_FILE, _check_record)
    state = _read(folder, STATE_FILE, lambda state: _check_number(state, "global_step"))
    if record.get("global_step", state["global_step"]) != state["global_step"]:
        raise StateError(
            f"{folder / STATE_FILE}: it counts {state['global_step']} steps, and {LOADER_FILE} was saved after "
            f"{record['global_step']}: they are of different checkpoints. {_advice(folder)}"
        )
    return record, state["global_step"]


def _read(folder: Path, name: str, check: Callable[[Any], None]) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((folder / name).read_text())
        check(found)
    except FileNotFoundError as error:
        raise StateError(
            f"{error.filename}: this checkpoint of the transformers Trainer does not hold the place of the loader. "
            "Either its save was cut off, or it was saved by a Trainer without RemoteTrainerMixin, or with "
            f"save_only_model=True. {_advice(folder)}"
        ) from error
    except (ValueError, KeyError, TypeError) as error:  # ValueError: no JSON, no UTF-8, no state
        raise StateError(f"{folder / name} is damaged ({type(error).__name__}: {error}). {_advice(folder)}") from error
    return found


def _check_record(record: Any) -> None:
    check_state(json.loads(record["loader"][ALL_RANKS]))


def _check_number(found: Any, key: str) -> None:
    number = found[key] if isinstance(found, Mapping) else None
    if not isinstance(number, int) or number < 0:
        raise ValueError(f"expected an object with a number {key!r}")


def _advice(folder: Path) -> str:
    whole = [
        other
        for other in folder.absolute().parent.glob("checkpoint-*")
        if (other / LOADER_FILE).exists() and (other / STATE_FILE).exists() and other != folder.absolute()
    ]
    newest = max(whole, key=_number_of, default=None)
    if newest is None:
        return "Resume from another checkpoint, or begin anew."
    return f"Resume from the newest one that is whole, resume_from_checkpoint={str(newest)!r}, or begin anew."


def _number_of(folder: Path) -> int:
    number = folder.name.rpartition("-")[2]
    return int(number) if number.isdecimal() else -1
