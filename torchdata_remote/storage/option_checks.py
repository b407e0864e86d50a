"""Check values of storage options that several stores have."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

from ..core.arguments import check
from ..errors import UrlError

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
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


def option_flag(name: str, value: Any, where: str = "") -> bool:
    """Return a storage option that is a bool.

    Args:
        name: of the option.
        value: of the option.
        where: the URL, for the error, without credentials.

    Raises:
        UrlError: for anything else.
    """
    try:
        return check.flag(f"storage_options[{name!r}]", value)
    except TypeError as error:
        raise UrlError(f"{where}: {error}" if where else str(error), url=where or None) from None


def require_plain_text(where: str, shown: str, value: Any) -> None:
    """Refuse a line break or another control character in a text, which no header of a request can hold.

    A key may have the line break of the file that it was read from. Libraries show such a value in their errors, or
    abort. Other kinds of values are accepted.

    Raises:
        UrlError: names the option. Its value is not shown.
    """
    found = _CONTROL.search(value) if isinstance(value, str) else None
    if found is not None:
        place = "at its end" if not value[found.start() :].strip() else f"at position {found.start()}"
        raise UrlError(
            f"{where}: {shown} has a line break or another control character {place}. Remove it: value.strip().",
            url=where,
        )
