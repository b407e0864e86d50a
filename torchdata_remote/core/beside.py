"""URLs of objects beside another one, which are named after it."""

from __future__ import annotations

from .object_version import key_as_path, split_version
from .urls import HTTP, S3


def url_beside(url: str, ending: str) -> str:
    """Return the URL of the object that has the name of another one and an ending.

    A query of http stays behind the name: it may be a token of the whole folder. A version of an object of S3 is left
    out, because the other object has versions of its own.

    >>> url_beside("https://host/0.tar?download=true", ".keys"), url_beside("s3://photos/0.tar?versionId=3sL4", ".keys")
    ('https://host/0.tar.keys?download=true', 's3://photos/0.tar.keys')
    """
    scheme = url.partition("://")[0].lower()
    if scheme in HTTP:
        path, mark, query = url.partition("?")
        return f"{path}{ending}{mark}{query}"
    return key_as_path(split_version(url)[0] + ending) if scheme in S3 else f"{url}{ending}"
