"""Recognise URLs that were mistyped, and would be taken for a path on the local disk."""

from __future__ import annotations

import os
import re
from collections.abc import Callable

from .chained_urls import without_target

_SCHEMES = "s3a?|s3n|gs|gcs|az|abfss?|https?|file|memory|datasets|hf|s?ftp"
_FEW_SLASHES = re.compile(rf"({_SCHEMES}):/?([^/\\].*)", re.IGNORECASE | re.DOTALL)
_NO_COLON = re.compile(rf"({_SCHEMES})//+([^/].*)", re.IGNORECASE | re.DOTALL)
_WINDOWS = re.compile(r"[A-Za-z]:[\\/]|\\\\\w")
_WITH_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def mistake_in(path: str, redact: Callable[[str], str]) -> str:
    """Say what is wrong with a path that was meant as a URL, or as a path of another system; ``""`` if nothing.

    A path that exists on the local disk is no mistake.

    Args:
        path: as given.
        redact: removes credentials from a URL. What is no URL is not shown where it has some.

    Example:
        >>> mistake_in("s3:/photos/train/", str)
        "'s3:/photos/train/' is no URL; did you mean 's3://photos/train/'?"
        >>> mistake_in("data/train", str)
        ''
    """
    stripped = path.strip()
    if stripped != path and _WITH_SCHEME.match(stripped):
        return f"The URL begins with white space; did you mean {redact(stripped)!r}?"
    found = _FEW_SLASHES.match(path) or _NO_COLON.match(path)
    if found is not None and not os.path.lexists(path):
        scheme = found[1].lower()
        meant = f"{scheme}:///{found[2]}" if scheme == "file" else f"{scheme}://{found[2]}"
        what = repr(path) if redact(meant) == meant else "This"
        return f"{what} is no URL; did you mean {redact(meant)!r}?"
    if os.name != "nt" and _WINDOWS.match(path) and not os.path.lexists(path):
        return f"{path!r} is a path of Windows, and this is another system. Pass the path that the folder has here."
    return ""


def without_host(scheme: str, path: str, redact: Callable[[str], str]) -> str:
    """Say what is missing in a URL that has a third slash, or nothing, where the bucket or host belongs.

    >>> without_host("s3", "photos/train/", str)
    "no bucket. Expected s3://bucket/path; did you mean 's3://photos/train/'?"
    """
    if mistake := without_target(scheme, ()):
        return mistake
    meant = path.lstrip("/").rstrip()
    near = f"; did you mean {redact(f'{scheme}://{meant}')!r}?" if meant else "."
    if scheme == "datasets":
        return (
            "no host. Expected datasets://host:port/NAME/PATH, with the address that `torchdata-remote serve` prints."
        )
    if scheme in ("http", "https"):
        return f"no host. Expected {scheme}://host/path."
    return f"no bucket. Expected {scheme}://bucket/path{near}"
