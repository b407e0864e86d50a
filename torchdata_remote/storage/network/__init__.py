"""TLS and proxies of all stores: one rule decides for a URL, and each library is told the result explicitly.

botocore, urllib3 and obstore read other variables, and read ``NO_PROXY`` differently: without this, a bucket would be
listed by a proxy and read past it.
"""

from .authorities import authorities_of, describe_authorities, note_authorities, require_authorities
from .clients import ServerPools, obstore_client_options, requests_arguments, without_obstore
from .proxies import is_loopback, proxies_are_named, proxy_for, require_for_botocore, require_usable_proxies
from .settings import ENVIRONMENT, NetworkSettings

__all__ = [
    "ENVIRONMENT",
    "NetworkSettings",
    "ServerPools",
    "authorities_of",
    "describe_authorities",
    "is_loopback",
    "note_authorities",
    "obstore_client_options",
    "proxies_are_named",
    "proxy_for",
    "requests_arguments",
    "require_authorities",
    "require_for_botocore",
    "require_usable_proxies",
    "without_obstore",
]
