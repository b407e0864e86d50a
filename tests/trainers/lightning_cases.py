"""Trainings of Lightning that are stopped in mid-epoch and resumed."""

from __future__ import annotations

STOP_AFTER, BATCH_SIZE = 5, 4  # batches
UNEVEN = "single samples"
"""Three ranks have different numbers of batches left of what two have saved."""
STATELESS = "DataLoader(pipe)"
IN_THREE = ("length", "no length, workers", "PrefetchingLoader")
"""Those that three ranks resume."""
CASES = (*IN_THREE, "no length, validation, threads", "two loaders")
"""Checkpoints in mid-epoch, by ``ModelCheckpoint(every_n_train_steps=...)``."""
