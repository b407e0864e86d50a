"""Credentials of AWS by botocore's chain: environment, profiles, SSO, roles. A source that fails is named."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Mapping
from typing import Any

from ...core.urls import redact
from ...errors import AccessDeniedError, TransientStorageError
from ..credentials import Issued
from ..errors import Table, details_of, network_error, translate_errors
from ..option_checks import require_plain_text
from ..protocol import CONNECT_TIMEOUT_S, CredentialSourceError

OF_OPTIONS = "The credentials are from 'key' and 'secret' of storage_options."
NOT_SIGNED = "The request was not signed (anon=True)."
EARLY_S = 900.0  # botocore's own time before the end of credentials
OF_FALLBACK = "The credentials are the fallback credentials of storage_options, as the AWS environment has none."
_MOST_CHARACTERS = 300  # of a message, such as all that a command printed
_TEMPORARY = {
    "Throttling",
    "ThrottlingException",
    "TooManyRequestsException",
    "RequestLimitExceeded",
    "IDPCommunicationError",
}
# botocore's names of its sources: what they are called, and what to do where they fail
_SOURCES = {
    "env": ("the environment (AWS_ACCESS_KEY_ID)", "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY together."),
    "assume-role": (
        "the role (role_arn) in {config}",
        "Check role_arn and source_profile or credential_source there, and that the role trusts the source.",
    ),
    "assume-role-with-web-identity": (
        "a web identity (AWS_WEB_IDENTITY_TOKEN_FILE)",
        "Check that the file exists and is current (Kubernetes mounts it), and that the role AWS_ROLE_ARN trusts it.",
    ),
    "sso": ("SSO in {config}", "Log in again: aws sso login --profile {profile}"),
    "login": ("aws login in {config}", "Log in again: aws login --profile {profile}"),
    "custom-process": ("credential_process in {config}", "Run that command in a shell to see why."),
    "config-file": ("{config}", ""),
    "shared-credentials-file": ("{credentials}", ""),
    "container-role": (
        "the role of this container",
        "Check AWS_CONTAINER_CREDENTIALS_FULL_URI or ..._RELATIVE_URI, and that the task or the pod has a role.",
    ),
    "iam-role": (
        "the role of this machine",
        "Check its instance profile; in a container, that the hop limit of the metadata service is at least 2.",
    ),
}


def keys_of(options: Mapping[str, Any], url: str, prefix: str = "") -> dict[str, Any] | None:
    """Return the keys in options as obstore's providers do; ``None`` without any.

    Raises:
        AccessDeniedError: if one of a pair is missing.
    """
    key, secret, token = (options.get(prefix + name) for name in ("key", "secret", "token"))
    if (key is None) != (secret is None) or (token is not None and key is None):
        raise AccessDeniedError(
            f"{url}: storage_options needs '{prefix}key' and '{prefix}secret' together, and both for '{prefix}token'.",
            url=url,
        )
    return None if key is None else {"access_key_id": key, "secret_access_key": secret, "token": token}


def aws_session(profile: str | None, url: str) -> Any:
    """Make a botocore session, which reads the environment and the files of AWS.

    Raises:
        AccessDeniedError: if the profile does not exist.
    """
    import botocore.session  # takes 0.1 s, which a pipe over local files does not need
    from botocore.exceptions import ProfileNotFound

    session = botocore.session.Session(profile=profile)
    try:
        session.get_scoped_config()
    except ProfileNotFound as error:
        raise AccessDeniedError(f"{url}: {error}. See ~/.aws/config.", url=url) from error
    session.register_component("data_loader", _shared_loader(session.get_config_variable("data_path")))
    return session


@functools.cache
def _shared_loader(data_path: str | None) -> Any:
    """Return the loader that all sessions share: each loader would read the descriptions of services again."""
    from botocore.loaders import create_loader

    return create_loader(data_path)


def chain_of(profile: str | None, region: str, fallback: dict[str, Any] | None, url: str) -> Callable[[], Issued]:
    """Return a function that asks botocore's sources for credentials. Each call reads environment and files anew.

    Args:
        profile: of ``~/.aws/config``.
        region: in which a role is assumed, if its profile names none.
        fallback: used if no source is configured.
        url: of the bucket, for errors.
    """

    def issue() -> Issued:
        from botocore.config import Config
        from botocore.credentials import create_credential_resolver

        session = aws_session(profile, url)
        # Also of the clients for STS and SSO: botocore would wait for minutes, with the request of a store in line
        once = {"mode": "standard", "total_max_attempts": 1}
        timeouts = {"connect_timeout": CONNECT_TIMEOUT_S, "read_timeout": CONNECT_TIMEOUT_S}
        session.set_default_client_config(Config(retries=once, **timeouts))
        for source in create_credential_resolver(session, region_name=region).providers:
            method = str(source.METHOD)
            with translate_errors(_errors_of(method, session), url):
                found = source.load()
                frozen = None if found is None else found.get_frozen_credentials()
            if frozen is not None:
                name = _named(method, 0, session)
                names = ("access_key_id", "secret_access_key", "token")
                fields = dict(zip(names, (frozen.access_key, frozen.secret_key, frozen.token), strict=True))
                for field, value in fields.items():
                    require_plain_text(url, f"{field} of {name}", value)
                ends = getattr(found, "_expiry_time", None)  # it has no public name
                return Issued(fields, ends and ends.timestamp(), f"The credentials are from {name}.")
        if fallback is not None:
            return Issued(fallback, None, OF_FALLBACK)
        raise _none_found(session, url)

    return issue


def _named(method: str, column: int, session: Any) -> str:
    """Name a source of botocore (column 0), or say what to do (column 1)."""
    profile = str(session.get_config_variable("profile") or "default")
    config = f"{os.environ.get('AWS_CONFIG_FILE', '~/.aws/config')}, profile {profile!r}"
    credentials = f"{os.environ.get('AWS_SHARED_CREDENTIALS_FILE', '~/.aws/credentials')}, profile {profile!r}"
    text = _SOURCES.get(method, (method, "Check that configuration."))[column]
    return text.format(config=config, credentials=credentials, profile=profile)


def _errors_of(method: str, session: Any) -> Table:
    """Return the function that converts what a source raises: a fault of a network or of AWS is transient."""

    def convert(error: Exception, url: str, **_: bool) -> Exception:
        from botocore import exceptions as boto

        where = redact(url)
        what, advice = _what(error), _named(method, 1, session)
        message = f"{where}: no credentials from {_named(method, 0, session)}: {what}. {advice}".rstrip()
        if isinstance(error, boto.HTTPClientError | boto.ConnectionError):
            found = network_error(url, f"{type(error).__name__}: {error}", details_of(error))
            if isinstance(found, TransientStorageError):
                found.args = (message,)
            return found
        if isinstance(error, boto.ClientError):
            status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
            code = error.response.get("Error", {}).get("Code")
            if status >= 500 or status == 429 or code in _TEMPORARY:
                return TransientStorageError(message, url=where)
        return CredentialSourceError(message, url=where)

    return convert


def _what(error: Exception) -> str:
    """What happened, on one line."""
    from botocore import exceptions as boto

    text = str(error)
    if isinstance(error, json.JSONDecodeError):
        error.doc = ""  # all that the source sent, which may contain secrets
    if isinstance(error, boto.ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        problem = error.response.get("Error", {})
        text = f"{error.operation_name} was answered {status} {problem.get('Code', '')}: {problem.get('Message', '')}"
    elif isinstance(error, boto.CredentialRetrievalError):
        text = str(error.kwargs.get("error_msg", text))
    elif isinstance(error, OSError) and error.filename is not None:
        text = f"{error.strerror}: {os.fspath(error.filename)!r}"
    elif isinstance(error, KeyError):
        text = f"the answer has no {text}"
    elif not isinstance(error, boto.BotoCoreError):
        text = f"{type(error).__name__}: {text}"
    line = " ".join(text.split())
    return (line[:_MOST_CHARACTERS] + "..." * (len(line) > _MOST_CHARACTERS)).rstrip(".: ") or type(error).__name__


def _none_found(session: Any, url: str) -> AccessDeniedError:
    """Make the error for a chain without any credentials: it names all sources that were asked."""
    if os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        machine = "the machine's role is switched off by AWS_EC2_METADATA_DISABLED"
    else:
        address = session.get_config_variable("ec2_metadata_service_endpoint") or "169.254.169.254"
        machine = f"the metadata service of EC2 ({address}) does not answer, or has no role"
    profile = session.get_config_variable("profile") or "default"
    return AccessDeniedError(
        f"{redact(url)}: Unable to locate credentials: there are none in the environment and in profile {profile!r} of "
        f"{os.environ.get('AWS_CONFIG_FILE', '~/.aws/config')}, and {machine}. Set AWS_ACCESS_KEY_ID and "
        "AWS_SECRET_ACCESS_KEY, a profile, or storage_options={'key':, 'secret':}; a public bucket needs "
        "storage_options={'anon': True}.",
        url=redact(url),
    )
