"""Convert error responses of Azure Blob Storage, and obstore's errors about them, to this package's errors.

Codes: https://learn.microsoft.com/en-us/rest/api/storageservices/blob-service-error-codes
"""

from __future__ import annotations

import re

from ...core.urls import redact
from ...errors import (
    AccessDeniedError,
    ExpiredCredentialsError,
    ObjectNotFoundError,
    StorageError,
    TransientStorageError,
)
from ..error_tables import from_obstore, status_and_code
from ..errors import from_status

_EXPIRED = re.compile(r"not valid in the specified time frame|Lifetime validation failed|has expired|is expired")
# Answers to credentials that are not valid any more: codes of RFC 6749 and of Microsoft Entra ID
_WITHDRAWN = re.compile(r"invalid_grant|invalid_client|unauthorized_client|access_denied|AADSTS(?:7000\d+|50\d+|65\d+)")
_TRANSIENT = {"ServerBusy", "OperationTimedOut", "InternalError", "ContainerBeingDeleted", "AccountBeingCreated"}
_EXISTS = {"BlobAlreadyExists", "UnauthorizedBlobOverwrite", "ConditionNotMet", "TargetConditionNotMet"}
_DENIED = {
    "PublicAccessNotPermitted": "The account allows no anonymous access: credentials are needed instead of anon=True.",
    "AuthorizationPermissionMismatch": "The identity needs a role for data, such as 'Storage Blob Data Contributor', "
    "or the SAS more permissions.",
    "AuthorizationFailure": "The key or SAS does not allow this, or the firewall of the account refuses this network.",
    "KeyBasedAuthenticationNotPermitted": "The account refuses account keys: use an identity, without 'account_key'.",
    "AccountIsDisabled": "The storage account is disabled.",
    "AuthenticationFailed": "The account key or the SAS is not valid for this account and container.",
    "NoAuthenticationInformation": "The request was not authorized, and the container is not public.",
}
_PERMANENT = {
    "InvalidBlockList": "Another writer has written this object meanwhile, which discards what this one has sent. "
    "Write it again.",
    "BlobArchived": "The object is in the archive tier, where it cannot be read. Rehydrate it first.",
    "BlobImmutableDueToPolicy": "The object is protected by an immutability policy.",
    "LeaseIdMissing": "Another program holds a lease of the object. Write another name, or end the lease.",
    "SnapshotsPresent": "The object has snapshots. Delete them first.",
}


class MissingContainerError(ObjectNotFoundError):
    """The account has no such container."""


def from_azure(
    status: int,
    code: str,
    url: str,
    *,
    details: str = "",
    writing: bool = False,
    retry_after: str | None = None,
    anonymous: bool = False,
) -> Exception:
    """Make the error for a response.

    Args:
        status: of the response.
        code: Azure's, such as ``BlobNotFound``, or empty.
        url: of the object or container.
        details: text of the response, in which an expiry is searched; it is never shown.
        writing: whether the request would have written an object.
        retry_after: the header, if the transport shows it.
        anonymous: whether the request had no credentials.
    """
    url = redact(url)
    message = f"{url}: the store answered {status} {code}".rstrip() + "."
    if code in _TRANSIENT or status == 429:
        transient = from_status(503 if code != "InternalError" else 500, code, url, retry_after=retry_after)
        assert isinstance(transient, TransientStorageError)
        transient.overloaded = code in ("ServerBusy", "OperationTimedOut") or status == 429
        transient.args = (message,)
        return transient
    if code in _PERMANENT:
        return StorageError(f"{message} {_PERMANENT[code]}", url=url)
    if code in ("ContainerNotFound", "ContainerDisabled"):
        return _missing_container(url)
    if writing and (code in _EXISTS or (status in (409, 412) and not code)):
        return from_status(412, "", url, writing=True)
    if status in (401, 403) or code in _DENIED:
        # 401 is the answer to a token that is not valid; obstore does not show the code of a response without a body
        refused_token = code == "InvalidAuthenticationInfo" or (status == 401 and not code and not anonymous)
        if refused_token or _EXPIRED.search(details):
            return ExpiredCredentialsError(f"{message} Renew the credentials, and check this machine's clock.", url=url)
        advice = _DENIED.get(code, "Check the credentials (storage_options or the environment) and their rights.")
        return AccessDeniedError(f"{message} {advice}", url=url)
    if status == 404:
        private = " Azure gives this answer to anonymous requests for what is private, too." if anonymous else ""
        return ObjectNotFoundError(f"{url}: no such object.{private}", url=url)
    return from_status(status, code, url, writing=writing, retry_after=retry_after)


def _missing_container(url: str) -> MissingContainerError:
    container = url.partition("://")[2].partition("/")[0]
    return MissingContainerError(
        f"{url}: no such container: {container!r}. Check its spelling, and that the account (account_name, "
        "AZURE_STORAGE_ACCOUNT_NAME or the connection string) is the one that has it.",
        url=url,
    )


def may_pass(error: BaseException, *, has_worked: bool) -> bool:
    """Whether an error of azure-identity is one of a server or network, after which a token may be had again.

    Args:
        error: as raised.
        has_worked: whether the same credentials have got a token before.
    """
    if has_worked and _WITHDRAWN.search(str(error)) is None:
        return True
    current: BaseException | None = error
    while current is not None:
        if {kind.__name__ for kind in type(current).__mro__} & {"ServiceRequestError", "ServiceResponseError"}:
            return True
        status = getattr(getattr(current, "response", None), "status_code", None) or getattr(
            current, "status_code", None
        )
        if isinstance(status, int) and (status >= 500 or status in (408, 429)):
            return True
        current = current.__cause__
    return False


def from_reader(error: Exception, url: str, *, writing: bool = False, anonymous: bool = False) -> Exception:
    """Convert an error of obstore. Its generic errors contain the response in their text only."""
    text = str(error)
    status, code = status_and_code(text)
    if status is None:
        return from_obstore(error, url)
    return from_azure(status, code, url, details=text, writing=writing, anonymous=anonymous)
