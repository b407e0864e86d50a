"""Requests for a version of an object: ``?versionId=`` at the end of a URL."""

from __future__ import annotations

from typing import Any

from ...core.object_version import split_version
from ...errors import UrlError


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
