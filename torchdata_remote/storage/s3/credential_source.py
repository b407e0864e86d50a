"""Say where credentials came from, for errors of access. Their values are never shown."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ...core.options import StorageOptions
from .fallback_credentials import METHOD

if TYPE_CHECKING:
    from .settings import S3Settings

_OPTIONS = "'key' and 'secret' of storage_options"
_SOURCES = {  # botocore's names of its providers
    "explicit": _OPTIONS,
    METHOD: "the fallback credentials of storage_options, as the AWS environment has none",
    "env": "the environment (AWS_ACCESS_KEY_ID)",
    "iam-role": "the role of this machine",
    "container-role": "the role of this container",
    "assume-role-with-web-identity": "a web identity (AWS_WEB_IDENTITY_TOKEN_FILE)",
}
_OF_PROFILE = {
    "assume-role": "the role (role_arn)",
    "sso": "SSO",
    "login": "aws login",
    "custom-process": "credential_process",
    "config-file": "",
    "shared-credentials-file": "",
}


def advice_on_access(settings: S3Settings, session: Any) -> str:
    """Name what a refused request was sent with, in sentences: the source of the credentials, and a key of SSE-C."""
    key = " Or SSECustomerKey of storage_options['s3_additional_kwargs'] is not that of the object."
    return source_of_credentials(settings, session) + key * settings.requests.has_customer_key


def source_of_credentials(settings: S3Settings, session: Any) -> str:
    """Name the source of a botocore session's credentials, as a sentence; empty if none were loaded."""
    if settings.anon:
        return " The request was not signed (anon=True)."
    method = getattr(getattr(session, "_credentials", None), "method", None)  # get_credentials() might wait for a role
    return "" if method is None else f" The credentials are from {name_of_source(method, session)}."


def name_of_source(method: str, session: Any) -> str:
    """Name a provider of botocore, with the file and profile that configure it.

    Args:
        method: botocore's name of the provider.
        session: of botocore.
    """
    if method not in _OF_PROFILE:
        return _SOURCES.get(method, method)
    file = os.environ.get("AWS_CONFIG_FILE", "~/.aws/config")
    if method == "shared-credentials-file":
        file = os.environ.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials")
    what = _OF_PROFILE[method]
    return f"{what} in {file}, profile {profile_of(session)!r}".removeprefix(" in ")


def profile_of(session: Any) -> str:
    """Return the profile that a botocore session uses."""
    return str(session.get_config_variable("profile") or "default")


def source_of_options(options: StorageOptions) -> str:
    """Name the source of the credentials that s3fs uses."""
    if options.get("anon"):
        return " The request was not signed (anon=True)."
    nested = options.get("client_kwargs") or {}
    if any(options.get(name) is not None for name in ("key", "secret", "token")) or "aws_access_key_id" in nested:
        return f" The credentials are from {_OPTIONS}."
    return " The credentials are those that botocore finds (environment, ~/.aws, role)."
