"""Resolve endpoint, region and credentials of S3 from storage options, for all transports."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...core.arguments import check
from ...core.options import StorageOptions
from ...errors import UrlError
from ..network import ENVIRONMENT, NetworkSettings
from .endpoint import config_of_endpoint, untranslated_config
from .network import network_settings, read_timeout_of, untranslated_network
from .request_options import RequestOptions, request_options, untranslated_arguments

READ_TIMEOUT_S = 30.0
CLIENT_KWARGS = {
    "region_name": "region",
    "endpoint_url": "endpoint_url",
    "aws_access_key_id": "key",
    "aws_secret_access_key": "secret",
    "aws_session_token": "token",
    "use_ssl": "use_ssl",
}
_HOST = re.compile(r"[\w.-]+(:\d+)?/?")
_HTTP_URL = re.compile(r"https?://[^/\s]+", re.IGNORECASE)


@dataclass(frozen=True, repr=False)
class S3Settings:
    """The options that the S3 transports of this package support; ``None`` leaves the choice to botocore."""

    key: str | None = None
    secret: str | None = None
    token: str | None = None
    endpoint_url: str | None = None
    region: str | None = None
    profile: str | None = None
    anon: bool = False
    fallback_key: str | None = None
    fallback_secret: str | None = None
    fallback_token: str | None = None
    read_timeout_s: float = READ_TIMEOUT_S
    requests: RequestOptions = field(default_factory=RequestOptions)
    config: Mapping[str, Any] = field(default_factory=dict)  # arguments of botocore's Config that select an address
    use_ssl: bool = True  # for an address that botocore makes
    network: NetworkSettings = ENVIRONMENT


_NOT_OPTIONS = {"read_timeout_s", "requests", "config", "network"}
_OPTIONS = S3Settings.__dataclass_fields__.keys() - _NOT_OPTIONS
# version_aware: versions are read if a URL names one, and an object is read in one version by its etag
_ELSEWHERE = {"client_kwargs", "config_kwargs", "s3_additional_kwargs", "requester_pays", "version_aware"}


def untranslated(options: StorageOptions) -> list[str]:
    """Return how the options are written that only s3fs knows."""
    client = options.get("client_kwargs") or {}
    return [
        *(repr(name) for name in sorted(options.keys() - _OPTIONS - _ELSEWHERE) if options[name] is not None),
        *(f"client_kwargs[{name!r}]" for name in sorted(client.keys() - CLIENT_KWARGS.keys() - {"verify"})),
        *untranslated_config(options),
        *untranslated_network(options),
        *untranslated_arguments(options),
    ]


def s3_settings(options: StorageOptions, read_timeout_s: float = READ_TIMEOUT_S) -> S3Settings:
    """Translate storage options; ``None`` if one of them has no translation."""
    flat = {name: value for name, value in options.items() if name not in _ELSEWHERE and value is not None}
    for name, value in (options.get("client_kwargs") or {}).items():
        if name in CLIENT_KWARGS and value is not None:
            flat.setdefault(CLIENT_KWARGS[name], value)
    for name in flat.keys() & {"anon", "use_ssl"}:
        flat[name] = check.flag(f"storage_options[{name!r}]", flat[name])
    endpoint_url = flat.get("endpoint_url")
    if endpoint_url is not None and _HTTP_URL.match(str(endpoint_url)) is None:
        meant = f"; did you mean 'http://{endpoint_url}'?" if _HOST.fullmatch(str(endpoint_url)) else "."
        raise UrlError(
            f"storage_options['endpoint_url'] is {endpoint_url!r}; expected such as 'https://host:port'{meant}"
        )
    return S3Settings(
        **flat,
        read_timeout_s=read_timeout_of(options) or read_timeout_s,
        requests=request_options(options),
        config=config_of_endpoint(options),
        network=network_settings(options),
    )


def region_of(settings: S3Settings, session: Any) -> str:
    """Return the region that requests are signed for."""
    return str(settings.region or session.get_config_variable("region") or "us-east-1")
