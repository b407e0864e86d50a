"""What requests to S3 carry at the user's wish: who pays, encryption, the owner, properties of written objects.

The names are those of s3fs: ``requester_pays``, and in ``s3_additional_kwargs`` the arguments of botocore's operations.
An argument is added to each operation that has it, as s3fs does: a key of SSE-C goes with parts, reads and lookups, a
storage class with what creates an object. obstore, which only reads, sends the same as headers, which it signs.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Collection, Mapping
from typing import Any

from ...core.arguments import check
from ...core.options import StorageOptions
from ...errors import UrlError
from ..option_checks import require_plain_text

_OPTION = "s3_additional_kwargs"
_SHOWN = f"storage_options[{_OPTION!r}]"
_SSE, _KMS_KEY, _KMS_CONTEXT = "ServerSideEncryption", "SSEKMSKeyId", "SSEKMSEncryptionContext"
_BUCKET_KEY, _ALGORITHM, _KEY = "BucketKeyEnabled", "SSECustomerAlgorithm", "SSECustomerKey"
_OWNER, _PAYER = "ExpectedBucketOwner", "RequestPayer"
_TEXTS = (
    *("ACL", "CacheControl", "ChecksumAlgorithm", "ContentDisposition", "ContentLanguage", "ContentType", _OWNER),
    *("GrantFullControl", "GrantRead", "GrantReadACP", "GrantWriteACP", _PAYER, "StorageClass", "Tagging"),
    *(_SSE, _KMS_KEY, _KMS_CONTEXT, _ALGORITHM),
)
ARGUMENTS = frozenset({*_TEXTS, "Metadata", _BUCKET_KEY, _KEY})
_ENCRYPTIONS = ("AES256", "aws:kms", "aws:kms:dsse", "aws:fsx")
_BY_KMS = ("aws:kms", "aws:kms:dsse")
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
        given[_KEY] = _customer_key(given[_KEY])
    if check.flag("storage_options['requester_pays']", options.get("requester_pays") or False):
        given[_PAYER] = "requester"
    return RequestOptions(given)


def for_s3fs(keywords: dict[str, Any]) -> dict[str, Any]:
    """Return the options for s3fs, which takes a key of SSE-C as bytes only."""
    given = keywords.get(_OPTION) or {}
    if given.get(_KEY) is None:
        return keywords
    return {**keywords, _OPTION: {**given, _KEY: _customer_key(given[_KEY])}}


def untranslated_arguments(options: StorageOptions) -> list[str]:
    """Return how the names without a translation are written, for the warning that s3fs is used."""
    return [f"{_OPTION}[{name!r}]" for name in sorted((options.get(_OPTION) or {}).keys() - ARGUMENTS)]


def _customer_key(key: str | bytes) -> bytes:
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


def require_usable_arguments(where: str, options: StorageOptions) -> None:
    """Validate ``s3_additional_kwargs``. A key is never shown.

    Args:
        where: the URL, for the error, without credentials.
        options: for s3; the mapping itself is validated.

    Raises:
        UrlError: for a value of another kind, an unknown encryption, or arguments that exclude or need each other.
    """
    given = {name: value for name, value in (options.get(_OPTION) or {}).items() if value is not None}
    _require_kinds(where, given)
    encryption = given.get(_SSE)
    if encryption is not None and encryption not in _ENCRYPTIONS:
        usual = ", ".join(map(repr, _ENCRYPTIONS[:3]))
        raise _unusable(where, _SSE, f"is {encryption!r}; expected one of {usual}.")
    for name in (_KMS_KEY, _KMS_CONTEXT, _BUCKET_KEY):
        if name in given and encryption not in _BY_KMS:
            raise _unusable(where, name, f"needs {_SSE!r}: 'aws:kms' or 'aws:kms:dsse' beside it.")
    if (_KEY in given) != (_ALGORITHM in given):
        raise _unusable(where, _KEY, f"and {_ALGORITHM!r}: 'AES256' belong together.")
    if _KEY in given:
        if encryption is not None:
            raise _unusable(where, _KEY, f"and {_SSE!r} exclude each other: a key of yours, or one of the store.")
        if given[_ALGORITHM] != "AES256":
            raise _unusable(where, _ALGORITHM, f"is {given[_ALGORITHM]!r}; S3 knows 'AES256' only.")
        _require_key(where, given[_KEY])
        _require_https(where, options)


def _require_kinds(where: str, given: Mapping[str, Any]) -> None:
    for name, value in given.items():
        if name in _TEXTS and not isinstance(value, str):
            raise _unusable(where, name, f"must be a str, got {check.a_kind(value)}.")
        if name in _TEXTS:
            require_plain_text(where, f"{_SHOWN}[{name!r}]", value)
        if name == _BUCKET_KEY and not isinstance(value, bool):
            raise _unusable(where, name, f"must be a bool, got {check.a_kind(value)}.")
        if name == _KEY and not isinstance(value, str | bytes | bytearray):
            raise _unusable(where, name, f"must be bytes, or a str with their base64, got {check.a_kind(value)}.")
        if name == "Metadata" and not (
            isinstance(value, Mapping) and all(isinstance(one, str) for pair in value.items() for one in pair)
        ):
            raise _unusable(where, name, "must be a dict of str.")


def _require_key(where: str, key: str | bytes) -> None:
    try:
        _customer_key(key)
    except (ValueError, binascii.Error):
        raise _unusable(
            where, _KEY, f"must have {_KEY_BYTES} bytes, for AES256, or be a str with their base64; got {len(key)}."
        ) from None


def _require_https(where: str, options: StorageOptions) -> None:
    nested = options.get("client_kwargs") or {}
    endpoint_url = str(options.get("endpoint_url") or nested.get("endpoint_url") or "").lower()
    host = endpoint_url.removeprefix("http://").partition("/")[0].partition(":")[0]
    if endpoint_url.startswith("http://") and host.endswith((".amazonaws.com", ".amazonaws.com.cn")):
        raise _unusable(where, _KEY, "is sent with each request, and AWS accepts it by https only: use https://.")


def _unusable(where: str, name: str, problem: str) -> UrlError:
    return UrlError(f"{where}: {_SHOWN}[{name!r}] {problem}", url=where)
