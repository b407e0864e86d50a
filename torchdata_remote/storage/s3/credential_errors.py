"""Convert what a source of credentials fails with: the error names the source, and what to do."""

from __future__ import annotations

import json
import os
from typing import Any

from ...core.urls import redact
from ...errors import AccessDeniedError, StorageError, TransientStorageError
from ..errors import Table, details_of, network_error
from ..protocol import CredentialSourceError
from .credential_source import name_of_source, profile_of

_MOST_CHARACTERS = 300  # of a message, such as all that a command printed
_TRANSIENT_CODES = {
    "Throttling",
    "ThrottlingException",
    "TooManyRequestsException",
    "RequestLimitExceeded",
    "IDPCommunicationError",
}
_ADVICE = {
    "env": "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY together.",
    "assume-role": "Check role_arn and source_profile or credential_source there, and that the role trusts the source.",
    "assume-role-with-web-identity": "Check that the file exists and is current (Kubernetes mounts it for the service "
    "account of a pod), and that the role AWS_ROLE_ARN trusts it.",
    "sso": "Log in again: aws sso login --profile {profile}",
    "login": "Log in again: aws login --profile {profile}",
    "custom-process": "Run that command in a shell to see why.",
    "container-role": "Check AWS_CONTAINER_CREDENTIALS_FULL_URI or AWS_CONTAINER_CREDENTIALS_RELATIVE_URI, the token's "
    "file AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE, and that the task or the pod has a role.",
    "iam-role": "Check that the machine has an instance profile; in a container, that the hop limit of its metadata "
    "service is at least 2.",
}


def errors_of_source(method: str, session: Any) -> Table:
    """Return the function that converts the exceptions of a provider of botocore.

    A failure of the network, and one that AWS says is temporary, is transient. All others are permanent.

    Args:
        method: botocore's name of the provider.
        session: of botocore.
    """

    def convert(error: Exception, url: str, **_: bool) -> Exception:
        advice = _ADVICE.get(method, "Check that configuration.").format(profile=profile_of(session))
        message = f"{redact(url)}: no credentials from {name_of_source(method, session)}: {_what(error)}. {advice}"
        return _error(error, url, message)

    return convert


def _error(error: Exception, url: str, message: str) -> StorageError:
    from botocore import exceptions as boto  # here: importing botocore costs a tenth of a second

    if isinstance(error, boto.HTTPClientError | boto.ConnectionError):
        found = network_error(url, f"{type(error).__name__}: {error}", details_of(error))
        if isinstance(found, TransientStorageError):
            found.args = (message,)
        return found
    if isinstance(error, boto.ClientError):
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        code = error.response.get("Error", {}).get("Code")
        if status >= 500 or status == 429 or code in _TRANSIENT_CODES:
            return TransientStorageError(message, url=redact(url))
    return CredentialSourceError(message, url=redact(url))


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


def none_found(session: Any, url: str) -> AccessDeniedError:
    """Make the error for a chain without any credentials: it names all sources that were asked."""
    file = os.environ.get("AWS_CONFIG_FILE", "~/.aws/config")
    if os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        machine = "the machine's role is switched off by AWS_EC2_METADATA_DISABLED"
    else:
        address = session.get_config_variable("ec2_metadata_service_endpoint") or "169.254.169.254"
        machine = f"the metadata service of EC2 ({address}) does not answer, or has no role"
    return AccessDeniedError(
        f"{redact(url)}: Unable to locate credentials: there are none in the environment and in profile "
        f"{profile_of(session)!r} of {file}, and {machine}. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a "
        "profile, or storage_options={'key':, 'secret':}; a public bucket needs storage_options={'anon': True}.",
        url=redact(url),
    )
