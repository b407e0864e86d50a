"""How to connect to the servers of a store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..protocol import CONNECT_TIMEOUT_S

MAX_CONNECTIONS = 1024  # opened on demand, one for each request in flight


@dataclass(frozen=True, repr=False)
class NetworkSettings:
    """TLS, proxies and limits of connections. The defaults are those of the environment.

    Args:
        verify: a file of certificate authorities, ``False`` to trust every certificate, ``True`` for the authorities of
            the library, or ``None`` for those of the environment.
        verify_source: who named the file, for errors, such as ``the environment variable AWS_CA_BUNDLE``.
        client_cert: a file with the client's certificate and key, or two files.
        proxies: URL by scheme; ``None`` for those of the environment.
        proxy_authorities: a file of the authorities of an https proxy; ``None`` for those of the servers.
        proxy_client_cert: like ``client_cert``, for an https proxy.
        connect_timeout_s: seconds until a connection is open.
        max_connections: idle connections that are kept.
        user_agent: header of requests; ``None`` for that of the library.
    """

    verify: bool | str | None = None
    verify_source: str = ""
    client_cert: str | tuple[str, str] | None = None
    proxies: Mapping[str, str] | None = None
    proxy_authorities: str | None = None
    proxy_client_cert: str | tuple[str, str] | None = None
    connect_timeout_s: float = CONNECT_TIMEOUT_S
    max_connections: int = MAX_CONNECTIONS
    user_agent: str | None = field(default=None)


ENVIRONMENT = NetworkSettings()
