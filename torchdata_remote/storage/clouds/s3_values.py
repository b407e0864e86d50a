"""The names in s3fs's nested options that have a translation, and the values that they may have.

``client_kwargs`` are arguments of botocore's client, ``config_kwargs`` of its ``Config``, and ``s3_additional_kwargs``
of the operations of S3. Values are never shown: they may be passwords and keys.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Callable, Mapping
from typing import Any

from ...core.arguments import check
from ...core.options import StorageOptions
from ...errors import UrlError
from ..network import require_usable_proxies
from ..option_checks import require_plain_text

KEY, OWNER, PAYER = "SSECustomerKey", "ExpectedBucketOwner", "RequestPayer"
_SSE, _KMS_KEY, _KMS_CONTEXT = "ServerSideEncryption", "SSEKMSKeyId", "SSEKMSEncryptionContext"
_BUCKET_KEY, _METADATA, _ALGORITHM = "BucketKeyEnabled", "Metadata", "SSECustomerAlgorithm"
_TEXTS = (
    *("ACL", "CacheControl", "ChecksumAlgorithm", "ContentDisposition", "ContentLanguage", "ContentType"),
    *("GrantFullControl", "GrantRead", "GrantReadACP", "GrantWriteACP", "StorageClass", "Tagging"),
    *(_SSE, _KMS_KEY, _KMS_CONTEXT, _ALGORITHM, OWNER, PAYER),
)
ARGUMENTS = frozenset({*_TEXTS, _METADATA, _BUCKET_KEY, KEY})
_FLAGS = ("use_dualstack_endpoint", "use_fips_endpoint")
_FLAGS_OF_S3 = ("use_accelerate_endpoint", "use_arn_region", "disable_multiregion_access_points")
_SECONDS = ("connect_timeout", "read_timeout")
CONFIG = frozenset({"proxies", "proxies_config", "s3", "max_pool_connections", "user_agent", *_FLAGS, *_SECONDS})
OF_S3 = frozenset({"addressing_style", "us_east_1_regional_endpoint", "use_dualstack_endpoint", *_FLAGS_OF_S3})
CONFIG_OF_S3 = OF_S3 | {"payload_signing_enabled"}  # that botocore knows
_ENCRYPTIONS = ("AES256", "aws:kms", "aws:kms:dsse")
_KEY_BYTES = 32  # of AES256, the only algorithm of SSE-C


def mapping(options: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return an option that is a dict, without the values that are ``None``."""
    return {name: value for name, value in (options.get(name) or {}).items() if value is not None}


def _is_file(value: Any) -> bool:
    return isinstance(value, str | os.PathLike) and value != ""


def _are_files(value: Any) -> bool:
    files = value if isinstance(value, list | tuple) else [value]
    return 0 < len(files) <= 2 and all(map(_is_file, files))


def _is_amount(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e6


def _is_metadata(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(one, str) for pair in value.items() for one in pair)


def _kind(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kind)


_FILES = (_are_files, "a file with certificate and key, or two files")
# What an option must be, in whichever dict it is
_EXPECTED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "session": (lambda value: hasattr(value, "create_client"), "a session of aiobotocore"),
    "verify": (lambda it: _kind(bool)(it) or _is_file(it), "a file of certificate authorities, True or False"),
    "client_cert": _FILES,
    "proxy_client_cert": _FILES,
    "proxy_ca_bundle": (_is_file, "a file"),
    "max_pool_connections": (lambda it: _is_amount(it) and _kind(int)(it), "a number of connections above 0"),
    **dict.fromkeys(_SECONDS, (_is_amount, "a number of seconds above 0")),
    **dict.fromkeys(("s3", "retries", "proxies_config"), (_kind(Mapping), "a dict")),
    **dict.fromkeys((*_FLAGS, *_FLAGS_OF_S3, _BUCKET_KEY), (_kind(bool), "True or False")),
    **dict.fromkeys(("user_agent", *_TEXTS), (_kind(str), "a str")),
    _METADATA: (_is_metadata, "a dict of str"),
}


def require_usable(where: str, options: StorageOptions) -> None:
    """Validate the values of nested options, and of those that s3fs would fail on without their name.

    Args:
        where: the URL, for the error, without credentials.
        options: for s3, whose dicts are known to be dicts.

    Raises:
        UrlError: names the option.
    """
    config = mapping(options, "config_kwargs")
    _require_kinds(where, "storage_options", options)
    for name in ("client_kwargs", "config_kwargs", "s3_additional_kwargs"):
        _require_kinds(where, f"storage_options[{name!r}]", mapping(options, name))
    for name in ("s3", "proxies_config"):
        _require_kinds(where, f"storage_options['config_kwargs'][{name!r}]", mapping(config, name))
    if "proxies" in config:
        require_usable_proxies(where, "storage_options['config_kwargs']['proxies']", config["proxies"])
    _require_encryption(where, mapping(options, "s3_additional_kwargs"))


def _require_kinds(where: str, shown: str, given: Mapping[str, Any]) -> None:
    for name in given.keys() & _EXPECTED.keys():
        (is_right, expected), value = _EXPECTED[name], given[name]
        if value is not None and not is_right(value):
            kind = repr(value) if isinstance(value, int | float) and "number" in expected else check.a_kind(value)
            raise UrlError(f"{where}: {shown}[{name!r}] must be {expected}, got {kind}.", url=where)
        require_plain_text(where, f"{shown}[{name!r}]", value)


def _require_encryption(where: str, given: Mapping[str, Any]) -> None:
    """Refuse what a server might ignore: objects would be stored without the encryption that was meant."""
    encryption, algorithm = given.get(_SSE, ""), given.get(_ALGORITHM)
    by_kms, usual = encryption.startswith("aws:kms"), ", ".join(map(repr, _ENCRYPTIONS))
    is_key = customer_key(given.get(KEY)) is not None
    for is_wrong, name, problem in (
        (encryption not in ("", *_ENCRYPTIONS, "aws:fsx"), _SSE, f"is {encryption!r}; expected one of {usual}."),
        *(
            (name in given and not by_kms, name, f"needs {_SSE!r}: 'aws:kms' or 'aws:kms:dsse' beside it.")
            for name in (_KMS_KEY, _KMS_CONTEXT, _BUCKET_KEY)
        ),
        ((KEY in given) != (_ALGORITHM in given), KEY, f"and {_ALGORITHM!r}: 'AES256' belong together."),
        (KEY in given and _SSE in given, KEY, f"and {_SSE!r} exclude each other: a key of yours, or one of the store."),
        (algorithm not in (None, "AES256"), _ALGORITHM, f"is {algorithm!r}; S3 knows 'AES256' only."),
        (KEY in given and not is_key, KEY, f"must have {_KEY_BYTES} bytes, for AES256, or be a str with their base64."),
    ):
        if is_wrong:
            raise UrlError(f"{where}: storage_options['s3_additional_kwargs'][{name!r}] {problem}", url=where)


def customer_key(key: object) -> bytes | None:
    """Return the 32 bytes of a key: given as such, or as base64 in a text; ``None`` if it is neither."""
    data = key.encode() if isinstance(key, str) else bytes(key) if isinstance(key, bytes | bytearray) else b""
    if len(data) != _KEY_BYTES:
        try:
            data = base64.b64decode(data, validate=True)
        except (ValueError, binascii.Error):
            return None
    return data if len(data) == _KEY_BYTES else None
