"""Errors of Azure, as Microsoft documents their codes."""

from __future__ import annotations

import pytest

from torchdata_remote.errors import (
    AccessDeniedError,
    ExpiredCredentialsError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    StorageError,
    TransientStorageError,
)
from torchdata_remote.storage.azure.errors import from_azure, from_reader
from torchdata_remote.storage.protocol import RangeNotSatisfiableError

URL = "az://box/a"
OUTSIDE = "Signature not valid in the specified time frame: Start [..] - Expiry [..] - Current [..]"


@pytest.mark.parametrize(
    ("status", "code", "writing", "kind", "text"),
    [
        (404, "BlobNotFound", False, ObjectNotFoundError, "no such object"),
        (404, "ContainerNotFound", True, ObjectNotFoundError, "no such container: 'box'"),
        (412, "ConditionNotMet", False, ObjectChangedError, "was replaced"),
        (412, "ConditionNotMet", True, ObjectExistsError, "exists already"),
        (409, "BlobAlreadyExists", True, ObjectExistsError, "exists already"),
        (416, "InvalidRange", False, RangeNotSatisfiableError, "416"),
        (401, "InvalidAuthenticationInfo", False, ExpiredCredentialsError, "Renew the credentials"),
        (403, "AuthenticationFailed", False, AccessDeniedError, "not valid for this account and container"),
        (403, "AuthorizationPermissionMismatch", True, AccessDeniedError, "Storage Blob Data Contributor"),
        (409, "PublicAccessNotPermitted", False, AccessDeniedError, "instead of anon=True"),
        (409, "BlobArchived", False, StorageError, "Rehydrate"),
        (412, "LeaseIdMissing", True, StorageError, "holds a lease"),
        (400, "InvalidBlockList", True, StorageError, "Another writer has written this object meanwhile"),
        (400, "InvalidHeaderValue", False, StorageError, "400 InvalidHeaderValue"),
    ],
)
def test_each_code_is_one_error(status: int, code: str, writing: bool, kind: type[Exception], text: str) -> None:
    """The same from a response and from obstore, which shows it in a text."""
    error = from_azure(status, code, URL, writing=writing)
    assert isinstance(error, kind)
    assert text in str(error)
    assert not isinstance(error, TransientStorageError)
    if not writing:
        body = f"<?xml?><Error><Code>{code}</Code></Error>"
        shown = from_reader(OSError(f"Server returned non-2xx status code: {status} X: {body}"), URL)
        assert (type(shown), str(shown)) == (type(error), str(error))


@pytest.mark.parametrize(
    ("status", "code", "overloaded"),
    [
        (503, "ServerBusy", True),
        (500, "OperationTimedOut", True),
        (500, "InternalError", False),
        (409, "ContainerBeingDeleted", False),
        (429, "", True),
        (502, "", False),
    ],
)
def test_what_passes_is_repeated(status: int, code: str, overloaded: bool) -> None:
    """And a busy account is asked less, when it says so."""
    error = from_azure(status, code, URL, retry_after="7")
    assert isinstance(error, TransientStorageError)
    assert (error.overloaded, error.retry_after_s) == (overloaded, 7.0)


def test_an_expired_signature_is_told_from_a_wrong_one() -> None:
    """Azure says it in the details of the response only, which may show parts of the signature."""
    error = from_azure(403, "AuthenticationFailed", URL, details=OUTSIDE)
    assert isinstance(error, ExpiredCredentialsError)
    assert "time frame" not in str(error)


def test_what_is_private_is_missing_for_anonymous_requests() -> None:
    """The error says so."""
    error = from_azure(404, "ResourceNotFound", URL, anonymous=True)
    assert isinstance(error, ObjectNotFoundError)
    assert "anonymous requests for what is private" in str(error)
