"""Warn of a framework that reads batches ahead of the training, where a state is of what was handed out."""

from __future__ import annotations

import sys
import warnings

LIGHTNING_LINE = "LightningResume() of torchdata_remote.loaders.trainers to Trainer(callbacks=[...])"
_LINES = {
    "ray.train": ("Ray Train", "loader.trained(number) after each step"),
    "lightning.pytorch": ("Lightning", LIGHTNING_LINE),
    "pytorch_lightning": ("Lightning", LIGHTNING_LINE),
}


class Reader:
    """What has started a pass: the module that calls the ``__iter__`` which makes this."""

    def __init__(self) -> None:
        module = str(sys._getframe(2).f_globals.get("__name__"))
        self._line = next((line for package, line in _LINES.items() if module.startswith(package)), None)

    def warn(self) -> bool:
        """Warn if it reads ahead; return whether it does. Called where the loader was not told what was trained on."""
        if self._line is None:
            return False
        name, line = self._line
        warnings.warn(
            f"{name} may have read batches ahead, which a resume would leave out: add {line}.",
            RuntimeWarning,
            stacklevel=3,
        )
        return True
