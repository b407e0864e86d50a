"""Trainings of Lightning that are stopped in mid-epoch and resumed."""

from __future__ import annotations

STOP_AFTER, BATCH_SIZE = 5, 4  # batches
UNEVEN = "single samples"
"""Three ranks have different numbers of batches left of what two have saved."""
STATELESS = "DataLoader(pipe)"
ONE_LOADER = (
    "length",
    "no length",
    "no length, workers",
    "no length, validation",
    "no length, accumulated, threads",
    "length, reloaded, threads",
    "PrefetchingLoader",
)
CASES = (*ONE_LOADER, "two loaders", "no length, limited")
"""Checkpoints in mid-epoch, by ``ModelCheckpoint(every_n_train_steps=...)``."""
IN_THREE = ("length", "no length", "no length, workers", "PrefetchingLoader")
"""Those that three ranks resume."""
