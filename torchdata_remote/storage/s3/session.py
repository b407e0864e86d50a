"""Sessions of botocore: where the credentials of S3 come from; and the options for s3fs, which has its own."""

from __future__ import annotations

import functools
import os
from typing import Any

from ...core.options import FALLBACK_NAMES, StorageOptions
from ...errors import AccessDeniedError
from ..errors import from_botocore, translate_errors
from ..network import environment_proxies, is_loopback
from .credential_chain import use_chain
from .fallback_credentials import METHOD, append_fallback, has_fallback, without_fallback
from .request_options import for_s3fs
from .settings import CLIENT_KWARGS, S3Settings, region_of

_OWN_CREDENTIALS = {"key", "username", "secret", "password", "token", "session"}  # names of s3fs


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
    if environment_proxies() and is_loopback(str(endpoint_url)):
        keywords["config_kwargs"] = {"proxies": {}, **(keywords.get("config_kwargs") or {})}
    in_client = (keywords.get("client_kwargs") or {}).keys() & CLIENT_KWARGS.keys() - {"region_name", "endpoint_url"}
    explicit = {name for name in _OWN_CREDENTIALS if keywords.get(name) is not None}
    if not has_fallback(options) or keywords.get("anon") or explicit or in_client:
        return keywords
    fallback: dict[str, Any] = {name: options.get(name) for name in FALLBACK_NAMES}
    with translate_errors(from_botocore, url):
        found = make_session(S3Settings(profile=keywords.get("profile"), **fallback), url).get_credentials()
    if found is not None and found.method == METHOD:
        keywords.update(key=found.access_key, secret=found.secret_key, token=found.token)
    return keywords
