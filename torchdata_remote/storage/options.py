"""Refuse storage options that no library knows, or whose values cannot be meant, before any request.

A library would refuse them after a connection by a ``TypeError`` about a class that the user has never heard of, take
``"False"`` for a yes, or show a password. Values are never shown, except numbers and addresses.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..core.arguments import check
from ..core.arguments.suggestions import did_you_mean
from ..core.options import FALLBACK_NAMES, StorageOptions
from ..core.urls import AZURE, DATASETS, GS, HTTP, HUGGING_FACE, LOCAL, S3, WITHOUT_BUCKET, redact
from ..errors import UrlError
from .clouds.azure import ADLFS_OPTIONS, AZURE_OPTIONS
from .clouds.gcs import OPTIONS as GCS_OPTIONS
from .clouds.s3_values import ARGUMENTS, CONFIG_OF_S3, mapping, require_usable
from .network import read_certificates, require_client_certificate
from .option_checks import option_flag, require_plain_text

# Names

_NESTED = ("client_kwargs", "config_kwargs", "s3_additional_kwargs")
_S3 = {"key", "secret", "token", "endpoint_url", "region", "profile", "anon"}
_SERVICE = {"token", "secure"}
HUB_OPTIONS = {"token", "endpoint", "revision"}
_MAX_SHOWN = 12
_SHARING = ("s3", "https", "gs", "az", "hf", "sftp", "ftp", "smb", "webdav")  # whose options a local path may have too
# Words of other libraries and of people, for which no spelling is near
_MEANT: dict[str, dict[str, str]] = {
    "s3": {
        **dict.fromkeys(("access_key", "access_key_id", "aws_access_key", "aws_access_key_id"), "key"),
        **dict.fromkeys(("secret_key", "secret_access_key", "aws_secret_access_key", "aws_secret_key"), "secret"),
        **dict.fromkeys(("session_token", "aws_session_token"), "token"),
        **dict.fromkeys(("aws_endpoint_url", "aws_endpoint", "host", "url"), "endpoint_url"),
        **dict.fromkeys(("region_name", "aws_region", "default_region"), "region"),
        **dict.fromkeys(("profile_name", "aws_profile"), "profile"),
        **dict.fromkeys(("anonymous", "skip_signature", "no_sign_request"), "anon"),
    },
    "client_kwargs": {"region": "region_name", "key": "aws_access_key_id", "secret": "aws_secret_access_key"},
    "gs": {
        **dict.fromkeys(("anon", "anonymous", "credentials", "key", "keyfile", "service_account"), "token"),
        **dict.fromkeys(("service_account_file", "google_application_credentials"), "token"),
        **dict.fromkeys(("host", "api_endpoint"), "endpoint_url"),
        "project_id": "project",
        "user_project": "requester_pays",
    },
    "az": {
        **dict.fromkeys(("account", "storage_account", "azure_storage_account_name"), "account_name"),
        **dict.fromkeys(("key", "access_key", "azure_storage_account_key"), "account_key"),
        **dict.fromkeys(("sas", "sas_key"), "sas_token"),
        **dict.fromkeys(("endpoint_url", "endpoint"), "account_host"),
        "token": "credential",
        "anonymous": "anon",
    },
    "hf": {"api_token": "token", "hf_token": "token"},
}


def check_options(url: str, options: StorageOptions) -> None:
    """Validate the options for a URL when a pipe is built, where that imports nothing large.

    Raises:
        UrlError: like :func:`require_known_options`.
    """
    scheme = url.partition("://")[0].lower() if "://" in url else "file"
    if scheme in S3 or scheme in (DATASETS, HUGGING_FACE) or scheme in WITHOUT_BUCKET:
        require_known_options(url, scheme, options)


def require_known_options(url: str, scheme: str, options: StorageOptions) -> None:
    """Validate the names of storage options; for s3 also the values, and the environment's endpoint.

    Args:
        url: of an object or bucket, for the error.
        scheme: of the URL.
        options: of the user.

    Raises:
        UrlError: for an option that the scheme's filesystem does not have.
    """
    where, names = redact(url), options.keys() - {*FALLBACK_NAMES}
    if scheme in S3:
        _require_s3(where, options)
    elif scheme in WITHOUT_BUCKET:
        _require_of_some_store(where, scheme, names)
    elif scheme == DATASETS:
        _require(where, "storage_options", names, _SERVICE)
    elif scheme in GS:
        _require(where, "storage_options", names, GCS_OPTIONS, _of_async, _MEANT["gs"])
    elif scheme in AZURE:
        _require(where, "storage_options", names, AZURE_OPTIONS, lambda: ADLFS_OPTIONS | _of_async(), _MEANT["az"])
    elif scheme == HUGGING_FACE:
        _require(where, "storage_options", names, HUB_OPTIONS, lambda: _of_filesystem("hf"), _MEANT["hf"])
    elif names and (known := _of_filesystem(scheme)):
        _require(where, "storage_options", names, known)


def _require_s3(where: str, options: StorageOptions) -> None:
    _require_dicts(where, "storage_options", options)
    of_client, of_config, of_arguments = (f"storage_options[{name!r}]" for name in _NESTED)
    client, config, arguments = (mapping(options, name) for name in _NESTED)
    _require_texts(where, "storage_options", options, _TEXTS)
    _require_texts(where, of_client, client, _TEXTS_OF_CLIENT)
    for name in options.keys() & _FLAGS:
        if options[name] is not None:
            option_flag(name, options[name], where)
    if "config" in client:
        advice = "pass a dict of its arguments there, such as {'read_timeout': 60}."
        raise UrlError(f"{where}: {of_client}['config'] is made from {of_config}: {advice}", url=where)
    loop = options.get("loop")
    if loop is not None and not hasattr(loop, "call_soon_threadsafe"):
        what = f"must be an event loop of asyncio, got {check.a_kind(loop)}"
        raise UrlError(f"{where}: storage_options['loop'] {what}. Leave it out.", url=where)
    require_usable(where, options)
    _require(where, "storage_options", options.keys() - {*FALLBACK_NAMES, *_NESTED}, _S3, _of_s3fs, _MEANT["s3"])
    _require(where, of_client, client, set(), _of_client, _MEANT["client_kwargs"])
    _require(where, of_config, config, set(), _of_config)
    _require(where, f"{of_config}['s3']", mapping(config, "s3"), CONFIG_OF_S3)
    _require(where, of_arguments, arguments, ARGUMENTS, _of_operations)
    if options.get("endpoint_url") is None and "endpoint_url" not in client:
        for variable in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"):
            _require_address(where, f"The environment variable {variable}", os.environ.get(variable, ""))


def _require(
    where: str,
    what: str,
    names: Iterable[str],
    usual: Iterable[str],
    more: Callable[[], set[str]] | None = None,
    meant: Mapping[str, str] | None = None,
) -> None:
    """Refuse the first name that is neither usual nor one of ``more``, which may import a library."""
    unknown = {*names} - {*usual}
    others = more() if unknown and more is not None else set()
    for name in sorted(unknown - others):
        word, known = (meant or {}).get(name.lower()), sorted({*usual} | others)
        advice = f"; did you mean {word!r}?" if word is not None else did_you_mean(name, known)
        shown = sorted(usual or known)[:_MAX_SHOWN]
        raise UrlError(
            f"{where}: unknown option {name!r} in {what}{advice or '.'} Known are {', '.join(shown)}"
            f"{', and others' if len(known) > len(shown) else ''}.",
            url=where,
        )


def _require_of_some_store(where: str, scheme: str, names: Iterable[str]) -> None:
    """Refuse options of no store for local files and memory, whose filesystems accept any name, and ignore it.

    Those of other stores are accepted, because a list of URLs of several stores has one dict of options.
    """
    unknown = {*names} - _S3 - GCS_OPTIONS - _SERVICE - HUB_OPTIONS - {*_NESTED, "auto_mkdir"}
    if not unknown:
        return
    known = _of_filesystem(scheme, any_name=True) | _S3
    if unknown - known:
        for other in _SHARING:
            known |= _of_filesystem(other, any_name=True)
    for name in sorted(unknown - known):
        what = "Local files need none" if scheme in LOCAL else "memory:// needs none"
        raise UrlError(
            f"{where}: unknown option {name!r} in storage_options{did_you_mean(name, sorted(known)) or '.'} {what}; in "
            "a list of URLs of several stores the options of the others are accepted.",
            url=where,
        )


# Names that libraries know


def _parameters(function: Any) -> set[str]:
    many = inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL
    found = inspect.signature(function).parameters.values()
    return {parameter.name for parameter in found if parameter.kind not in many} - {"self"}


def _of_class(kind: Any) -> set[str]:
    caching = {"use_listings_cache", "listings_expiry_time", "max_paths", "skip_instance_cache"}  # of fsspec itself
    return caching.union(*(_parameters(one.__init__) for one in kind.__mro__ if "__init__" in vars(one)))


def _of_async() -> set[str]:
    """Options of every asynchronous filesystem: gcsfs accepts others too, which have no effect."""
    from fsspec.asyn import AsyncFileSystem

    return _of_class(AsyncFileSystem)


def _of_s3fs() -> set[str]:
    """Options of s3fs and of the session that it makes. The import takes 0.3 s."""
    from aiobotocore.session import AioSession
    from s3fs import S3FileSystem

    return _of_class(S3FileSystem) | _parameters(AioSession.__init__)


def _of_client() -> set[str]:
    from botocore.session import Session

    return _parameters(Session.create_client) - {"service_name"}


def _of_config() -> set[str]:
    from aiobotocore.config import AioConfig
    from botocore.config import Config

    options: set[str] = {*Config.OPTION_DEFAULTS, *getattr(Config, "NON_LEGACY_OPTION_DEFAULTS", ())}
    return options | _parameters(AioConfig.__init__)


def _of_operations() -> set[str]:
    """Arguments of the operations of S3 that read and write objects. botocore's description of them takes 0.2 s."""
    import botocore.session

    service = botocore.session.Session().get_service_model("s3")
    names = ("PutObject", "CreateMultipartUpload", "CopyObject", "GetObject", "HeadObject", "ListObjectsV2")
    return {"acl"}.union(*(service.operation_model(name).input_shape.members for name in names))


def _of_filesystem(scheme: str, *, any_name: bool = False) -> set[str]:
    """Options of a filesystem of fsspec; none if it cannot be imported, or accepts others and ``any_name`` is off."""
    import fsspec

    with contextlib.suppress(Exception):  # a package that is not installed, or does not fit another one
        kind = fsspec.get_filesystem_class(scheme)
        parameters = inspect.signature(kind.__init__).parameters.values()
        if scheme in HTTP:  # it passes the others to each request
            from aiohttp import ClientSession

            return _of_class(kind) | _parameters(ClientSession._request)
        if any_name or all(one.kind is not inspect.Parameter.VAR_KEYWORD for one in parameters) or scheme == "hf":
            return _of_s3fs() if scheme in S3 else _of_class(kind)
    return set()


# Values of s3

_TEXTS = {"key", "secret", "token", "endpoint_url", "region", "profile", "username", "password", *FALLBACK_NAMES}
_TEXTS_OF_CLIENT = {"region_name", "endpoint_url", "api_version", "aws_account_id"} | {
    *("aws_access_key_id", "aws_secret_access_key", "aws_session_token"),
}
_FLAGS = {"anon", "use_ssl", "requester_pays", "asynchronous", "version_aware", "cache_regions"}
_ADDRESS = re.compile(
    r"https?://(\[[0-9a-f:.]+\]|[\w.-]+)(:(?P<port>\d{1,5}))?(/[\w.~!$&'()*+,;=:%/-]*)?", re.IGNORECASE | re.ASCII
)


def _require_dicts(where: str, shown: str, given: Mapping[Any, Any]) -> None:
    """Validate that what holds further options is a dict, with names that are texts."""
    for name, value in given.items():
        if not isinstance(name, str):
            raise UrlError(f"{where}: {shown} must have names that are str, got {check.a_kind(name)}.", url=where)
        if name in _NESTED and not isinstance(value, Mapping | None):
            raise UrlError(f"{where}: {shown}[{name!r}] must be a dict, got {check.a_kind(value)}.", url=where)
        if isinstance(value, Mapping):
            _require_dicts(where, f"{shown}[{name!r}]", value)


def _require_texts(where: str, shown: str, given: Mapping[str, Any], texts: set[str]) -> None:
    for name, value in given.items():
        if name in texts and not isinstance(value, str | None):
            advice = " Decode the bytes: value.decode()." if isinstance(value, bytes | bytearray) else ""
            got = f"got {check.a_kind(value)}.{advice}"
            raise UrlError(f"{where}: {shown}[{name!r}] must be a str, {got}", url=where)
        require_plain_text(where, f"{shown}[{name!r}]", value)
        if name == "endpoint_url":
            _require_address(where, f"{shown}[{name!r}]", value or "")


def _require_address(where: str, shown: str, address: str) -> None:
    """Refuse an address with credentials, which logs show, or with what each library reads otherwise."""
    if "@" in address:
        raise UrlError(
            f"{where}: {shown} holds credentials (an @). They do not belong into an address, which logs and errors "
            "show. Pass them by storage_options={'key':, 'secret':} or the AWS environment.",
            url=where,
        )
    if not address.lower().startswith(("http://", "https://")):
        return  # what was meant is said elsewhere
    found = _ADDRESS.fullmatch(address)
    if found is None or int(found["port"] or 0) > 65535:
        raise UrlError(
            f"{where}: {shown} is no address of a server: {re.split('[?#]', address)[0]!r}. Expected such as "
            "'https://host:port', without a query, spaces and letters outside of ASCII.",
            url=where,
        )


def require_certificate_files(where: str, options: StorageOptions) -> None:
    """Validate the files of certificates. A library reports a missing one without its name, as a fault of the network.

    Raises:
        UrlError: names the option and the file.
    """
    client, config = mapping(options, "client_kwargs"), mapping(options, "config_kwargs")
    of_proxies = mapping(config, "proxies_config")
    shown = "storage_options['config_kwargs']"
    for files, source in (
        (client.get("verify"), "storage_options['client_kwargs']['verify']"),
        (of_proxies.get("proxy_ca_bundle"), f"{shown}['proxies_config']['proxy_ca_bundle']"),
    ):
        if isinstance(files, str | os.PathLike):
            read_certificates(os.fspath(files), source, where)
    for files, source in (
        (config.get("client_cert"), f"{shown}['client_cert']"),
        (of_proxies.get("proxy_client_cert"), f"{shown}['proxies_config']['proxy_client_cert']"),
    ):
        if files is not None:
            found = files if isinstance(files, list | tuple) else (files,)
            require_client_certificate(tuple(map(os.fspath, found)), source, where)
