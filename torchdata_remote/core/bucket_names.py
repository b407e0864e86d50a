"""Buckets whose names look like something else: ARNs of access points, and names with an @ in them."""

from __future__ import annotations

import re

_ACCESS_POINT = re.compile(
    r"(arn:aws[a-z-]*:(?:s3|s3-object-lambda):[a-z0-9-]*:\d{12}:accesspoint[/:][A-Za-z0-9.-]{1,63}"
    r"|arn:aws[a-z-]*:s3-outposts:[a-z0-9-]+:\d{12}:outpost[/:][A-Za-z0-9-]{1,63}[/:]accesspoint[/:][A-Za-z0-9-]{1,63})"
    r"(?:/(.*))?",
    re.DOTALL,
)
_NAME = re.compile(r"[A-Za-z0-9._-]{1,255}")
_SCHEME_BEFORE = re.compile(r"[a-z]*$")
_LONGEST_SCHEME = 8
# What is before an @ without being a credential: a container before its account, a repository before its revision
_CONTAINER = re.compile(r"[A-Za-z0-9_.$-]{1,63}")
_REPOSITORY = re.compile(r"(?!hf_)[A-Za-z0-9_.-]{1,96}")
_BEFORE_AT = dict.fromkeys(("az", "abfs", "abfss", "wasb", "wasbs"), _CONTAINER) | {"hf": _REPOSITORY}


def split_access_point(rest: str) -> tuple[str, str] | None:
    """Split what follows ``s3://`` into the ARN of an access point and the key; ``None`` if it begins with none.

    >>> split_access_point("arn:aws:s3:eu-west-1:123456789012:accesspoint/mine/cat/1.jpg")
    ('arn:aws:s3:eu-west-1:123456789012:accesspoint/mine', 'cat/1.jpg')
    """
    found = _ACCESS_POINT.fullmatch(rest)
    return None if found is None else (found[1], found[2] or "")


def is_name_of_s3(bucket: str) -> bool:
    """Whether botocore accepts the name of a bucket; obstore requests another URL, or aborts, for one that it refuses.

    >>> [is_name_of_s3(name) for name in ("my.photos_1", "my photos", "..", "")]
    [True, False, False, False]
    """
    return _NAME.fullmatch(bucket) is not None and bucket.strip(".") != ""


def is_name_before_at(scheme: str, text: str) -> bool:
    """Whether the text before an @ is a name of the store, rather than credentials.

    >>> is_name_before_at("abfss", "photos"), is_name_before_at("abfss", "me:password"), is_name_before_at("s3", "me")
    (True, False, False)
    """
    pattern = _BEFORE_AT.get(scheme)
    return pattern is not None and pattern.fullmatch(text) is not None


def without_user_info(found: re.Match[str]) -> str:
    """Return what replaces ``://USER@``, whose user is the first group: names stay, credentials do not."""
    before = found.string[max(0, found.start() - _LONGEST_SCHEME) : found.start()].lower()
    scheme = _SCHEME_BEFORE.search(before)
    return found[0] if scheme is not None and is_name_before_at(scheme[0], found[1]) else "://"
