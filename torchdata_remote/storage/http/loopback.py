"""Servers on this machine, which no proxy can reach: requests to them go past the proxies of the environment."""

from __future__ import annotations

import ipaddress
from typing import Any
from urllib.parse import urlsplit


def is_loopback(url: str) -> bool:
    """Whether a URL's host is this machine: ``localhost`` or a loopback address."""
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # another name, or no URL
        return False


def past_proxies(url: str) -> dict[str, Any]:
    """Options of obstore's HTTP client by which requests to a loopback URL use no proxy; none for another URL."""
    # obstore reads HTTP_PROXY unless it is given a proxy, and has no option for none
    return {"proxy_url": url, "proxy_excludes": urlsplit(url).hostname} if is_loopback(url) else {}
