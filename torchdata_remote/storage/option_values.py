"""Refuse storage options of s3 whose values cannot be meant, before any request. The values are never shown.

A library would refuse them after a connection, repeat the request, or show a password in its errors.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ..core.arguments import check
from ..core.options import FALLBACK_NAMES, StorageOptions
from ..errors import UrlError
from .clouds.s3_values import require_usable
from .option_checks import option_flag, require_plain_text

_TEXTS = {"key", "secret", "token", "endpoint_url", "region", "profile", "username", "password", *FALLBACK_NAMES}
_TEXTS_OF_CLIENT = {
    "region_name",
    "endpoint_url",
    "api_version",
    "aws_access_key_id",
    "aws_secret_access_key",
    "aws_session_token",
    "aws_account_id",
}
_FLAGS = {"anon", "use_ssl", "requester_pays", "asynchronous", "version_aware", "cache_regions"}
_MAPPINGS = {"client_kwargs", "config_kwargs", "s3_additional_kwargs"}
_ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_CA_VARIABLE = "AWS_CA_BUNDLE"
_ENDPOINT = re.compile(
    r"https?://(\[[0-9a-f:.]+\]|[\w.-]+)(:(?P<port>\d{1,5}))?(/[\w.~!$&'()*+,;=:%/-]*)?", re.IGNORECASE | re.ASCII
)
_MAX_PORT = 65535


def require_usable_values(where: str, options: StorageOptions) -> None:
    """Validate the kinds of values, and that no URL of a server holds a password. Nothing is opened.

    Args:
        where: the URL, for the error, without credentials.
        options: for s3.

    Raises:
        UrlError: names the option or the variable.
    """
    for name in _MAPPINGS:
        if not isinstance(options.get(name), Mapping | None):
            kind = type(options[name]).__name__
            raise UrlError(f"{where}: storage_options[{name!r}] must be a dict, got {kind}.", url=where)
        _require_names(where, f"storage_options[{name!r}]", options.get(name) or {})
    for shown, name, value in _named(options):
        of_client = shown.startswith("storage_options['client_kwargs']")
        if name in (_TEXTS_OF_CLIENT if of_client else _TEXTS) and not isinstance(value, str):
            advice = " Decode the bytes: value.decode()." if isinstance(value, bytes | bytearray) else ""
            raise UrlError(f"{where}: {shown} must be a str, got {check.a_kind(value)}.{advice}", url=where)
        require_plain_text(where, shown, value)
        if name in _FLAGS and not of_client:
            option_flag(name, value, where)
        if name == "endpoint_url":
            _require_no_user_info(where, shown, value)
            _require_address(where, shown, value)
        if of_client and name == "config":
            raise UrlError(
                f"{where}: {shown} is made from storage_options['config_kwargs']: pass a dict of its arguments there, "
                "such as {'read_timeout': 60}.",
                url=where,
            )
    require_usable(where, options)
    loop = options.get("loop")
    if loop is not None and not hasattr(loop, "call_soon_threadsafe"):
        kind = check.a_kind(loop)
        raise UrlError(
            f"{where}: storage_options['loop'] must be an event loop of asyncio, got {kind}. Leave it out.", url=where
        )
    if options.get("endpoint_url") is None and (options.get("client_kwargs") or {}).get("endpoint_url") is None:
        for variable in _ENDPOINT_VARIABLES:
            _require_no_user_info(where, f"The environment variable {variable}", os.environ.get(variable, ""))
            _require_address(where, f"The environment variable {variable}", os.environ.get(variable, ""))


def _named(options: StorageOptions) -> Iterator[tuple[str, str, Any]]:
    """Yield how an option is written, its name and its value; also those for the client. ``None`` is left out."""
    for name, value in options.items():
        if value is not None:
            yield f"storage_options[{name!r}]", name, value
    for name, value in (options.get("client_kwargs") or {}).items():
        if value is not None:
            yield f"storage_options['client_kwargs'][{name!r}]", name, value


def _require_names(where: str, shown: str, names: Mapping[Any, Any]) -> None:
    """Validate that the names in a dict of options, and in those in it, are texts."""
    for name, value in names.items():
        if not isinstance(name, str):
            raise UrlError(f"{where}: {shown} must have names that are str, got {check.a_kind(name)}.", url=where)
        if isinstance(value, Mapping):
            _require_names(where, f"{shown}[{name!r}]", value)


def _require_no_user_info(where: str, shown: str, endpoint_url: str) -> None:
    """Refuse ``https://user:password@host``: logs and errors of libraries show the address of a server."""
    if "@" in endpoint_url:
        raise UrlError(
            f"{where}: {shown} holds credentials (an @). They do not belong into an address, which logs and errors "
            "show. Pass them by storage_options={'key':, 'secret':} or the AWS environment.",
            url=where,
        )


def _require_address(where: str, shown: str, endpoint_url: str) -> None:
    """Refuse an address with a query, no port or a character that URLs do not have: each library reads it otherwise."""
    if not endpoint_url.lower().startswith(("http://", "https://")):
        return  # what was meant is said elsewhere
    found = _ENDPOINT.fullmatch(endpoint_url)
    if found is None or int(found["port"] or 0) > _MAX_PORT:
        raise UrlError(
            f"{where}: {shown} is no address of a server: {re.split('[?#]', endpoint_url)[0]!r}. Expected such as "
            "'https://host:port', without a query, spaces and letters outside of ASCII.",
            url=where,
        )


def require_certificate_files(where: str, options: StorageOptions) -> None:
    """Validate that the files of certificates exist. A library reports a missing one without its name, as a fault.

    Raises:
        UrlError: names the option or the variable, and the file.
    """
    client = options.get("client_kwargs") or {}
    config = options.get("config_kwargs") or {}
    verify, cert = client.get("verify"), config.get("client_cert")
    if isinstance(verify, str | os.PathLike):
        _require_file(where, "storage_options['client_kwargs']['verify']", verify, "certificate authorities")
    for path in cert if isinstance(cert, list | tuple) else [cert]:
        if isinstance(path, str | os.PathLike):
            _require_file(where, "storage_options['config_kwargs']['client_cert']", path, "the client's certificate")
    endpoint_url = options.get("endpoint_url") or client.get("endpoint_url") or ""
    bundle = os.environ.get(_CA_VARIABLE)
    if bundle and verify is None and not str(endpoint_url).lower().startswith("http://"):
        _require_file(where, f"the environment variable {_CA_VARIABLE}", bundle, "certificate authorities")


def _require_file(where: str, shown: str, path: str | os.PathLike[str], what: str) -> None:
    if not os.path.exists(path):
        raise UrlError(
            f"{where}: no such file: {os.fspath(path)!r}, named by {shown}. It holds {what}: correct the path, or "
            "leave it out.",
            url=where,
        )
