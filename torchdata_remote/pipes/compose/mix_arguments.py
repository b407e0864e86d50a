"""Check the sources of ``mix``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ...core.arguments import check
from ...core.arguments.amounts import real


def weights_of(sources: Any) -> dict[str, float]:
    """Check the sources of :func:`mix`, and return their weights.

    Raises:
        TypeError, ValueError: for another form; says which one is expected.
    """
    expected = "sources must be a dict {name: (pipe, weight)}"
    if not isinstance(sources, Mapping):
        raise check.marked(TypeError(f"{expected}, got {check.a_kind(sources)}."))
    for name, pair in sources.items():
        if not isinstance(name, str):
            raise check.marked(TypeError(f"{expected}, got the name {check.shown(name)}."))
        if not (isinstance(pair, tuple | list) and len(pair) == 2):
            shown = f"{len(pair)} values" if isinstance(pair, tuple | list) else check.a_kind(pair)
            raise check.marked(TypeError(f"{expected}, got {shown} under {name!r}. Write (pipe, 1.0)."))
        if real(f"the weight of {name!r}", pair[1]) == math.inf:
            raise check.marked(ValueError(f"the weight of {name!r} must be finite, got inf"))
    if not sources:
        raise check.marked(ValueError(f"{expected}, got nothing."))
    return {name: float(weight) for name, (_, weight) in sources.items()}
