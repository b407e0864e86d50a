"""Storage options of s3 to a botocore client: one place that resolves endpoint, region and credentials."""

from __future__ import annotations

import functools
import os
import re
import threading
from dataclasses import dataclass
from typing import Any

from ...core.options import FALLBACK_NAMES, StorageOptions
from ...core.urls import redact
from ...errors import AccessDeniedError, RemoteDataError, StorageError, UrlError
from ..error_tables import from_botocore
from ..errors import translate_errors
from ..protocol import CONNECT_TIMEOUT_S
from .fallback_credentials import METHOD, append_fallback, has_fallback, without_fallback

READ_TIMEOUT_S = 30.0
_MAX_CONNECTIONS = 1024  # opened as they are needed, one for each request in flight
_CLIENT_KWARGS = {
    "region_name": "region",
    "endpoint_url": "endpoint_url",
    "aws_access_key_id": "key",
    "aws_secret_access_key": "secret",
    "aws_session_token": "token",
}
_OWN_CREDENTIALS = {"key", "username", "secret", "password", "token", "session"}  # in s3fs's words
_HTTP_URL = re.compile(r"https?://[^/\s]+", re.IGNORECASE)
_client_lock = threading.RLock()  # creating botocore clients is not thread-safe


def _new_lock() -> None:
    global _client_lock
    _client_lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_lock)  # another thread may have held it at the fork


@dataclass(frozen=True, repr=False)
class S3Settings:
    """What the s3 transports of this package can express; ``None`` leaves it to botocore's chain."""

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


def s3_settings(options: StorageOptions, read_timeout_s: float = READ_TIMEOUT_S) -> S3Settings | None:
    """The options translate_errors, or ``None`` if one of them has no translation."""
    flat = {name: value for name, value in options.items() if name != "client_kwargs" and value is not None}
    for name, value in (options.get("client_kwargs") or {}).items():
        if name not in _CLIENT_KWARGS:
            return None
        if value is not None:
            flat.setdefault(_CLIENT_KWARGS[name], value)
    if not isinstance(flat.get("anon", False), bool):
        raise UrlError(f"storage_options['anon'] must be True or False, got {flat['anon']!r}.")
    endpoint_url = flat.get("endpoint_url")
    if endpoint_url is not None and _HTTP_URL.match(str(endpoint_url)) is None:
        raise UrlError(f"storage_options['endpoint_url'] is {endpoint_url!r}; expected such as 'https://host:port'.")
    if set(flat) - (set(S3Settings.__dataclass_fields__) - {"read_timeout_s"}):
        return None
    return S3Settings(**flat, read_timeout_s=read_timeout_s)


def make_session(settings: S3Settings, url: str) -> Any:
    """A botocore session with the credentials of the settings, or else of botocore's chain, or else the fallback.

    Raises:
        AccessDeniedError: for a profile that does not exist, or a key without its secret.
    """
    import botocore.session  # here: a tenth of a second that a chain over local files need not wait
    from botocore.exceptions import ProfileNotFound

    _require_pair(settings.key, settings.secret, settings.token, url)
    _require_pair(settings.fallback_key, settings.fallback_secret, settings.fallback_token, url, "fallback_")
    try:
        session = botocore.session.Session(profile=settings.profile)
        session.get_config_variable("region")  # reads the profile
        session.register_component("data_loader", _loader(session.get_config_variable("data_path")))
    except ProfileNotFound as error:
        raise AccessDeniedError(f"{url}: {error}. Look into ~/.aws/config.", url=url) from error
    if settings.key is not None:
        session.set_credentials(settings.key, settings.secret, settings.token)
    elif settings.fallback_key is not None and settings.fallback_secret is not None:
        append_fallback(session, settings.fallback_key, settings.fallback_secret, settings.fallback_token)
    return session


@functools.cache
def _loader(data_path: str | None) -> Any:
    """One description of S3 for all sessions: each of its own would read 13 MB of objects in 0.2 s."""
    from botocore.loaders import create_loader

    return create_loader(data_path)


def _require_pair(key: str | None, secret: str | None, token: str | None, url: str, prefix: str = "") -> None:
    if (key is None) != (secret is None) or (token is not None and key is None):
        raise AccessDeniedError(
            f"{url}: storage_options needs '{prefix}key' and '{prefix}secret' together, and '{prefix}token' both.",
            url=url,
        )


def options_for_s3fs(options: StorageOptions, url: str) -> dict[str, Any]:
    """What s3fs is to get: it does not know of a fallback, so the chain is asked here whether one is needed.

    Raises:
        AccessDeniedError: as ``make_session``, and for credentials that cannot be fetched.
    """
    keywords = dict(without_fallback(options))
    in_client = (keywords.get("client_kwargs") or {}).keys() & _CLIENT_KWARGS.keys() - {"region_name", "endpoint_url"}
    given = {name for name in _OWN_CREDENTIALS if keywords.get(name) is not None}
    if not has_fallback(options) or keywords.get("anon") or given or in_client:
        return keywords
    fallback: dict[str, Any] = {name: options.get(name) for name in FALLBACK_NAMES}
    with translate_errors(from_botocore, url):
        found = make_session(S3Settings(profile=keywords.get("profile"), **fallback), url).get_credentials()
    if found is not None and found.method == METHOD:
        keywords.update(key=found.access_key, secret=found.secret_key, token=found.token)
    return keywords


def region_of(settings: S3Settings, session: Any) -> str:
    """The region to sign for."""
    return str(settings.region or session.get_config_variable("region") or "us-east-1")


def make_client(settings: S3Settings, session: Any, url: str) -> Any:
    """An s3 client, which repeats nothing and follows the AWS environment.

    Raises:
        UrlError: for an endpoint that is no URL.
    """
    from botocore import UNSIGNED
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    try:
        with _client_lock:
            client = session.create_client(
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
                ),
            )
    except (BotoCoreError, ValueError) as error:
        known = from_botocore(error, url)
        raise known if isinstance(known, RemoteDataError) else UrlError(f"{url}: {error}") from error
    if is_custom_endpoint(str(client.meta.endpoint_url), region_of(settings, session)):
        client.meta.events.register_first("needs-retry.s3", _refuse_redirect)
    return client


def _refuse_redirect(response: tuple[Any, Any] | None, **about: Any) -> None:
    """AWS redirects to a bucket's region, which botocore follows; what another store means by it nobody can tell.

    (botocore asks for the region again and again, until Python's stack is full.)
    """
    if response is not None and response[0].status_code in (301, 302, 303, 307, 308):
        place = re.split("[?#]", redact(response[0].headers.get("Location", "nowhere")), maxsplit=1)[0]
        raise StorageError(
            f"The store redirects to {place}. Redirects are not followed: set endpoint_url to the right one."
        )


def is_custom_endpoint(endpoint_url: str, region: str) -> bool:
    """Whether an endpoint is another host than the region's own of AWS; it then is addressed by path."""
    host = endpoint_url.partition("://")[2].partition("/")[0]
    own = f"s3.{region}.amazonaws.com"
    return host not in ("s3.amazonaws.com", own, f"{own}.cn")
