"""Headers of a user for an http server, such as a token, from storage options in fsspec's words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ...core.options import StorageOptions
from ...errors import UrlError

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\x20-\x7e\x80-\xff]*")  # what HTTP allows, without tabs
# What this package sets, by which a response would be another one than it expects
_OWN = {"accept-encoding", "connection", "content-length", "host", "if-match", "if-none-match", "range"}
# Which obstore sends to another host after a redirect only if they are no secret
_KEPT_FROM_OTHER_HOSTS = {"authorization", "cookie"}
_HARMLESS = {"accept", "accept-language", "referer", "user-agent"}


def http_headers(options: StorageOptions) -> dict[str, str] | None:
    """Return the headers that options ask for; ``None`` if an option is for fsspec's filesystem only.

    Args:
        options: ``headers``, and ``client_kwargs`` with ``headers``; those of the first take precedence.

    Raises:
        UrlError: for a header that cannot be sent, or that this package sets. Values are never shown.
    """
    nested = options.get("client_kwargs") or {}
    if options.keys() - {"headers", "client_kwargs"} or not isinstance(nested, Mapping) or nested.keys() - {"headers"}:
        return None
    found: dict[str, str] = {}
    for where, headers in (
        ("storage_options['client_kwargs']['headers']", nested.get("headers")),
        ("storage_options['headers']", options.get("headers")),
    ):
        given = _checked(where, headers)
        names = {name.lower() for name in given}
        found = {name: value for name, value in found.items() if name.lower() not in names} | given
    return found


def _checked(where: str, headers: Any) -> dict[str, str]:
    if headers is None:
        return {}
    if not isinstance(headers, Mapping):
        raise UrlError(f"{where} must be a dict such as {{'Authorization': ...}}, got {type(headers).__name__}.")
    for name, value in headers.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise UrlError(f"{where}: {name!r:.50} is no name of a header.")
        if not isinstance(value, str) or not _VALUE.fullmatch(value):
            raise UrlError(f"{where}[{name!r}] must be a str without line breaks, in Latin-1.")
        if name.lower() in _OWN:
            raise UrlError(f"{where}: {name!r} is set by this package for each request. Remove it.")
    return dict(headers)


def stay_at_host(headers: Mapping[str, str]) -> bool:
    """Whether obstore keeps the secrets among these headers from another host to which a server redirects."""
    return {name.lower() for name in headers} <= _KEPT_FROM_OTHER_HOSTS | _HARMLESS
