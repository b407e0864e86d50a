"""Check values of storage options that several stores have."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

from ..core.arguments import check
from ..errors import UrlError

_SERVER = re.compile(r"https?://[^/\\?#@\s]+/?", re.IGNORECASE)


def is_server_url(value: object) -> bool:
    """Whether a value is the address of an HTTP server, without a path.

    >>> [is_server_url(value) for value in ("http://[::1]:80", "http://a/b", "http://a:x", "http://a:99999", None)]
    [True, False, False, False, False]
    """
    if not isinstance(value, str) or _SERVER.fullmatch(value) is None:
        return False
    try:
        parts = urlsplit(value)
        return bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:  # a port that is no number, or brackets without an end
        return False


def option_flag(name: str, value: Any) -> bool:
    """Return a storage option that is a bool.

    Raises:
        UrlError: for anything else.
    """
    try:
        return check.flag(f"storage_options[{name!r}]", value)
    except TypeError as error:
        raise UrlError(str(error)) from None
