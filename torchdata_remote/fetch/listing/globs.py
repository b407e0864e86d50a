"""Globs over paths."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator

from ...core.object_version import version_start

# A literal character alone in brackets (as by glob.escape), or a character that may be a pattern
_TOKEN = re.compile(r"\[([*?\[{}])\]|[*?\[{}]")


def unescape(path: str) -> str:
    """Replace each escaped character by itself.

    >>> unescape("[*]a[[]1]")
    '*a[1]'
    """
    return _TOKEN.sub(lambda token: token[1] or token[0], path)


def marks(path: str) -> Iterator[tuple[int, str]]:
    """Yield index and character of each unescaped character that may be part of a glob or a brace group.

    The version of an object (``?versionId=...``) is none.
    """
    for token in _TOKEN.finditer(path, 0, version_start(path)):
        if token[1] is None:
            yield token.start(), token[0]


def glob_start(path: str, *, others: str = "") -> int | None:
    """Return the index of the first unescaped glob character (``*``, ``?``, ``[``) or one of ``others``; or ``None``.

    >>> glob_start("a[*]b/*.tar")
    6
    """
    return next((index for index, character in marks(path) if character in "*?[" + others), None)


def glob_regex(pattern: str) -> re.Pattern[str]:
    """Compile a glob to a regular expression for whole paths.

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
