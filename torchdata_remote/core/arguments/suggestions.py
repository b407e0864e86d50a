"""Suggest the name that was probably meant."""

from __future__ import annotations

from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the known name that is nearest to ``name``, or ``""`` if none is near.

    Example:
        >>> did_you_mean("patern", ["pattern", "recursive"]), did_you_mean("x", ["pattern"])
        ("; did you mean 'pattern'?", '')
    """
    from difflib import get_close_matches  # needed in errors only

    by_folded = {_folded(other): other for other in known}
    nearest = get_close_matches(_folded(name), by_folded, n=1, cutoff=0.6)
    return f"; did you mean {by_folded[nearest[0]]!r}?" if nearest else ""


def _folded(name: str) -> str:
    """Return the name without what differs between the spellings of one word: case and underscores."""
    return name.lower().replace("_", "").replace("-", "")
