"""Warn of a framework that reads batches ahead of the training, where a state is of what was handed out."""

from __future__ import annotations

import sys
import warnings

LIGHTNING_LINE = "LightningResume() of torchdata_remote.loaders.trainers to Trainer(callbacks=[...])"
_LINES = {
    "ray.train": "loader.trained(number) after each step",
    "lightning.pytorch": LIGHTNING_LINE,
    "pytorch_lightning": LIGHTNING_LINE,
}


def missing_line() -> str | None:
    """The line that a script needs if a framework that reads ahead has called the caller of this."""
    module = str(sys._getframe(2).f_globals.get("__name__"))
    return next((line for package, line in _LINES.items() if module.startswith(package)), None)


def warn_of_missing_line(line: str) -> None:
    """Warn of a state that may be ahead of the training."""
    warnings.warn(
        f"The framework that reads this loader may be a batch ahead of the training, which a resume would leave out: "
        f"add {line}.",
        RuntimeWarning,
        stacklevel=3,
    )
