"""Check options that ``DataLoader`` takes, before torch does, and convert them: torch compares types.

Its errors name neither the caller nor what to write; ``drop_last=1`` is refused, and a ``Decimal`` fails in a queue.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from .amounts import seconds, whole, whole_or_none
from .check import flag, flag_or_none, marked, shown
from .suggestions import did_you_mean

_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "batch_size": whole_or_none,
    "drop_last": flag,
    "in_order": flag,
    "num_workers": partial(whole, at_least=0),
    "persistent_workers": flag,
    "pin_memory": flag_or_none,
    "prefetch_factor": whole_or_none,
    "timeout": partial(seconds, positive=False),
}


def converted(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of ``DataLoader`` with Python's numbers and flags; options of other kinds as they are.

    Raises:
        TypeError, ValueError: for the first one that is wrong; says what to write.
    """
    return {name: _CHECKS[name](name, value) if name in _CHECKS else value for name, value in options.items()}


def check_start_method(context: Any) -> None:
    """Check a ``multiprocessing_context``: the name of a start method, or a context.

    Raises:
        TypeError, ValueError: with the names of this platform.
    """
    if isinstance(context, str):
        methods = multiprocessing.get_all_start_methods()
        # stateful_loader replaces it by "spawn" on Windows
        if context not in {*methods, "forkserver"}:
            raise marked(
                ValueError(
                    f"multiprocessing_context must be one of {', '.join(map(repr, methods))}, got {context!r}"
                    + (did_you_mean(context, methods) or ".")
                )
            )
    elif not hasattr(context, "Process"):
        raise marked(TypeError(f"multiprocessing_context must be a str such as 'forkserver', got {shown(context)}."))
