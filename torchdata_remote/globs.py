"""Globs over paths."""

from __future__ import annotations

import fnmatch
import re

_GLOB = re.compile(r"[*?\[]")


def glob_start(path: str) -> int | None:
    """Index of the first glob character (``*``, ``?``, ``[``) in a path, or ``None``."""
    match = _GLOB.search(path)
    return match.start() if match else None


def glob_regex(pattern: str) -> re.Pattern[str]:
    """A glob as a regular expression over a whole path.

    ``*`` and ``?`` stay within a folder, ``**`` crosses folders, ``[abc]`` and ``[!abc]`` are one character.

    >>> bool(glob_regex("t-*.tar").fullmatch("t-1.tar")), bool(glob_regex("*.tar").fullmatch("a/t.tar"))
    (True, False)
    """
    out, i = "", 0
    while i < len(pattern):
        if pattern.startswith("**/", i):
            out, i = out + "(?:.*/)?", i + 3
        elif pattern.startswith("**", i):
            out, i = out + ".*", i + 2
        elif pattern[i] == "*":
            out, i = out + "[^/]*", i + 1
        elif pattern[i] == "?":
            out, i = out + "[^/]", i + 1
        elif pattern[i] == "[" and (close := pattern.find("]", i + (3 if pattern[i + 1 : i + 2] == "!" else 2))) > 0:
            one = fnmatch.translate(pattern[i : close + 1])  # "(?s:...)" and an end of string
            out, i = out + "(?!/)" + one[4 : one.rindex(")")], close + 1
        else:
            out, i = out + re.escape(pattern[i]), i + 1
    return re.compile(out, re.DOTALL)
