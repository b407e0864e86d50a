"""A plugin of proxy.py: a name of a host that nothing but the proxy knows."""

from __future__ import annotations

from proxy.http.proxy import HttpProxyBasePlugin

from tests.servers.tls_front import HOST


class PrivateHosts(HttpProxyBasePlugin):
    """``HOST`` is this machine."""

    def resolve_dns(self, host: str, port: int) -> tuple[str | None, tuple[str, int] | None]:
        """Return the address of a host, and none to connect from."""
        return ("127.0.0.1" if host == HOST else None), None
