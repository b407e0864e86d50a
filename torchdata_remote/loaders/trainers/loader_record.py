"""Store the position of all processes' loaders in a checkpoint folder of the transformers ``Trainer``."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...errors import StateError
from ..state.state_format import ALL_RANKS, check_state

LOADER_FILE = "torchdata_remote.json"
STATE_FILE = "trainer_state.json"  # of Trainer, which writes it after the record

Record = dict[str, Any]


def write_record(folder: Path, record: Record) -> None:
    """Write a record atomically."""
    new = folder / f"{LOADER_FILE}.new"
    new.write_text(json.dumps(record))
    os.replace(new, folder / LOADER_FILE)


def read_record(folder: Path) -> tuple[Record, int]:
    """Read the record of a checkpoint, and the number of optimizer steps before it.

    Raises:
        StateError: if the checkpoint has no record, or a file of it is damaged; names the file, and the newest complete
            checkpoint in the same folder.
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
        content: dict[str, Any] = json.loads((folder / name).read_text())
        check(content)
    except FileNotFoundError as error:
        raise StateError(
            f"{error.filename}: this checkpoint of the transformers Trainer does not contain the loader's position. "
            "Either saving was interrupted, or it was saved by a Trainer without RemoteTrainerMixin, or with "
            f"save_only_model=True. {_advice(folder)}"
        ) from error
    except (ValueError, KeyError, TypeError) as error:  # ValueError: no JSON, no UTF-8, no state
        raise StateError(f"{folder / name} is damaged ({type(error).__name__}: {error}). {_advice(folder)}") from error
    return content


def _check_record(record: Any) -> None:
    check_state(json.loads(record["loader"][ALL_RANKS]))


def _check_number(content: Any, key: str) -> None:
    number = content[key] if isinstance(content, Mapping) else None
    if not isinstance(number, int) or number < 0:
        raise ValueError(f"expected an object with a number {key!r}")


def _advice(folder: Path) -> str:
    complete = [
        other
        for other in folder.absolute().parent.glob("checkpoint-*")
        if (other / LOADER_FILE).exists() and (other / STATE_FILE).exists() and other != folder.absolute()
    ]
    newest = max(complete, key=_number_of, default=None)
    if newest is None:
        return "Resume from another checkpoint, or begin anew."
    return f"Resume from the newest complete one, resume_from_checkpoint={str(newest)!r}, or begin anew."


def _number_of(folder: Path) -> int:
    number = folder.name.rpartition("-")[2]
    return int(number) if number.isdecimal() else -1
