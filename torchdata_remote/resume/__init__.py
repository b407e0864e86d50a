"""Chains that stop anywhere and go on, in any world."""

from .loader import StatefulLoader
from .resumable import Resumable
from .stateful_loader import stateful_loader
from .states import merge_states

__all__ = ["Resumable", "StatefulLoader", "merge_states", "stateful_loader"]
