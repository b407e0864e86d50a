"""Requests for a version of an object: ``?versionId=`` at the end of a URL."""

from __future__ import annotations

from typing import Any

from ...core.object_version import split_version
from ...core.urls import redact
from ...errors import ObjectNotFoundError, UrlError
from ..error_tables import from_botocore, from_obstore, status_and_code

_DELETE_MARKER = 405  # for a version that says that the object was deleted
_NO_SUCH_VERSION = ("InvalidArgument", "NoSuchVersion")


def named(path: str) -> dict[str, Any]:
    """Return botocore's arguments that name an object: its key and, if the path has one, its version."""
    key, version = split_version(path)
    return {"Key": key} if version is None else {"Key": key, "VersionId": version}


def version_of(path: str) -> str | None:
    """Return the version that a path or URL names; ``None`` for the current one."""
    return split_version(path)[1]


def require_current(path: str, url: str) -> None:
    """Refuse to write or delete a version.

    Raises:
        UrlError: if the path has one.
    """
    version = version_of(path)
    if version is not None:
        raise UrlError(
            f"{url}: a version of an object is neither written nor deleted: leave out ?versionId={version}. If it is "
            "a part of the key, add ?versionId= after it.",
            url=url,
        )


def botocore_error(error: Exception, url: str, *, writing: bool = False) -> Exception:
    """Convert an error of botocore. AWS answers 400 for a version that does not exist, to HEAD without a reason."""
    from botocore.exceptions import ClientError

    if version_of(url) is not None and isinstance(error, ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        if status == _DELETE_MARKER:
            return _no_such_version(url)
        if status == 400 and error.response.get("Error", {}).get("Code") in ("400", *_NO_SUCH_VERSION):
            return _no_such_version(url)
    return from_botocore(error, url, writing=writing)


def obstore_error(error: Exception, url: str) -> Exception:
    """Convert an error of obstore, as :func:`botocore_error` does."""
    status, code = status_and_code(str(error))
    if version_of(url) is not None and (status == _DELETE_MARKER or (status == 400 and code in _NO_SUCH_VERSION)):
        return _no_such_version(url)
    return from_obstore(error, url)


def _no_such_version(url: str) -> ObjectNotFoundError:
    shown = redact(url)
    return ObjectNotFoundError(
        f"{shown}: no such version {version_of(url)!r}. If ?versionId= is a part of the key, add ?versionId= after it.",
        url=shown,
    )
