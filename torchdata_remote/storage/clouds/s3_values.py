"""The names of s3fs's nested options that obstore has words for, and which values they may have.

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

Table = dict[str, str]
# Arguments of operations: obstore's words
IN_CONFIG: Table = {
    "BucketKeyEnabled": "sse_bucket_key_enabled",
    "ChecksumAlgorithm": "checksum_algorithm",
    "RequestPayer": "request_payer",
    "SSEKMSKeyId": "sse_kms_key_id",
    "ServerSideEncryption": "server_side_encryption",
}
AS_ATTRIBUTES: Table = {
    "CacheControl": "Cache-Control",
    "ContentDisposition": "Content-Disposition",
    "ContentLanguage": "Content-Language",
    "ContentType": "Content-Type",
    "StorageClass": "Storage-Class",
}
OWNER, TAGS, METADATA, KEY, ALGORITHM = (
    *("ExpectedBucketOwner", "Tagging", "Metadata"),
    *("SSECustomerKey", "SSECustomerAlgorithm"),
)
_KMS_CONTEXT = "SSEKMSEncryptionContext"
# Of written objects, without a word of obstore
ONLY_IN_S3FS = {"ACL", "GrantFullControl", "GrantRead", "GrantReadACP", "GrantWriteACP", _KMS_CONTEXT}
ARGUMENTS = frozenset({*IN_CONFIG, *AS_ATTRIBUTES, OWNER, TAGS, METADATA, KEY, ALGORITHM, *ONLY_IN_S3FS})
CHECKSUMS = ("SHA256", "CRC64NVME")  # that obstore computes

_FLAGS = ("use_dualstack_endpoint", "use_fips_endpoint")
_SECONDS = ("connect_timeout", "read_timeout")
CONFIG = frozenset({"proxies", "proxies_config", "s3", "max_pool_connections", "user_agent", *_FLAGS, *_SECONDS})
SAME_AS_HERE = {  # arguments of Config with the values that this package uses anyway
    "signature_version": "s3v4",
    "request_checksum_calculation": "when_required",
    "response_checksum_validation": "when_required",
}
_FLAGS_OF_S3 = ("use_accelerate_endpoint", "use_arn_region", "disable_multiregion_access_points")
OF_S3 = frozenset({"addressing_style", "us_east_1_regional_endpoint", "use_dualstack_endpoint", *_FLAGS_OF_S3})
CONFIG_OF_S3 = OF_S3 | {"payload_signing_enabled"}  # that botocore knows

_ENCRYPTIONS = ("AES256", "aws:kms", "aws:kms:dsse")
_KEY_BYTES = 32  # of AES256, the only algorithm of SSE-C
_SHOWN = "storage_options['s3_additional_kwargs']"


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


def _of(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, kinds)


# What an option must be, wherever it stands
_EXPECTED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "session": (lambda value: hasattr(value, "create_client"), "a session of aiobotocore"),
    "verify": (
        lambda value: isinstance(value, bool) or _is_file(value),
        "a file of certificate authorities, True or False",
    ),
    "client_cert": (_are_files, "a file with certificate and key, or two files"),
    "proxy_client_cert": (_are_files, "a file with certificate and key, or two files"),
    "proxy_ca_bundle": (_is_file, "a file"),
    "max_pool_connections": (
        lambda value: _is_amount(value) and isinstance(value, int),
        "a number of connections above 0",
    ),
    **dict.fromkeys(_SECONDS, (_is_amount, "a number of seconds above 0")),
    **dict.fromkeys(("s3", "retries", "proxies_config"), (_of(Mapping), "a dict")),
    **dict.fromkeys((*_FLAGS, *_FLAGS_OF_S3), (_of(bool), "True or False")),
    **dict.fromkeys(
        ("user_agent", *IN_CONFIG, *AS_ATTRIBUTES, OWNER, TAGS, ALGORITHM, *ONLY_IN_S3FS), (_of(str), "a str")
    ),
    "BucketKeyEnabled": (_of(bool), "True or False"),
    METADATA: (
        lambda value: (
            isinstance(value, Mapping) and all(isinstance(one, str) for pair in value.items() for one in pair)
        ),
        "a dict of str",
    ),
}


def require_usable(where: str, options: StorageOptions) -> None:
    """Validate the values of nested options, and of those of s3fs that it would fail on without their name.

    Args:
        where: the URL, for the error, without credentials.
        options: for s3; the mappings themselves are validated.

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
    for name, value in given.items():
        is_right, expected = _EXPECTED.get(name, (None, ""))
        if is_right is None or value is None:
            continue
        if not is_right(value):
            kind = repr(value) if isinstance(value, int | float) and "number" in expected else check.a_kind(value)
            raise UrlError(f"{where}: {shown}[{name!r}] must be {expected}, got {kind}.", url=where)
        require_plain_text(where, f"{shown}[{name!r}]", value)


def _require_encryption(where: str, given: Mapping[str, Any]) -> None:
    def require(is_right: bool, name: str, problem: str) -> None:
        if not is_right:
            raise UrlError(f"{where}: {_SHOWN}[{name!r}] {problem}", url=where)

    encryption, by_kms = given.get("ServerSideEncryption"), False
    if encryption is not None:
        usual = ", ".join(map(repr, _ENCRYPTIONS))
        is_known = encryption in (*_ENCRYPTIONS, "aws:fsx")
        require(is_known, "ServerSideEncryption", f"is {encryption!r}; expected one of {usual}.")
        by_kms = encryption.startswith("aws:kms")
    for name in ("SSEKMSKeyId", _KMS_CONTEXT, "BucketKeyEnabled"):
        beside = "needs 'ServerSideEncryption': 'aws:kms' or 'aws:kms:dsse' beside it."
        require(by_kms or name not in given, name, beside)
    require((KEY in given) == (ALGORITHM in given), KEY, f"and {ALGORITHM!r}: 'AES256' belong together.")
    if KEY in given:
        exclude = "and 'ServerSideEncryption' exclude each other: a key of yours, or one of the store."
        require(encryption is None, KEY, exclude)
        require(given[ALGORITHM] == "AES256", ALGORITHM, f"is {given[ALGORITHM]!r}; S3 knows 'AES256' only.")
        is_key = isinstance(given[KEY], str | bytes) and customer_key(given[KEY]) is not None
        require(is_key, KEY, f"must have {_KEY_BYTES} bytes, for AES256, or be a str with their base64.")


def customer_key(key: str | bytes) -> bytes | None:
    """Return the 32 bytes of a key: given as such, or as base64 in a text; ``None`` if it is neither."""
    data = key.encode() if isinstance(key, str) else bytes(key)
    if len(data) != _KEY_BYTES:
        try:
            data = base64.b64decode(data, validate=True)
        except (ValueError, binascii.Error):
            return None
    return data if len(data) == _KEY_BYTES else None
