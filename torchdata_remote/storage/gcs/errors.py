"""Errors of Google Cloud Storage: those of S3's XML API, with Google's reasons and remedies."""

from __future__ import annotations

from ...core.urls import redact
from ...errors import AccessDeniedError, ExpiredCredentialsError, ObjectNotFoundError, StorageError
from ..error_tables import from_obstore, status_and_code

_PAYER_CODES = {"UserProjectMissing", "UserProjectAccessDenied", "UserProjectAccountProblem"}


def from_reader(error: Exception, url: str) -> Exception:
    """Convert an error of obstore."""
    status, code = status_and_code(str(error))
    known = None if status is None else _of_google(status, code, redact(url))
    return known or from_obstore(error, url)


def _of_google(status: int, code: str, url: str) -> StorageError | None:
    """Make the error for a status that means something else than for S3, or that Google's words explain better."""
    message = f"{url}: the store answered {status} {code}".rstrip()
    if code in _PAYER_CODES:
        return AccessDeniedError(
            f"{message}. The owner of the bucket has others pay for requests: pass storage_options={{'requester_pays': "
            "'my-project'}, a project in which you may use services (serviceusage.services.use).",
            url=url,
        )
    if status == 401:
        return ExpiredCredentialsError(
            f"{message}: the access token is missing, expired, or of another service. Log in again (`gcloud auth "
            "application-default login`), or correct 'token' in storage_options.",
            url=url,
        )
    if status == 403:
        return AccessDeniedError(
            f"{message}. The account needs a role for the bucket: Storage Object Viewer to read, Storage Object User "
            "to write too. A public bucket needs storage_options={'token': 'anon'}.",
            url=url,
        )
    if code == "NoSuchBucket":
        bucket = url.partition("://")[2].partition("/")[0]
        return ObjectNotFoundError(
            f"{url}: no such bucket: {bucket!r}. Check its spelling, and that endpoint_url (storage_options or "
            "STORAGE_EMULATOR_HOST; none means Google) is the server that has it.",
            url=url,
        )
    return None
