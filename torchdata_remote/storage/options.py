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
from typing import Any, NamedTuple

from ..core.arguments import check
from ..core.arguments.suggestions import did_you_mean
from ..core.options import FALLBACK_NAMES, StorageOptions
from ..core.urls import AZURE, DATASETS, GS, HTTP, HUGGING_FACE, LOCAL, S3, WITHOUT_BUCKET, redact
from ..errors import UrlError
from .azure.settings import ADLFS_OPTIONS, AZURE_OPTIONS
from .gcs.settings import OPTIONS as GCS_OPTIONS
from .hugging_face.settings import HUB_OPTIONS
from .network import read_certificates, require_client_certificate, usable_proxy
from .option_checks import option_flag, require_plain_text
from .s3.endpoint import CONFIG_OF_S3
from .s3.request_options import ARGUMENTS, customer_key

# Names

_NESTED = ("client_kwargs", "config_kwargs", "s3_additional_kwargs")
_S3 = {"key", "secret", "token", "endpoint_url", "region", "profile", "anon"}
_SERVICE = {"token", "secure"}
_MAX_SHOWN = 12
_SHARING = ("s3", "https", "gs", "az", "hf", "sftp", "ftp", "smb", "webdav")  # whose options a local path may have too
# Words of other libraries and of people, for which no spelling is near
_MEANT: dict[str, dict[str, str]] = {
    "s3": {
        **dict.fromkeys(("access_key", "access_key_id", "aws_access_key", "aws_access_key_id"), "key"),
        **dict.fromkeys(
            ("secret_key", "secret_access_key", "aws_secret_access_key", "aws_secret_key", "secrets"), "secret"
        ),
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
    _require_values(where, "storage_options", "", options)
    shown = {name: f"storage_options[{name!r}]" for name in _NESTED}
    client, config, arguments = (options.get(name) or {} for name in _NESTED)
    names = options.keys() - {*FALLBACK_NAMES, *_NESTED[:2]}
    _require(where, "storage_options", names, _S3, _of_s3fs, _MEANT["s3"])
    _require(where, shown["client_kwargs"], client, set(), _of_client, _MEANT["client_kwargs"])
    _require(where, shown["config_kwargs"], config, set(), _of_config)
    _require(where, f"{shown['config_kwargs']}['s3']", config.get("s3") or {}, CONFIG_OF_S3)
    _require(where, shown["s3_additional_kwargs"], arguments, ARGUMENTS, _of_operations)
    address = str(options.get("endpoint_url") or client.get("endpoint_url") or "")
    _require_encryption(where, address, {name: value for name, value in arguments.items() if value is not None})
    if "config" in client:
        raise UrlError(
            f"{where}: {shown['client_kwargs']}['config'] is made from {shown['config_kwargs']}: pass a dict of its "
            "arguments there, such as {'read_timeout': 60}.",
            url=where,
        )
    if options.get("endpoint_url") is None and client.get("endpoint_url") is None:
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


class _Kind(NamedTuple):
    """What a value must be, and whether it is shown if it is a number."""

    expected: str
    holds: Callable[[Any], bool]
    is_number: bool = False


def _is_files(value: Any, most: int) -> bool:
    files = value if isinstance(value, list | tuple) and most > 1 else [value]
    return 0 < len(files) <= most and all(isinstance(file, str | os.PathLike) for file in files)


def _is_number(value: Any, kinds: Any) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool) and 0 < value < 1e6


_TEXT = _Kind("a str", lambda value: isinstance(value, str))
_FLAG = _Kind("True or False", lambda value: isinstance(value, bool))
_DICT = _Kind("a dict", lambda value: isinstance(value, Mapping))
_SECONDS = _Kind("a number of seconds above 0", lambda value: _is_number(value, int | float), is_number=True)
_FILES = _Kind("a file with certificate and key, or two files", lambda value: _is_files(value, 2))
_KEY = "SSECustomerKey"
_FLAGS_OF_CONFIG = (
    *("use_fips_endpoint", "use_dualstack_endpoint", "use_accelerate_endpoint", "use_arn_region"),
    "disable_multiregion_access_points",
)
# By the path of names; without the names that are texts in every dict
_KINDS = {
    **dict.fromkeys(("key", "secret", "token", "endpoint_url", "region", "profile", "username", "password"), _TEXT),
    **dict.fromkeys(FALLBACK_NAMES, _TEXT),
    **dict.fromkeys((*_NESTED, "config_kwargs.s3", "config_kwargs.retries", "config_kwargs.proxies_config"), _DICT),
    **dict.fromkeys(
        (f"client_kwargs.{name}" for name in ("region_name", "endpoint_url", "api_version", "aws_access_key_id")), _TEXT
    ),
    **dict.fromkeys(
        (f"client_kwargs.aws_{name}" for name in ("secret_access_key", "session_token", "account_id")), _TEXT
    ),
    "client_kwargs.verify": _Kind(
        "a file of certificate authorities, True or False",
        lambda value: isinstance(value, bool) or (value != "" and _is_files(value, 1)),
    ),
    **dict.fromkeys(("config_kwargs.connect_timeout", "config_kwargs.read_timeout"), _SECONDS),
    "config_kwargs.max_pool_connections": _Kind(
        "a number of connections above 0", lambda value: _is_number(value, int), is_number=True
    ),
    "config_kwargs.user_agent": _TEXT,
    "config_kwargs.client_cert": _FILES,
    "config_kwargs.proxies_config.proxy_client_cert": _FILES,
    "config_kwargs.proxies_config.proxy_ca_bundle": _Kind("a file", lambda value: _is_files(value, 1)),
    **dict.fromkeys(
        (
            *(f"config_kwargs.{name}" for name in _FLAGS_OF_CONFIG),
            *(f"config_kwargs.s3.{name}" for name in _FLAGS_OF_CONFIG),
            "s3_additional_kwargs.BucketKeyEnabled",
        ),
        _FLAG,
    ),
    **dict.fromkeys(
        (f"s3_additional_kwargs.{name}" for name in ARGUMENTS - {"BucketKeyEnabled", _KEY, "Metadata"}), _TEXT
    ),
    f"s3_additional_kwargs.{_KEY}": _Kind(
        "bytes, or a str with their base64", lambda value: isinstance(value, str | bytes | bytearray)
    ),
    "s3_additional_kwargs.Metadata": _Kind(
        "a dict of str",
        lambda value: (
            isinstance(value, Mapping) and all(isinstance(one, str) for pair in value.items() for one in pair)
        ),
    ),
    "loop": _Kind("an event loop of asyncio", lambda value: hasattr(value, "call_soon_threadsafe")),
    "session": _Kind("a session of aiobotocore", lambda value: hasattr(value, "create_client")),
}
_PLAIN_AWS = re.compile(r"http://[^/:]*\.amazonaws\.com(\.cn)?(:\d+)?(/|$)", re.IGNORECASE)
_FLAGS = {"anon", "use_ssl", "requester_pays", "asynchronous", "version_aware", "cache_regions"}
_ADDRESS = re.compile(
    r"https?://(\[[0-9a-f:.]+\]|[\w.-]+)(:(?P<port>\d{1,5}))?(/[\w.~!$&'()*+,;=:%/-]*)?", re.IGNORECASE | re.ASCII
)


def _require_values(where: str, shown: str, path: str, given: Mapping[Any, Any]) -> None:
    """Validate the kinds of values, also of those in dicts. ``None`` is a value that is left out."""
    for name, value in given.items():
        if not isinstance(name, str):
            raise UrlError(f"{where}: {shown} must have names that are str, got {check.a_kind(name)}.", url=where)
        here, of_value = f"{shown}[{name!r}]", f"{path}{name}"
        kind = _KINDS.get(of_value)
        if value is None:
            continue
        if kind is not None and not kind.holds(value):
            is_shown = kind.is_number and isinstance(value, int | float)
            advice = " Leave it out." if of_value == "loop" else ""
            if kind is _TEXT and isinstance(value, bytes | bytearray):
                advice = " Decode the bytes: value.decode()."
            got = repr(value) if is_shown else check.a_kind(value)
            raise UrlError(f"{where}: {here} must be {kind.expected}, got {got}.{advice}", url=where)
        if not path and name in _FLAGS:
            option_flag(name, value, where)
        if name == "endpoint_url":
            _require_address(where, here, value)
        if of_value == "config_kwargs.proxies":
            _require_proxies(where, here, value)
        elif isinstance(value, Mapping):
            _require_values(where, here, f"{of_value}.", value)
        require_plain_text(where, here, value)


def _require_proxies(where: str, shown: str, proxies: object) -> None:
    if not isinstance(proxies, Mapping):
        raise UrlError(f"{where}: {shown} must be a dict, got {check.a_kind(proxies)}.", url=where)
    for scheme, proxy in proxies.items():
        if scheme not in ("http", "https", "all") or not isinstance(proxy, str | None):
            raise UrlError(
                f"{where}: {shown} must have URLs by scheme, such as {{'https': 'http://host:3128'}}, got the key "
                f"{scheme!r} with {check.a_kind(proxy)}.",
                url=where,
            )
        if proxy:
            usable_proxy(proxy, where)


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


def _require_encryption(where: str, address: str, given: Mapping[str, Any]) -> None:
    """Refuse an unknown encryption, and arguments that exclude or need each other."""
    encryption, algorithm = given.get("ServerSideEncryption"), given.get("SSECustomerAlgorithm")
    by_kms = ("aws:kms", "aws:kms:dsse")
    needs_kms = given.keys() & {"SSEKMSKeyId", "SSEKMSEncryptionContext", "BucketKeyEnabled"}
    problem = ""
    if encryption not in (None, "AES256", *by_kms, "aws:fsx"):
        problem = f"['ServerSideEncryption'] is {encryption!r}; expected one of 'AES256', 'aws:kms', 'aws:kms:dsse'."
    elif needs_kms and encryption not in by_kms:
        problem = f"[{min(needs_kms)!r}] needs 'ServerSideEncryption': 'aws:kms' or 'aws:kms:dsse' beside it."
    elif (_KEY in given) != (algorithm is not None):
        problem = f"[{_KEY!r}] and 'SSECustomerAlgorithm': 'AES256' belong together."
    elif _KEY in given and encryption is not None:
        problem = f"[{_KEY!r}] and 'ServerSideEncryption' exclude each other: a key of yours, or one of the store."
    elif _KEY in given and algorithm != "AES256":
        problem = f"['SSECustomerAlgorithm'] is {algorithm!r}; S3 knows 'AES256' only."
    elif _KEY in given:
        try:
            customer_key(given[_KEY])
        except ValueError:
            problem = f"[{_KEY!r}] must have 32 bytes, for AES256, or be a str with their base64."
        if _PLAIN_AWS.match(address):
            problem = f"[{_KEY!r}] is sent with each request, and AWS accepts it by https only: use https://."
    if problem:
        raise UrlError(f"{where}: storage_options['s3_additional_kwargs']{problem}", url=where)


def require_certificate_files(where: str, options: StorageOptions) -> None:
    """Validate the files of certificates. A library reports a missing one without its name, as a fault of the network.

    Raises:
        UrlError: names the option and the file.
    """
    client, config = options.get("client_kwargs") or {}, options.get("config_kwargs") or {}
    of_proxies = config.get("proxies_config") or {}
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
