"""Resolve endpoint, region and credentials of S3 from storage options, for all transports."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ...core.arguments import check
from ...core.options import FALLBACK_NAMES, StorageOptions
from ...core.threads.forks import hold_forks
from ...core.urls import redact
from ...errors import AccessDeniedError, RemoteDataError, StorageError, UrlError
from ..error_tables import from_botocore
from ..errors import translate_errors
from ..network import is_loopback
from ..protocol import CONNECT_TIMEOUT_S
from .credential_chain import use_chain
from .endpoint import untranslated_config
from .fallback_credentials import METHOD, append_fallback, has_fallback, without_fallback
from .request_options import RequestOptions, for_s3fs, request_options, untranslated_arguments

READ_TIMEOUT_S = 30.0
_MAX_CONNECTIONS = 1024  # opened on demand, one for each request in flight
_CLIENT_KWARGS = {
    "region_name": "region",
    "endpoint_url": "endpoint_url",
    "aws_access_key_id": "key",
    "aws_secret_access_key": "secret",
    "aws_session_token": "token",
}
_OWN_CREDENTIALS = {"key", "username", "secret", "password", "token", "session"}  # names of s3fs
_HOST = re.compile(r"[\w.-]+(:\d+)?/?")
_AWS_HOST = re.compile(r"https?://s3(express)?(-[a-z]+)*(\.[a-z0-9-]+)*\.amazonaws\.com(\.cn)?(/|$)", re.IGNORECASE)
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
    config: Mapping[str, Any] = field(default_factory=dict)  # arguments of botocore's Config


_NOT_OPTIONS = {"read_timeout_s", "requests", "config"}
_OPTIONS = S3Settings.__dataclass_fields__.keys() - _NOT_OPTIONS
# version_aware: versions are read if a URL names one, and an object is read in one version by its etag
_ELSEWHERE = {"client_kwargs", "config_kwargs", "s3_additional_kwargs", "requester_pays", "version_aware"}


def untranslated(options: StorageOptions) -> list[str]:
    """Return how the options are written that only s3fs knows."""
    client = options.get("client_kwargs") or {}
    return [
        *(repr(name) for name in sorted(options.keys() - _OPTIONS - _ELSEWHERE) if options[name] is not None),
        *(f"client_kwargs[{name!r}]" for name in sorted(client.keys() - _CLIENT_KWARGS.keys())),
        *untranslated_config(options),
        *untranslated_arguments(options),
    ]


def s3_settings(options: StorageOptions, read_timeout_s: float = READ_TIMEOUT_S) -> S3Settings | None:
    """Translate storage options; ``None`` if one of them has no translation."""
    flat = {name: value for name, value in options.items() if name not in _ELSEWHERE and value is not None}
    for name, value in (options.get("client_kwargs") or {}).items():
        if name in _CLIENT_KWARGS and value is not None:
            flat.setdefault(_CLIENT_KWARGS[name], value)
    if "anon" in flat:
        flat["anon"] = check.flag("storage_options['anon']", flat["anon"])
    endpoint_url = flat.get("endpoint_url")
    if endpoint_url is not None and _HTTP_URL.match(str(endpoint_url)) is None:
        meant = f"; did you mean 'http://{endpoint_url}'?" if _HOST.fullmatch(str(endpoint_url)) else "."
        raise UrlError(
            f"storage_options['endpoint_url'] is {endpoint_url!r}; expected such as 'https://host:port'{meant}"
        )
    if untranslated(options):
        return None
    requests, config = request_options(options), dict(options.get("config_kwargs") or {})
    return S3Settings(**flat, read_timeout_s=read_timeout_s, requests=requests, config=config)


def make_session(settings: S3Settings, url: str) -> Any:
    """Make a botocore session with the credentials of the settings, else of botocore's chain, else the fallback.

    Raises:
        AccessDeniedError: if the profile does not exist, or a key has no secret.
    """
    import botocore.session  # takes 0.1 s, which a pipe over local files does not need
    from botocore.exceptions import ProfileNotFound

    _require_pair(settings.key, settings.secret, settings.token, url)
    _require_pair(settings.fallback_key, settings.fallback_secret, settings.fallback_token, url, "fallback_")
    try:
        session = botocore.session.Session(profile=settings.profile)
        session.get_config_variable("region")  # reads the profile
        session.register_component("data_loader", shared_loader(session.get_config_variable("data_path")))
        use_chain(session, region_of(settings, session), url)
    except ProfileNotFound as error:
        raise AccessDeniedError(f"{url}: {error}. See ~/.aws/config.", url=url) from error
    if settings.key is not None:
        session.set_credentials(settings.key, settings.secret, settings.token)
    elif settings.fallback_key is not None and settings.fallback_secret is not None:
        append_fallback(session, settings.fallback_key, settings.fallback_secret, settings.fallback_token)
    return session


@functools.cache
def shared_loader(data_path: str | None) -> Any:
    """Return the loader that all sessions share: each loader would read a description of S3 (13 MB, 0.2 s)."""
    from botocore.loaders import create_loader

    return create_loader(data_path)


def _require_pair(key: str | None, secret: str | None, token: str | None, url: str, prefix: str = "") -> None:
    if (key is None) != (secret is None) or (token is not None and key is None):
        raise AccessDeniedError(
            f"{url}: storage_options needs '{prefix}key' and '{prefix}secret' together, and both for '{prefix}token'.",
            url=url,
        )


def options_for_s3fs(options: StorageOptions, url: str) -> dict[str, Any]:
    """Return the options for s3fs, which has no fallback credentials: they are added if botocore's chain finds none.

    Raises:
        AccessDeniedError: like ``make_session``, and if credentials cannot be loaded.
    """
    keywords = for_s3fs(dict(without_fallback(options)))
    endpoint_url = (
        keywords.get("endpoint_url")
        or (keywords.get("client_kwargs") or {}).get("endpoint_url")
        or os.environ.get("AWS_ENDPOINT_URL_S3", os.environ.get("AWS_ENDPOINT_URL", ""))
    )
    if _has_proxies() and is_loopback(str(endpoint_url)):
        keywords["config_kwargs"] = {"proxies": {}, **(keywords.get("config_kwargs") or {})}
    in_client = (keywords.get("client_kwargs") or {}).keys() & _CLIENT_KWARGS.keys() - {"region_name", "endpoint_url"}
    explicit = {name for name in _OWN_CREDENTIALS if keywords.get(name) is not None}
    if not has_fallback(options) or keywords.get("anon") or explicit or in_client:
        return keywords
    fallback: dict[str, Any] = {name: options.get(name) for name in FALLBACK_NAMES}
    with translate_errors(from_botocore, url):
        found = make_session(S3Settings(profile=keywords.get("profile"), **fallback), url).get_credentials()
    if found is not None and found.method == METHOD:
        keywords.update(key=found.access_key, secret=found.secret_key, token=found.token)
    return keywords


def region_of(settings: S3Settings, session: Any) -> str:
    """Return the region that requests are signed for."""
    return str(settings.region or session.get_config_variable("region") or "us-east-1")


def make_client(settings: S3Settings, session: Any, url: str) -> Any:
    """Make an S3 client that does not retry, and follows the AWS environment.

    Raises:
        UrlError: if the endpoint is no URL, or holds credentials, or the file of authorities is missing.
    """
    from botocore import UNSIGNED
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    bundle = session.get_config_variable("ca_bundle")
    if bundle and not os.path.exists(bundle) and not str(settings.endpoint_url).lower().startswith("http://"):
        raise UrlError(
            f"{url}: no such file: {bundle!r}, named by ca_bundle in ~/.aws/config or by AWS_CA_BUNDLE. It holds "
            "certificate authorities: correct the path, or leave it out.",
            url=url,
        )

    def create(**more: Any) -> Any:
        return session.create_client(
            "s3",
            region_name=region_of(settings, session),
            endpoint_url=settings.endpoint_url,
            config=Config(
                signature_version=UNSIGNED if settings.anon else None,
                retries={"mode": "standard", "total_max_attempts": 1},
                max_pool_connections=_MAX_CONNECTIONS,
                connect_timeout=CONNECT_TIMEOUT_S,
                read_timeout=settings.read_timeout_s,
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
                **settings.config,
                **more,
            ),
        )

    try:
        with hold_forks():  # only one thread at a time can create a client
            client = create()
            if _has_proxies() and is_loopback(str(client.meta.endpoint_url)):
                client = create(proxies={})
    except (BotoCoreError, ValueError) as error:
        known = from_botocore(error, url)
        raise known if isinstance(known, RemoteDataError) else UrlError(f"{url}: {error}") from error
    if "@" in str(client.meta.endpoint_url):
        raise UrlError(
            f"{url}: endpoint_url in ~/.aws/config holds credentials (an @), which logs and errors would show. Use "
            "aws_access_key_id and aws_secret_access_key there.",
            url=url,
        )
    if not follows_redirects(client):
        client.meta.events.register_first("needs-retry.s3", _refuse_redirect)
    return client


def _refuse_redirect(response: tuple[Any, Any] | None, **about: Any) -> None:
    """Refuse redirects of stores other than AWS, which redirects to a bucket's region.

    (botocore would request the region recursively, until Python's stack overflows.)
    """
    if response is not None and response[0].status_code in (301, 302, 303, 307, 308):
        target = re.split("[?#]", redact(response[0].headers.get("Location", "nowhere")), maxsplit=1)[0]
        raise StorageError(
            f"The store redirects to {target}. Redirects are not followed: set endpoint_url to the right address."
        )


def follows_redirects(client: Any) -> bool:
    """Whether a client is one of AWS, which redirects requests to a bucket's region."""
    return _AWS_HOST.match(str(client.meta.endpoint_url)) is not None


def _has_proxies() -> bool:
    from urllib.request import getproxies  # here: it imports the HTTP client of Python and TLS, for local files too

    return bool(getproxies())
