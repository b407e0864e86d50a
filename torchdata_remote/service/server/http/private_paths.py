"""Keep the place of the datasets out of responses: clients know names of datasets and paths in them."""

from __future__ import annotations

import functools
import os
import re

from ....core.urls import LOCAL, join_url, split_url

_ROOT = "the service's root"


def without_root(message: str, root_url: str) -> str:
    """Return a message whose URLs and paths below the root begin with the name of a dataset.

    Args:
        message: of an error, with absolute URLs and paths.
        root_url: URL of the root.

    >>> without_root("file:///srv/hosted/pets/1.jpg: no such file. /srv/hosted is empty.", "/srv/hosted")
    "pets/1.jpg: no such file. the service's root is empty."
    """
    return _pattern(root_url).sub(lambda found: "" if found["below"] else _ROOT, message)


@functools.lru_cache(maxsize=16)
def _pattern(root_url: str) -> re.Pattern[str]:
    scheme, bucket, path = split_url(root_url)
    spellings = {root_url.rstrip("/"), join_url(scheme, bucket, path).rstrip("/")}
    if scheme in LOCAL:
        paths = {path.rstrip("/"), os.path.realpath(path)}
        spellings |= paths | {f"{local}://{each}" for each in paths for local in LOCAL}
    known = "|".join(re.escape(each) for each in sorted(spellings, key=len, reverse=True) if each.strip("/"))
    # not a part of a longer path or name; the characters before a path are those of a sentence
    return re.compile(rf'(?<![\w./-])(?:{known})(?:(?P<below>/(?=[^\s\'"]))|/?(?![\w./-])|(?=\.(?:\s|$)))')
