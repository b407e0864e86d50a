"""Adapters to training frameworks, one module each; frameworks are optional and imported on first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .lightning import LightningResume
    from .transformers import RemoteTrainerMixin

__all__ = ["LightningResume", "RemoteTrainerMixin"]


def __getattr__(name: str) -> Any:
    """Import a name of ``__all__`` on first use: the loaders import adapters of this package, and these the loaders."""
    homes = {"LightningResume": ".lightning", "RemoteTrainerMixin": ".transformers"}
    if name in homes:
        return getattr(import_module(homes[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
