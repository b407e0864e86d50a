"""What requests to S3 carry at the user's wish: who pays, encryption, the owner, properties of written objects.

The names are those of s3fs: ``requester_pays``, and in ``s3_additional_kwargs`` the arguments of botocore's operations.
An argument is added to each operation that has it, as s3fs does: a key of SSE-C goes with parts, reads and lookups, a
storage class with what creates an object. obstore, which only reads, sends the same as headers, which it signs.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Collection, Mapping
from typing import Any

from ...core.arguments import check
from ...core.options import StorageOptions

_OPTION = "s3_additional_kwargs"
_SSE, _KMS_KEY, _KMS_CONTEXT = "ServerSideEncryption", "SSEKMSKeyId", "SSEKMSEncryptionContext"
_BUCKET_KEY, _ALGORITHM, _KEY = "BucketKeyEnabled", "SSECustomerAlgorithm", "SSECustomerKey"
_OWNER, _PAYER = "ExpectedBucketOwner", "RequestPayer"
_TEXTS = (
    *("ACL", "CacheControl", "ChecksumAlgorithm", "ContentDisposition", "ContentLanguage", "ContentType", _OWNER),
    *("GrantFullControl", "GrantRead", "GrantReadACP", "GrantWriteACP", _PAYER, "StorageClass", "Tagging"),
    *(_SSE, _KMS_KEY, _KMS_CONTEXT, _ALGORITHM),
)
ARGUMENTS = frozenset({*_TEXTS, "Metadata", _BUCKET_KEY, _KEY})
_KEY_BYTES = 32  # of AES256, the only algorithm of SSE-C
_HEADER = "x-amz-server-side-encryption-customer-"


class RequestOptions:
    """Arguments that are added to requests.

    Args:
        arguments: of botocore's operations, validated.
    """

    def __init__(self, arguments: Mapping[str, Any] | None = None) -> None:
        self._arguments = dict(arguments or {})

    def of(self, members: Collection[str]) -> dict[str, Any]:
        """Return the arguments for an operation that has these."""
        return {name: value for name, value in self._arguments.items() if name in members}

    @property
    def has_customer_key(self) -> bool:
        """Whether objects are encrypted by a key that each request carries (SSE-C)."""
        return _KEY in self._arguments

    def reading_headers(self) -> dict[str, str]:
        """Return the headers of a GET, for a transport that has no names for them."""
        headers = {}
        if _PAYER in self._arguments:
            headers["x-amz-request-payer"] = self._arguments[_PAYER]
        if _OWNER in self._arguments:
            headers["x-amz-expected-bucket-owner"] = self._arguments[_OWNER]
        if self.has_customer_key:
            key = self._arguments[_KEY]
            digest = hashlib.md5(key, usedforsecurity=False).digest()
            headers[f"{_HEADER}algorithm"] = self._arguments[_ALGORITHM]
            headers[f"{_HEADER}key"] = base64.b64encode(key).decode()
            headers[f"{_HEADER}key-MD5"] = base64.b64encode(digest).decode()
        return headers


def request_options(options: StorageOptions) -> RequestOptions:
    """Translate ``requester_pays`` and the names of ``s3_additional_kwargs`` that have a translation."""
    given = {name: one for name, one in (options.get(_OPTION) or {}).items() if name in ARGUMENTS and one is not None}
    if _KEY in given:
        given[_KEY] = customer_key(given[_KEY])
    if check.flag("storage_options['requester_pays']", options.get("requester_pays") or False):
        given[_PAYER] = "requester"
    return RequestOptions(given)


def for_s3fs(keywords: dict[str, Any]) -> dict[str, Any]:
    """Return the options for s3fs, which takes a key of SSE-C as bytes only."""
    given = keywords.get(_OPTION) or {}
    if given.get(_KEY) is None:
        return keywords
    return {**keywords, _OPTION: {**given, _KEY: customer_key(given[_KEY])}}


def untranslated_arguments(options: StorageOptions) -> list[str]:
    """Return how the names without a translation are written, for the warning that s3fs is used."""
    return [f"{_OPTION}[{name!r}]" for name in sorted((options.get(_OPTION) or {}).keys() - ARGUMENTS)]


def customer_key(key: str | bytes) -> bytes:
    """Return the 32 bytes of a key: given as such, or as base64 in a text, as in a file of options.

    Raises:
        ValueError: if it is neither.
    """
    data = key.encode() if isinstance(key, str) else bytes(key)
    if len(data) != _KEY_BYTES:
        data = base64.b64decode(data, validate=True)
    if len(data) != _KEY_BYTES:
        raise ValueError(f"expected {_KEY_BYTES} bytes")
    return data
