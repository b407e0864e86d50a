"""Paths of this machine that are given instead of URLs."""

from __future__ import annotations

import os
from collections.abc import Callable

from ..errors import UrlError
from .chained_urls import without_chain
from .url_mistakes import mistake_in


def local_path(path: str, redact: Callable[[str], str]) -> str:
    """Make a local path absolute; refuse one that was meant as something else.

    Args:
        path: has no scheme.
        redact: removes credentials from what an error shows.

    Raises:
        UrlError: says what it may have been meant as.
    """
    if not path or "\0" in path:
        raise UrlError(f"{redact(path)!r} is neither a URL (scheme://bucket/path) nor a local path.")
    if mistake := without_chain(path, redact) or mistake_in(path, redact):
        raise UrlError(mistake)
    trailing = "/" if path.endswith(("/", os.sep)) else ""
    return os.path.abspath(os.path.expanduser(path)).rstrip("/") + trailing
