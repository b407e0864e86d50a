"""Recognise a text in the place of an archive: a page of a server or proxy, its error, or a pointer of Git LFS."""

from __future__ import annotations

_MAX_SHOWN = 60
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
    text = bytes(start).decode("utf-8", "ignore")
    # A character of several bytes may be cut at the end; more that is left out is no text
    is_text = len(start) - len(text.encode()) <= 3
    if not text or not is_text or not all(one.isprintable() or one.isspace() for one in text):
        return ""
    shown = f", and begins with {text[:_MAX_SHOWN].strip()!r}"
    if text.startswith(_GIT_LFS):
        return f"{shown}: a pointer of Git LFS, for which `git lfs pull` gets the file"
    if text.lstrip("\ufeff\r\n\t ").startswith(("<", "{")):
        return f"{shown}: the server sent a page or an error instead of the object"
    return f"{shown}: it is a text"
