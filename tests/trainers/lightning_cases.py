"""Trainings of Lightning that are stopped in mid-epoch and resumed."""

from __future__ import annotations

STOP_AFTER, BATCH_SIZE = 5, 4  # batches
UNEVEN = "single samples"
"""Three ranks have different numbers of batches left of what two have saved."""
IN_THREE = ("length", "no length, workers", "PrefetchingLoader")
"""Those that three ranks resume."""
AT_END = "epoch end"
NUM_BATCHES = 15  # of an epoch of two ranks
CASES = (
    *IN_THREE,
    "no length, validation, threads",
    f"length, {AT_END}",
    f"no length, {AT_END}",
    f"max_steps, {AT_END}",
)
"""Checkpoints in mid-epoch, by ``ModelCheckpoint(every_n_train_steps=...)``, and at the end of an epoch."""


def stop_of(case: str) -> int:
    """After how many batches of a rank the checkpoint of a case is saved."""
    return NUM_BATCHES if AT_END in case else STOP_AFTER
