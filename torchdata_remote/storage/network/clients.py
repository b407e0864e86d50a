"""Arguments of each HTTP library for a URL."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from .authorities import authorities_of, read_certificates, require_authorities
from .proxies import basic_authorization, environment_proxies, excluded_hosts, proxy_for
from .settings import ENVIRONMENT, NetworkSettings

if TYPE_CHECKING:
    import urllib3

_EVERY_HOST = "*,0.0.0.0/0,::/0"  # in obstore's proxy_excludes, where names and addresses are separate


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
    verify, source = authorities_of(network)
    if verify is False:
        options["allow_invalid_certificates"] = True
    elif isinstance(verify, str) and url.lower().startswith("https:"):
        options["root_certificate"] = read_certificates(verify, source, url)
    proxy = proxy_for(url, network.proxies)
    if proxy is not None:
        options["proxy_url"] = proxy
        if excluded := excluded_hosts(network.proxies):
            options["proxy_excludes"] = ",".join(excluded)
        if network.proxy_authorities is not None:
            shown = "storage_options['config_kwargs']['proxies_config']"
            options["proxy_ca_certificate"] = read_certificates(network.proxy_authorities, shown, url)
    elif network.proxies is not None or environment_proxies():
        # obstore reads HTTP_PROXY unless it is given a proxy, and has no option for none
        options |= {"proxy_url": url, "proxy_excludes": _EVERY_HOST}
    if network.max_connections != ENVIRONMENT.max_connections:
        options["pool_max_idle_per_host"] = str(network.max_connections)
    if network.user_agent is not None:
        options["user_agent"] = network.user_agent
    return options


def without_obstore(network: NetworkSettings) -> str | None:
    """Say what obstore cannot send; ``None`` if it can be used."""
    if network.client_cert is not None:
        return "a client certificate"
    return "a client certificate for the proxy" if network.proxy_client_cert is not None else None


def requests_arguments(url: str, network: NetworkSettings = ENVIRONMENT) -> dict[str, Any]:
    """Return ``verify``, ``cert`` and ``proxies`` of a request by ``requests``.

    The session's ``trust_env`` must be ``False``, or it reads the environment again.
    """
    verify = require_authorities(network, url)
    proxy = proxy_for(url, network.proxies)
    return {
        "verify": True if verify is None else verify,
        "cert": network.client_cert,
        "proxies": {} if proxy is None else {"http": proxy, "https": proxy},
    }


class ServerPools:
    """Pools of connections of urllib3, direct and by proxies. Each request, a redirected one too, uses the right one.

    Args:
        network: TLS and proxies.
        options: of urllib3's pools.
    """

    def __init__(self, network: NetworkSettings = ENVIRONMENT, **options: Any) -> None:
        self._network = network
        self._options = options
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
            proxy = proxy_for(url, self._network.proxies)
            if proxy not in self._managers:
                self._managers.setdefault(proxy, self._make(proxy, url))
            known = self._routes.setdefault(origin, self._managers[proxy])
        return known

    def _make(self, proxy: str | None, url: str) -> urllib3.PoolManager:
        from .routed import ProxiedPools, RoutedPools

        options = {"maxsize": self._network.max_connections, **self._options, **self._tls(url)}
        pools: RoutedPools
        if proxy is None:
            pools = RoutedPools(**options)
        else:
            authorization = basic_authorization(proxy)
            pools = ProxiedPools(
                proxy_url=proxy,
                proxy_headers={} if authorization is None else {"Proxy-Authorization": authorization},
                proxy_ssl_context=self._proxy_context,
                **options,
            )
        pools.route = self.manager
        return pools

    def _tls(self, url: str) -> dict[str, Any]:
        verify = require_authorities(self._network, url)
        if verify is False:
            return {"cert_reqs": "CERT_NONE", "assert_hostname": False}
        options: dict[str, Any] = {"ca_certs": verify} if isinstance(verify, str) else {}
        cert = self._network.client_cert
        if cert is not None:
            options |= {"cert_file": cert} if isinstance(cert, str) else {"cert_file": cert[0], "key_file": cert[1]}
        return options

    @cached_property
    def _proxy_context(self) -> Any:
        import ssl

        file, cert = self._network.proxy_authorities, self._network.proxy_client_cert
        if file is None and cert is None:
            return None
        context = ssl.create_default_context(cafile=file)
        if cert is not None:
            context.load_cert_chain(*([cert] if isinstance(cert, str) else cert))
        return context
