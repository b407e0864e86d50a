"""Certificates and proxies of all stores: one rule decides for a URL, and each library is told the result.

Libraries read other variables of the environment, and read ``NO_PROXY`` differently: without this, a bucket would be
read by obstore through a proxy, and past it by s3fs.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from ..core.arguments import check
from ..core.notices.slow_notice import host_of
from ..core.urls import redact
from ..errors import UrlError
from .protocol import CONNECT_TIMEOUT_S

if TYPE_CHECKING:
    import urllib3

MAX_CONNECTIONS = 1024  # opened on demand, one for each request in flight
_VARIABLES = ("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")  # for all stores, in this order
_CERTIFICATE = re.compile("-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_LOOPBACK = "localhost,127.0.0.0/8,::1"
_EVERY_HOST = "*,0.0.0.0/0,::/0"  # in obstore's proxy_excludes, where names and addresses are separate
_noted: dict[str, str] = {}  # authorities by scheme and bucket or host, for errors


@dataclass(frozen=True, repr=False)
class NetworkSettings:
    """TLS, proxies and limits of connections. The defaults are those of the environment.

    Args:
        verify: a file of certificate authorities, ``False`` to trust every certificate, ``True`` for the authorities of
            the library, or ``None`` for those of the environment.
        verify_source: who named the file, for errors, such as ``the environment variable AWS_CA_BUNDLE``.
        proxies: URL by scheme; ``None`` for those of the environment.
        proxy_authorities: a file of the authorities of an https proxy; ``None`` for those of the servers.
        connect_timeout_s: seconds until a connection is open.
        max_connections: idle connections that are kept.
        user_agent: header of requests; ``None`` for that of the library.
    """

    verify: bool | str | None = None
    verify_source: str = ""
    proxies: Mapping[str, str] | None = None
    proxy_authorities: str | None = None
    connect_timeout_s: float = CONNECT_TIMEOUT_S
    max_connections: int = MAX_CONNECTIONS
    user_agent: str | None = None


ENVIRONMENT = NetworkSettings()


# Certificates


def _authorities(network: NetworkSettings) -> tuple[bool | str | None, str]:
    """Return the file of authorities and who named it; ``False``, ``True`` or ``None`` as in the settings."""
    if network.verify is not None:
        return network.verify, network.verify_source
    named = ((os.environ.get(name), f"the environment variable {name}") for name in _VARIABLES)
    return next(((file, source) for file, source in named if file), (None, ""))


def require_authorities(network: NetworkSettings, url: str) -> bool | str | None:
    """Return the authorities for a URL, as in the settings. A file of them is validated.

    Raises:
        UrlError: names the file, and the option or the variable.
    """
    verify, source = _authorities(network)
    if isinstance(verify, str) and url.lower().startswith("https:"):
        read_certificates(verify, source, url)
    return verify


def read_certificates(file: str, source: str, url: str) -> str:
    """Return the certificates of a file in PEM, without the comments and keys that it may have.

    Raises:
        UrlError: if there are none, or one is damaged.
    """
    import ssl  # here: local files need none

    where = redact(url)
    try:
        with open(file, encoding="latin-1") as lines:
            found = _CERTIFICATE.findall(lines.read())
        if found:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=file)
    except ssl.SSLError as error:
        what = f"a certificate of {file!r}, named by {source}, is damaged ({error.reason or error})"
        raise UrlError(f"{where}: {what}. Export it again, in PEM.", url=where) from error
    except OSError as error:
        raise _unreadable(where, source, error) from error
    if not found:
        raise UrlError(
            f"{where}: {file!r}, named by {source}, has no certificate. Expected a file in PEM with -----BEGIN "
            "CERTIFICATE----- and -----END CERTIFICATE-----.",
            url=where,
        )
    return "\n".join([*found, ""])


def require_client_certificate(files: tuple[str, ...], source: str, url: str) -> None:
    """Validate a client's certificate and its key. A library reports a fault of theirs as one of the network.

    Raises:
        UrlError: if they cannot be read, or do not belong together.
    """
    import ssl

    where, shown = redact(url), " and ".join(map(repr, files))
    try:
        for file in files:
            os.stat(file)
        # An empty password, or OpenSSL would ask for it at the terminal
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(files[0], files[-1], "")
    except ssl.SSLError as error:
        raise UrlError(
            f"{where}: {shown}, named by {source}, are no certificate and its key in PEM ({error.reason or error}). "
            "Expected one file with both, or the certificate and then the key, which has no password.",
            url=where,
        ) from error
    except OSError as error:
        raise _unreadable(where, source, error) from error


def _unreadable(where: str, source: str, error: OSError) -> UrlError:
    why = "no such file" if isinstance(error, FileNotFoundError) else f"{type(error).__name__}: {error.strerror}"
    return UrlError(
        f"{where}: {why}: {error.filename!r}, named by {source}. Correct the path, or leave it out.", url=where
    )


def note_authorities(url: str, network: NetworkSettings) -> None:
    """Record which authorities are trusted for a bucket or host, for errors about certificates."""
    _noted[host_of(url)] = _described(network)


def describe_authorities(url: str) -> str:
    """Name the authorities that are trusted for a bucket or host, such as ``/ca.pem (AWS_CA_BUNDLE)``."""
    return _noted.get(host_of(url)) or _described(ENVIRONMENT)


def _described(network: NetworkSettings) -> str:
    verify, source = _authorities(network)
    return f"{verify} ({source})" if isinstance(verify, str) else "those of the system or of certifi"


# Proxies


def environment_proxies() -> dict[str, str]:
    """Proxies of the environment, else of the system's settings on macOS and Windows; ``no`` has the exceptions."""
    from urllib.request import getproxies  # here: it imports the HTTP client of Python and TLS, for local files too

    return getproxies()


def is_loopback(url: str) -> bool:
    """Whether a URL's host is this machine, which no proxy can reach: ``localhost`` or a loopback address."""
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # another name, or no URL
        return False


def proxy_for(url: str, proxies: Mapping[str, str] | None = None) -> str | None:
    """Return the URL of the proxy for a request, ``None`` for a direct request.

    A scheme's variable goes before ``ALL_PROXY``. ``NO_PROXY`` is a list of names, which hold for their subdomains too,
    addresses, networks such as ``10.0.0.0/8``, or ``*``; a port behind a name or an address limits it to that port.

    Args:
        url: of the request.
        proxies: URL by scheme, of the user: they are used for every host. ``None`` for those of the environment.

    Raises:
        UrlError: if the proxy's URL cannot be used. Its password is not shown.
    """
    found = environment_proxies() if proxies is None else proxies
    proxy = found.get(url.partition(":")[0].lower()) or found.get("all")
    if not proxy or (proxies is None and (is_loopback(url) or _is_excluded(url, found))):
        return None
    return _usable(proxy, url)


def _is_excluded(url: str, proxies: Mapping[str, str]) -> bool:
    from urllib.request import proxy_bypass, proxy_bypass_environment  # type: ignore[attr-defined]  # public in 3.10+

    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").rstrip("."), parts.port or (443 if parts.scheme.lower() == "https" else 80)
    except ValueError:
        return True  # the library reports it
    if "no" not in proxies:
        return bool(proxy_bypass(host))  # by the system's settings on macOS and Windows
    entries = re.split(r"[,\s]+", proxies["no"].replace("*.", "."))
    if proxy_bypass_environment(f"{host}:{port}", {"no": ",".join(entries)}):
        return True
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(host)
        return any(address in ipaddress.ip_network(entry, strict=False) for entry in entries if "/" in entry)
    return False


def _usable(proxy: str, url: str) -> str:
    """Return a proxy's URL in the one form that all libraries accept.

    Raises:
        UrlError: if it is no URL of an HTTP proxy. Its user and password are not shown.
    """
    proxy, where = proxy.strip(), redact(url)
    if "://" not in proxy:
        proxy = f"http://{proxy.lstrip('/')}"
    scheme, _, rest = proxy.partition("://")
    shown, netloc = f"{scheme}://{rest.rpartition('@')[2]}", re.split("[/?#]", rest, maxsplit=1)[0]
    try:
        parts = urlsplit(f"{scheme}://{netloc}")
        is_url = bool(parts.hostname) and parts.port != 0 and re.search(r"[\x00-\x20\x7f\\]", netloc) is None
    except ValueError:
        is_url = False
    if not is_url or "@" in rest[len(netloc) :]:  # an @ behind a / is that of a user whose password has the /
        raise UrlError(
            f"{where}: the proxy {shown!r} is no URL; expected such as 'http://host:3128'. A @, : or / in its user or "
            "password is written as %40, %3A or %2F.",
            url=where,
        )
    if scheme.lower() not in ("http", "https"):
        raise UrlError(
            f"{where}: the proxy {shown!r} cannot be used: proxies are http:// or https://. Set HTTPS_PROXY to such a "
            "one, or name the host in NO_PROXY.",
            url=where,
        )
    return f"{scheme.lower()}://{netloc}"


def require_usable_proxies(where: str, shown: str, proxies: object) -> None:
    """Validate the proxies of an option. Values are not shown.

    Raises:
        UrlError: names the option.
    """
    if not isinstance(proxies, Mapping):
        raise UrlError(f"{where}: {shown} must be a dict, got {check.a_kind(proxies)}.", url=where)
    for scheme, proxy in proxies.items():
        if scheme not in ("http", "https", "all") or not isinstance(proxy, str | None):
            raise UrlError(
                f"{where}: {shown} must have URLs by scheme, such as {{'https': 'http://host:3128'}}, got the key "
                f"{scheme!r} with {check.a_kind(proxy)}.",
                url=where,
            )
        if proxy:
            _usable(proxy, where)


# Arguments of libraries


def obstore_client_options(url: str, read_timeout_s: float, network: NetworkSettings = ENVIRONMENT) -> dict[str, Any]:
    """Return the ``client_options`` of an obstore store for the server of a URL.

    obstore adds the authorities to those of the system.

    Args:
        url: of the server, such as ``https://host:port``.
        read_timeout_s: seconds without a byte after which a request fails.
        network: TLS and proxies.

    Raises:
        UrlError: if the file of authorities or the proxy cannot be used.
    """
    options: dict[str, Any] = {
        "allow_http": True,
        "connect_timeout": f"{round(network.connect_timeout_s * 1000)}ms",
        "read_timeout": f"{round(read_timeout_s * 1000)}ms",
        "timeout": "86400s",  # of a whole request: the caller watches its progress
    }
    verify, source = _authorities(network)
    if verify is False:
        options["allow_invalid_certificates"] = True
    elif isinstance(verify, str) and url.lower().startswith("https:"):
        options["root_certificate"] = read_certificates(verify, source, url)
    named, proxy = environment_proxies(), proxy_for(url, network.proxies)
    if proxy is not None:
        options["proxy_url"] = proxy
        if network.proxies is None:  # for a redirect to another host
            options["proxy_excludes"] = f"{_LOOPBACK},{named.get('no', '')}".rstrip(",")
        if network.proxy_authorities is not None:
            source = "storage_options['config_kwargs']['proxies_config']['proxy_ca_bundle']"
            options["proxy_ca_certificate"] = read_certificates(network.proxy_authorities, source, url)
    elif network.proxies is not None or named:
        # obstore reads HTTP_PROXY unless it is given a proxy, and has no option for none
        options |= {"proxy_url": url, "proxy_excludes": _EVERY_HOST}
    if network.max_connections != MAX_CONNECTIONS:
        options["pool_max_idle_per_host"] = str(network.max_connections)
    if network.user_agent is not None:
        options["user_agent"] = network.user_agent
    return options


class ServerPools:
    """Pools of connections of urllib3, direct and by proxies. Each request, a redirected one too, uses the right one.

    Args:
        options: of urllib3's pools.
    """

    def __init__(self, **options: Any) -> None:
        self._options = {"maxsize": MAX_CONNECTIONS, **options}
        self._managers: dict[str | None, urllib3.PoolManager] = {}  # by proxy
        self._routes: dict[str, urllib3.PoolManager] = {}  # by scheme, host and port

    def manager(self, url: str) -> urllib3.PoolManager:
        """Return the pools for a URL; their ``request`` and ``urlopen`` take absolute URLs.

        Raises:
            UrlError: if the file of authorities or the proxy cannot be used.
        """
        origin = "/".join(url.split("/", 3)[:3])
        known = self._routes.get(origin)
        if known is None:
            proxy = proxy_for(url)
            if proxy not in self._managers:
                self._managers.setdefault(proxy, _make_manager(proxy, url, self.manager, self._options))
            known = self._routes.setdefault(origin, self._managers[proxy])
        return known


def _make_manager(
    proxy: str | None, url: str, route: Callable[[str], urllib3.PoolManager], options: dict[str, Any]
) -> urllib3.PoolManager:
    import urllib3  # here: it takes as long as NumPy to import

    verify = require_authorities(ENVIRONMENT, url)
    if isinstance(verify, str):
        options = {**options, "ca_certs": verify}

    class Routed(urllib3.PoolManager):
        def urlopen(self, method: str, url: str, redirect: bool = True, **more: Any) -> Any:  # type: ignore[override]
            """Send a request. urllib3 calls this for each redirect, with the headers of the request before."""
            # Not the Host that a proxy's manager has set for the URL before
            more["headers"] = {name: one for name, one in (more.get("headers") or {}).items() if name.lower() != "host"}
            pools = route(url)
            send = super().urlopen if pools is self else pools.urlopen
            return send(method, url, redirect=redirect, **more)

    class Proxied(Routed, urllib3.ProxyManager):
        pass

    if proxy is None:
        return Routed(**options)
    user = urlsplit(proxy)
    pair = b64encode(f"{unquote(user.username or '')}:{unquote(user.password or '')}".encode()).decode()
    login = {} if user.username is None else {"Proxy-Authorization": f"Basic {pair}"}
    return Proxied(proxy_url=proxy, proxy_headers=login, **options)
