"""Which proxy a request uses: one rule for all libraries.

A scheme's variable goes before ``ALL_PROXY``, lower case before upper case. ``NO_PROXY`` is a list of names, which
hold for their subdomains too, addresses, networks such as ``10.0.0.0/8``, and ``*``; a port after a name or an address
limits it to that port. Servers on this machine, which no proxy can reach, are requested past the proxies of the
environment.
"""

from __future__ import annotations

import ipaddress
import re
import sys
from base64 import b64encode
from collections.abc import Mapping
from urllib.parse import SplitResult, unquote, urlsplit

from ...core.urls import redact
from ...errors import UrlError

_WITH_PORT = re.compile(r"(?P<name>\[[^\]]*\]|[^:]*):(?P<port>\d+)")
_UNUSABLE = re.compile(r"[\x00-\x1f\x7f\\]")
_SCHEMES = ("http", "https", "all")
_LOOPBACK = ("localhost", "127.0.0.0/8", "::1")


def is_loopback(url: str) -> bool:
    """Whether a URL's host is this machine: ``localhost`` or a loopback address."""
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # another name, or no URL
        return False


def environment_proxies() -> dict[str, str]:
    """Proxies of the environment, else of the system's settings on macOS and Windows; ``no`` has the exceptions."""
    from urllib.request import getproxies  # here: it imports the HTTP client of Python and TLS, for local files too

    return getproxies()


def proxies_are_named() -> bool:
    """Whether the environment names proxies, or exceptions from them."""
    return bool(environment_proxies())


def proxy_for(url: str, proxies: Mapping[str, str] | None = None) -> str | None:
    """Return the URL of the proxy for a request, ``None`` for a direct request.

    Args:
        url: of the request.
        proxies: URL by scheme, of the user: they are used for every host. ``None`` for those of the environment.

    Raises:
        UrlError: if the proxy's URL cannot be used. Its password is not shown.
    """
    try:
        target = urlsplit(url)
        scheme, host, port = target.scheme.lower(), (target.hostname or "").rstrip("."), target.port
    except ValueError:
        return None  # the library reports it
    found = environment_proxies() if proxies is None else proxies
    proxy = found.get(scheme) or found.get("all")
    if not proxy:
        return None
    if proxies is None and (is_loopback(url) or _is_excluded(host, port or _default_port(scheme), found)):
        return None
    return _usable(proxy, url)


def _default_port(scheme: str) -> int:
    return 443 if scheme == "https" else 80


def _is_excluded(host: str, port: int, proxies: Mapping[str, str]) -> bool:
    if "no" in proxies:
        return any(_matches(entry, host, port) for entry in _entries(proxies))
    if sys.platform in ("darwin", "win32"):
        from urllib.request import proxy_bypass  # of the system's settings

        return bool(proxy_bypass(host))
    return False


def _entries(proxies: Mapping[str, str]) -> list[str]:
    return [entry for entry in re.split(r"[,\s]+", proxies.get("no", "").lower()) if entry]


def _matches(entry: str, host: str, port: int) -> bool:
    """Whether an entry of ``NO_PROXY`` holds for a host.

    >>> _matches(".example.org", "s3.example.org", 443), _matches("example.org", "myexample.org", 443)
    (True, False)
    >>> _matches("10.0.0.0/8", "10.1.2.3", 80), _matches("host:81", "host", 80), _matches("[::1]:80", "::1", 80)
    (True, False, True)
    """
    if (parts := _WITH_PORT.fullmatch(entry)) is not None:
        if int(parts["port"]) != port:
            return False
        entry = parts["name"]
    name = entry.strip("[]").removeprefix("*.").strip(".")
    if entry == "*" or not name:
        return entry == "*"
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == name or host.endswith(f".{name}")
    try:
        return address in ipaddress.ip_network(name, strict=False)
    except ValueError:
        return False


def excluded_hosts(proxies: Mapping[str, str] | None) -> list[str]:
    """Hosts that need no proxy of the environment, for a redirect to another one: without those of a single port."""
    if proxies is not None:
        return []
    found = [entry for entry in _entries(environment_proxies()) if _WITH_PORT.fullmatch(entry) is None]
    return [*_LOOPBACK, *(entry.removeprefix("*.") for entry in found)]


def _usable(proxy: str, url: str) -> str:
    """Return a proxy's URL with its scheme, as all libraries accept it."""
    proxy = proxy.strip()
    if "://" not in proxy:
        proxy = f"http://{proxy.lstrip('/')}"
    parts = _split(proxy)
    where = redact(url)
    # An @ after a / is that of a user whose password has the /
    if parts is None or not parts.hostname or "@" in proxy[proxy.index("://") + 3 + len(parts.netloc) :]:
        raise UrlError(
            f"{where}: the proxy {_shown(proxy)!r} is no URL; expected such as 'http://host:3128'. A @, : or / in its "
            "user or password is written as %40, %3A or %2F.",
            url=where,
        )
    if parts.scheme.lower() not in ("http", "https"):
        raise UrlError(
            f"{where}: the proxy {_shown(proxy)!r} cannot be used: proxies are http:// or https://. Set HTTPS_PROXY to "
            "such a one, or name the host in NO_PROXY.",
            url=where,
        )
    # As all libraries accept it: botocore knows schemes in lower case only, and shows a query in its errors
    return f"{parts.scheme.lower()}://{parts.netloc}"


def _split(proxy: str) -> SplitResult | None:
    if _UNUSABLE.search(proxy):
        return None
    try:
        parts = urlsplit(proxy)
        _ = parts.port  # which is validated when it is read
    except ValueError:
        return None
    return parts


def _shown(proxy: str) -> str:
    """A proxy's URL without what may be a password, also in a URL that is malformed."""
    scheme, _, rest = proxy.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"


def require_usable_proxies(where: str, shown: str, proxies: object) -> None:
    """Validate the proxies of an option. Values are not shown.

    Raises:
        UrlError: names the option.
    """
    if not isinstance(proxies, Mapping):
        raise UrlError(f"{where}: {shown} must be a dict, got {type(proxies).__name__}.", url=where)
    for scheme, proxy in proxies.items():
        if scheme not in _SCHEMES or not isinstance(proxy, str | None):
            raise UrlError(
                f"{where}: {shown} must have URLs by scheme, such as {{'https': 'http://host:3128'}}, got the key "
                f"{scheme!r} with a {type(proxy).__name__}.",
                url=where,
            )
        if proxy:
            _usable(proxy, where)


def require_for_botocore(proxy: str, url: str) -> None:
    """Refuse a user without a password, and letters outside of ASCII, which botocore sends without or not at all.

    Raises:
        UrlError: does not show them.
    """
    parts, where = urlsplit(proxy), redact(url)
    if parts.username is None:
        return
    if not parts.username or not parts.password or not f"{unquote(parts.username)}{unquote(parts.password)}".isascii():
        raise UrlError(
            f"{where}: the proxy {_shown(proxy)!r} needs a user and a password, of ASCII characters only: botocore "
            "sends no others.",
            url=where,
        )


def basic_authorization(proxy: str) -> str | None:
    """Return the value of Proxy-Authorization for the user and the password in a proxy's URL."""
    parts = urlsplit(proxy)
    if parts.username is None:
        return None
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return f"Basic {b64encode(pair.encode()).decode()}"
