"""Certificates and proxies of all stores: one rule decides for a URL, and each library is told the result.

Libraries read other variables of the environment, and read ``NO_PROXY`` differently: without this, a bucket would be
read by obstore through a proxy, and past it by s3fs.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from ..core.urls import redact
from ..errors import UrlError
from .protocol import CONNECT_TIMEOUT_S

if TYPE_CHECKING:
    import urllib3

MAX_CONNECTIONS = 1024  # opened on demand, one for each request in flight
_CERTIFICATE = re.compile("-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_SERVER = re.compile(r"https?://[^/\\?#@\s]+(/[^\\?#@\s]*)?", re.IGNORECASE)
_LOOPBACK = "localhost,127.0.0.0/8,::1"
_EVERY_HOST = "*,0.0.0.0/0,::/0"  # in obstore's proxy_excludes, where names and addresses are separate


def server_address(url: str, address: str, named: str = "endpoint_url") -> str:
    """Return the address of a server, without a slash at its end.

    Args:
        url: of the bucket, for the error.
        address: as given.
        named: what gives it, for the error.

    Raises:
        UrlError: if it is none, or holds what logs and errors would show. It is not shown.
    """
    try:
        parts = urlsplit(address)
        is_address = _SERVER.fullmatch(address) and parts.hostname and parts.port != 0
    except ValueError:  # a port that is no number, or brackets without an end
        is_address = False
    if not is_address:
        raise UrlError(
            f"{url}: {named} is no address of a server. Expected such as 'https://host:port', without a user, a "
            "password (an @) or a query, which logs and errors would show.",
            url=url,
        )
    return address.rstrip("/")


# Certificates


def authorities(url: str, verify: Any = None) -> Any:
    """Return the file of certificate authorities for a URL, which is validated.

    Args:
        url: of a request.
        verify: such a file, ``True`` for the authorities of the library, ``False`` to trust every certificate, or
            ``None`` for a file that the environment names.

    Raises:
        UrlError: if the file cannot be used.
    """
    if verify is None:
        verify = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("SSL_CERT_FILE")
    if not isinstance(verify, str | os.PathLike):
        return verify
    if url.lower().startswith("https:"):
        _certificates(os.fspath(verify), url)
    return os.fspath(verify)


def _certificates(file: str, url: str) -> str:
    """Return the certificates of a file in PEM, without the comments and keys that it may have."""
    import ssl  # here: local files need none

    try:
        ssl.create_default_context(cafile=file)
        with open(file, encoding="latin-1") as lines:
            return "\n".join(_CERTIFICATE.findall(lines.read()))
    except OSError as error:
        raise UrlError(
            f"{redact(url)}: {file!r} is no file of certificates in PEM ({error}). It is named by 'verify' or "
            "'proxy_ca_bundle' in storage_options, AWS_CA_BUNDLE, REQUESTS_CA_BUNDLE or SSL_CERT_FILE.",
            url=redact(url),
        ) from error


def require_client_certificate(files: Any, url: str) -> None:
    """Validate a client's certificate and its key, in one file or two. Libraries report a fault as one of the network.

    Raises:
        UrlError: if they cannot be read, or do not belong together.
    """
    import ssl

    if files is None:
        return
    try:
        both = [files] if isinstance(files, str) else files
        # An empty password, or OpenSSL would ask for it at the terminal
        ssl.create_default_context().load_cert_chain(both[0], both[-1], "")
    except (OSError, TypeError, LookupError) as error:
        what = f"'client_cert' names {files!r}, which are no certificate and its key in PEM ({error})"
        raise UrlError(f"{url}: {what}. Expected one file with both, or two.", url=url) from error


# Proxies


def proxy_for(url: str, proxies: Mapping[str, str] | None = None) -> str | None:
    """Return the URL of the proxy for a request, ``None`` for a direct request.

    A scheme's variable goes before ``ALL_PROXY``. ``NO_PROXY`` is a list of names, which hold for their subdomains too,
    addresses, networks such as ``10.0.0.0/8``, or ``*``; a port behind a name or an address limits it to that port.

    Args:
        url: of the request.
        proxies: URL by scheme, of the user: they are used for every host. ``None`` for those of the environment.

    Raises:
        UrlError: if the proxy's URL cannot be used. It is not shown.
    """
    from urllib.request import getproxies  # here: it imports the HTTP client of Python and TLS, for local files too

    found = getproxies() if proxies is None else proxies
    proxy = found.get(url.partition(":")[0].lower()) or found.get("all")
    if not proxy or (proxies is None and _is_excluded(url, found.get("no", ""))):
        return None
    scheme, _, rest = proxy.strip().rpartition("://")
    user, at, server = rest.rpartition("@")
    server = " " if re.search(r"[/?#\s\\]", user) else server  # such as a / of a password, which has to be %2F
    address = f"{scheme.lower() or 'http'}://{server}"
    address = server_address(redact(url), address, "the proxy, behind its user,")
    return address.replace("://", f"://{user}{at}", 1)


def _is_excluded(url: str, no_proxy: str) -> bool:
    """Whether a host is reached directly. No proxy can reach this machine."""
    from urllib.request import proxy_bypass  # by the system's settings on macOS and Windows

    with contextlib.suppress(ValueError):  # of a host that is no address, or of a port that the library refuses
        parts = urlsplit(url)
        host = parts.hostname or ""
        if host == "localhost" or proxy_bypass(f"{host}:{parts.port or (443 if parts.scheme == 'https' else 80)}"):
            return True
        address, networks = ipaddress.ip_address(host), [one.strip() for one in no_proxy.split(",") if "/" in one]
        return address.is_loopback or any(address in ipaddress.ip_network(one, strict=False) for one in networks)
    return False


# Arguments of libraries


def obstore_client_options(
    url: str,
    read_timeout_s: float,
    *,
    verify: Any = None,
    proxies: Mapping[str, str] | None = None,
    proxy_authorities: str | None = None,
) -> dict[str, Any]:
    """Return the ``client_options`` of an obstore store for the server of a URL.

    obstore adds the authorities to those of the system.

    Args:
        url: of the server, such as ``https://host:port``.
        read_timeout_s: seconds without a byte after which a request fails.
        verify: as for :func:`authorities`.
        proxies: as for :func:`proxy_for`.
        proxy_authorities: a file of the authorities of an https proxy; ``None`` for those of the servers.

    Raises:
        UrlError: if the file of authorities or the proxy cannot be used.
    """
    options: dict[str, Any] = {
        "allow_http": True,
        "connect_timeout": milliseconds(CONNECT_TIMEOUT_S),
        "read_timeout": milliseconds(read_timeout_s),
        "timeout": "86400s",  # of a whole request: the caller watches its progress
    }
    trusted = authorities(url, verify)
    if trusted is False:
        options["allow_invalid_certificates"] = True
    elif isinstance(trusted, str) and url.lower().startswith("https:"):
        options["root_certificate"] = _certificates(trusted, url)
    proxy = proxy_for(url, proxies)
    if proxy is None:  # obstore reads HTTP_PROXY unless it is given a proxy, and has no option for none
        return {**options, "proxy_url": url, "proxy_excludes": _EVERY_HOST}
    options["proxy_url"] = proxy
    if proxies is None:  # for a redirect to another host
        options["proxy_excludes"] = f"{_LOOPBACK},{os.environ.get('no_proxy') or os.environ.get('NO_PROXY', '')}"
    if proxy_authorities is not None:
        options["proxy_ca_certificate"] = _certificates(proxy_authorities, url)
    return options


def milliseconds(seconds: float) -> str:
    """Return a time in obstore's words.

    >>> milliseconds(0.5)
    '500ms'
    """
    return f"{seconds * 1000:.0f}ms"


def for_small_bodies(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return client options for responses that are read at once: they take at most twice as long as silence may."""
    return {**options, "timeout": f"{2 * int(options['read_timeout'].removesuffix('ms'))}ms"}


class ServerPools:
    """Pools of connections of urllib3, direct and by proxies, with the authorities and proxies of all requests.

    Args:
        options: of urllib3's pools.
    """

    def __init__(self, **options: Any) -> None:
        self._options = {"maxsize": MAX_CONNECTIONS, **options}
        self._managers: dict[str, urllib3.PoolManager] = {}  # by scheme, host and port

    def manager(self, url: str) -> urllib3.PoolManager:
        """Return the pools for a URL; their ``request`` and ``urlopen`` take absolute URLs.

        Raises:
            UrlError: if the file of authorities or the proxy cannot be used.
        """
        origin = "/".join(url.split("/", 3)[:3])
        if origin not in self._managers:
            self._managers.setdefault(origin, self._make(url))
        return self._managers[origin]

    def request(self, method: str, url: str, **options: Any) -> Any:
        """Send a request."""
        return self.manager(url).request(method, url, **options)

    def _make(self, url: str) -> urllib3.PoolManager:
        import urllib3  # here: it takes as long as NumPy to import

        proxy, trusted = proxy_for(url), authorities(url)
        options = self._options if trusted is None else {**self._options, "ca_certs": trusted}
        if proxy is None:
            return urllib3.PoolManager(**options)
        user = urlsplit(proxy)
        pair = f"{unquote(user.username or '')}:{unquote(user.password or '')}"
        login = {} if user.username is None else urllib3.make_headers(proxy_basic_auth=pair)
        return urllib3.ProxyManager(proxy, proxy_headers=login, **options)
