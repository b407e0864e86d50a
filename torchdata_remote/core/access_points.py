"""Access points of S3 in URLs: ``s3://arn:aws:s3:us-west-2:123456789012:accesspoint/name/key``."""

from __future__ import annotations

import re

from ..errors import UrlError

_ARN = re.compile(
    r"(arn:[^:/]+:s3[a-z-]*:[^:/]*:\d{12}:(?:outpost[:/][^:/]+[:/])?accesspoint[:/][^:/]+)(?:/(.*))?", re.DOTALL
)
_BUCKET = re.compile(r"arn:[^:/]+:s3:::(.+)", re.DOTALL)


def split_arn(address: str) -> tuple[str, str]:
    """Split what follows ``s3://`` into the ARN of an access point, which stands for a bucket, and the path.

    >>> split_arn("arn:aws:s3:us-west-2:123456789012:accesspoint/name/train/0.tar")
    ('arn:aws:s3:us-west-2:123456789012:accesspoint/name', 'train/0.tar')

    Raises:
        UrlError: if it is the ARN of something else.
    """
    found = _ARN.fullmatch(address)
    if found is not None:
        return found[1], found[2] or ""
    shown = f"s3://{address}"
    bucket = _BUCKET.fullmatch(address)
    advice = f"; did you mean 's3://{bucket[1]}'?" if bucket is not None else "."
    raise UrlError(
        f"{shown}: not the ARN of an access point, such as arn:aws:s3:REGION:ACCOUNT:accesspoint/NAME{advice}",
        url=shown,
    )
