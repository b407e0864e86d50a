"""Buckets of clouds: a user's options as configuration and credentials of an obstore store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core.options import StorageOptions
from ...core.urls import GS, S3
from ...errors import RemoteDataError
from ..errors import unusable_options

if TYPE_CHECKING:
    from .bucket import CloudBucket


def make_bucket(scheme: str, name: str, options: StorageOptions, read_timeout_s: float) -> CloudBucket:
    """Translate options that all have a word in obstore.

    Args:
        scheme: of the URL.
        name: of the bucket or container.
        options: of the user.
        read_timeout_s: seconds without a byte after which a request fails.

    Raises:
        UrlError: if a value cannot be used.
        AccessDeniedError: if credentials are incomplete.
    """
    try:
        if scheme in S3:
            from .s3 import S3Bucket as Bucket
        elif scheme in GS:
            from .gcs import GcsBucket as Bucket  # type: ignore[assignment]
        else:
            from .azure import AzureBucket as Bucket  # type: ignore[assignment]
        return Bucket(f"{scheme}://{name}", name, options, read_timeout_s)
    except RemoteDataError:
        raise
    except (TypeError, ValueError, AttributeError) as error:
        raise unusable_options(scheme, name, error, options) from error
