"""Loaders whose state can be saved after any batch and loaded in any world."""

from .loader import StatefulLoader
from .resumable import Resumable
from .state.state_format import merge_states
from .stateful_loader import stateful_loader

__all__ = ["Resumable", "StatefulLoader", "merge_states", "stateful_loader"]
