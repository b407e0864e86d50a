"""TLS, proxies and connections of S3, in s3fs's words: ``verify``, and the arguments of botocore's ``Config``."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from ...core.arguments import check
from ...core.options import StorageOptions
from ...errors import UrlError
from ..network import ENVIRONMENT, NetworkSettings, require_usable_proxies
from ..option_checks import require_plain_text

_VERIFY = "storage_options['client_kwargs']['verify']"
_CONFIG = "storage_options['config_kwargs']"
_PROXIES = frozenset({"proxy_ca_bundle", "proxy_client_cert"})
_SECONDS = ("connect_timeout", "read_timeout")
CONFIG = frozenset({"proxies", "proxies_config", "client_cert", "max_pool_connections", "user_agent", *_SECONDS})
_BUNDLE_VARIABLE = "AWS_CA_BUNDLE"


def untranslated_network(options: StorageOptions) -> list[str]:
    """Return how the options of proxies are written that only s3fs knows."""
    of_proxies = _config(options).get("proxies_config") or {}
    unknown = (name for name in sorted(of_proxies) if name not in _PROXIES and of_proxies[name])
    return [f"config_kwargs['proxies_config'][{name!r}]" for name in unknown]


def network_settings(options: StorageOptions) -> NetworkSettings:
    """Translate the options of the network; the environment chooses what they leave open."""
    config = _config(options)
    of_proxies = config.get("proxies_config") or {}
    verify = (options.get("client_kwargs") or {}).get("verify")
    return NetworkSettings(
        verify=os.fspath(verify) if isinstance(verify, os.PathLike) else verify,
        verify_source="" if verify is None else _VERIFY,
        client_cert=_files(config.get("client_cert")),
        proxies=config.get("proxies"),
        proxy_authorities=_files(of_proxies.get("proxy_ca_bundle")),
        proxy_client_cert=_files(of_proxies.get("proxy_client_cert")),
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
    found = {"proxy_ca_bundle": network.proxy_authorities, "proxy_client_cert": network.proxy_client_cert}
    return {name: value for name, value in found.items() if value is not None} or None


def _config(options: StorageOptions) -> dict[str, Any]:
    """Names in ``config_kwargs``, without those that are ``None``."""
    return {name: value for name, value in (options.get("config_kwargs") or {}).items() if value is not None}


def _files(given: Any) -> Any:
    """Return a file or two files as texts."""
    if isinstance(given, list | tuple):
        return tuple(map(os.fspath, given))
    return None if given is None else os.fspath(given)


def require_usable_network(where: str, options: StorageOptions) -> None:
    """Validate the kinds of the options above. Values are not shown: a proxy's URL may hold a password.

    Args:
        where: the URL, for the error, without credentials.
        options: for s3; the mappings themselves are validated.

    Raises:
        UrlError: names the option.
    """
    verify, config = (options.get("client_kwargs") or {}).get("verify"), _config(options)
    if not isinstance(verify, bool | str | os.PathLike | None) or verify == "":
        raise UrlError(
            f"{where}: {_VERIFY} must be a file of certificate authorities, True or False, got {check.a_kind(verify)}.",
            url=where,
        )
    if "proxies" in config:
        require_usable_proxies(where, f"{_CONFIG}['proxies']", config["proxies"])
    of_proxies = config.get("proxies_config", {})
    if not isinstance(of_proxies, Mapping):
        raise UrlError(
            f"{where}: {_CONFIG}['proxies_config'] must be a dict, got {check.a_kind(of_proxies)}.", url=where
        )
    _require_files(where, f"{_CONFIG}['client_cert']", config.get("client_cert"), most=2)
    _require_files(where, f"{_CONFIG}['proxies_config']['proxy_ca_bundle']", of_proxies.get("proxy_ca_bundle"), most=1)
    shown = f"{_CONFIG}['proxies_config']['proxy_client_cert']"
    _require_files(where, shown, of_proxies.get("proxy_client_cert"), most=2)
    for name, kinds, expected in (
        *((name, int | float, "a number of seconds above 0") for name in _SECONDS),
        ("max_pool_connections", int, "a number of connections above 0"),
    ):
        value = config.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, kinds) or not 0 < value < 1e6):
            kind = check.a_kind(value) if not isinstance(value, int | float) else repr(value)
            raise UrlError(f"{where}: {_CONFIG}[{name!r}] must be {expected}, got {kind}.", url=where)
    if not isinstance(config.get("user_agent"), str | None):
        kind = check.a_kind(config["user_agent"])
        raise UrlError(f"{where}: {_CONFIG}['user_agent'] must be a str, got {kind}.", url=where)
    require_plain_text(where, f"{_CONFIG}['user_agent']", config.get("user_agent"))


def _require_files(where: str, shown: str, given: Any, *, most: int) -> None:
    files = given if isinstance(given, list | tuple) and most > 1 else [given]
    if given is None or (all(isinstance(file, str | os.PathLike) for file in files) and 0 < len(files) <= most):
        return
    expected = "a file" if most == 1 else "a file with certificate and key, or two files"
    raise UrlError(f"{where}: {shown} must be {expected}, got {check.a_kind(given)}.", url=where)
