"""Chains that stop anywhere and go on, in any world."""

from .loader import StatefulLoader, stateful_loader
from .resumable import Resumable
from .states import merge_states

__all__ = ["Resumable", "StatefulLoader", "merge_states", "stateful_loader"]
