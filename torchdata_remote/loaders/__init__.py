"""Loaders whose state can be saved after any batch and loaded in any world."""

from .fronts import stateful_loader, thread_loader
from .loader import StatefulLoader, ThreadLoader
from .map_style_loader import PrefetchingLoader
from .mix_counts import MixPhase, MixReport, mix_report
from .resumable import Resumable
from .state.state_format import merge_states
from .trainers.nodes import merge_node_states, to_node

__all__ = [
    "MixPhase",
    "MixReport",
    "PrefetchingLoader",
    "Resumable",
    "StatefulLoader",
    "ThreadLoader",
    "merge_node_states",
    "merge_states",
    "mix_report",
    "stateful_loader",
    "thread_loader",
    "to_node",
]
