"""TLS, proxies and connections of S3, in s3fs's words: ``verify``, and the arguments of botocore's ``Config``."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from ...core.options import StorageOptions
from ..network import ENVIRONMENT, NetworkSettings

_VERIFY = "storage_options['client_kwargs']['verify']"
_PROXY_AUTHORITIES = "proxy_ca_bundle"
_SECONDS = ("connect_timeout", "read_timeout")
CONFIG = frozenset({"proxies", "proxies_config", "max_pool_connections", "user_agent", *_SECONDS})
_BUNDLE_VARIABLE = "AWS_CA_BUNDLE"


def untranslated_network(options: StorageOptions) -> list[str]:
    """Return how the options of proxies are written that only s3fs knows."""
    of_proxies = _config(options).get("proxies_config") or {}
    unknown = (name for name in sorted(of_proxies) if name != _PROXY_AUTHORITIES and of_proxies[name])
    return [f"config_kwargs['proxies_config'][{name!r}]" for name in unknown]


def network_settings(options: StorageOptions) -> NetworkSettings:
    """Translate the options of the network; the environment chooses what they leave open."""
    config = _config(options)
    of_proxies = config.get("proxies_config") or {}
    authorities = of_proxies.get(_PROXY_AUTHORITIES)
    verify = (options.get("client_kwargs") or {}).get("verify")
    return NetworkSettings(
        verify=os.fspath(verify) if isinstance(verify, os.PathLike) else verify,
        verify_source="" if verify is None else _VERIFY,
        proxies=config.get("proxies"),
        proxy_authorities=None if authorities is None else os.fspath(authorities),
        connect_timeout_s=config.get("connect_timeout", ENVIRONMENT.connect_timeout_s),
        max_connections=config.get("max_pool_connections", ENVIRONMENT.max_connections),
        user_agent=config.get("user_agent"),
    )


def read_timeout_of(options: StorageOptions) -> float | None:
    """Return the seconds without a byte after which a request fails, if the options name them."""
    found: float | None = _config(options).get("read_timeout")
    return found


def with_bundle(network: NetworkSettings, session: Any) -> NetworkSettings:
    """Add the authorities that the AWS environment names, if the options name none."""
    bundle = None if network.verify is not None else session.get_config_variable("ca_bundle")
    if not bundle:
        return network
    variable = f"the environment variable {_BUNDLE_VARIABLE}"
    source = variable if os.environ.get(_BUNDLE_VARIABLE) else "ca_bundle in ~/.aws/config"
    return dataclasses.replace(network, verify=bundle, verify_source=source)


def config_of_proxies(network: NetworkSettings) -> dict[str, Any] | None:
    """Return ``proxies_config`` of botocore's ``Config``."""
    found = network.proxy_authorities
    return None if found is None else {_PROXY_AUTHORITIES: found}


def _config(options: StorageOptions) -> dict[str, Any]:
    """Names in ``config_kwargs``, without those that are ``None``."""
    return {name: value for name, value in (options.get("config_kwargs") or {}).items() if value is not None}
