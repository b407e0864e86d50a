"""Recognise a text in the place of an archive: a page of a server or proxy, its error, or a pointer of Git LFS."""

from __future__ import annotations

import codecs

_MAX_SHOWN = 60
_SEPARATORS = "\x1c\x1d\x1e\x1f"  # which Python counts as white space
_GIT_LFS = "version https://git-lfs"


def text_instead(start: bytes | memoryview) -> str:
    """Say what an object begins with if that is a text, as a part of a sentence; empty for other bytes.

    Headers of archives are no text: each has NUL or control characters.

    Args:
        start: the first bytes, at least 64 if the object has so many.

    Example:
        >>> text_instead(b"<html>Log in</html>")
        ", and begins with '<html>Log in</html>': the server sent a page or an error instead of the object"
        >>> text_instead(bytes(512))
        ''
    """
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(start)  # the last character may be cut
    except UnicodeDecodeError:
        return ""
    if not text or not all(one.isprintable() or (one.isspace() and one not in _SEPARATORS) for one in text):
        return ""
    shown = f", and begins with {text[:_MAX_SHOWN].strip()!r}"
    if text.startswith(_GIT_LFS):
        return f"{shown}: a pointer of Git LFS, for which `git lfs pull` gets the file"
    if text.lstrip("\ufeff\r\n\t ").startswith(("<", "{")):
        return f"{shown}: the server sent a page or an error instead of the object"
    return f"{shown}: it is a text"
