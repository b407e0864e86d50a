"""Refuse storage options that no library knows, before any request. Their values are never shown.

A library would refuse them after a connection, by a ``TypeError`` about a class that the user has never heard of.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterable, Mapping
from typing import Any

from ..core.arguments.suggestions import did_you_mean
from ..core.options import FALLBACK_NAMES, StorageOptions
from ..core.urls import AZURE, GS, HTTP, HUGGING_FACE, LOCAL, S3, WITHOUT_BUCKET, redact
from ..errors import UrlError
from .clouds.azure import ADLFS_OPTIONS, AZURE_OPTIONS
from .clouds.gcs import OPTIONS as _GCS
from .clouds.s3_values import ARGUMENTS, CONFIG_OF_S3
from .hugging_face.settings import HUB_OPTIONS
from .option_values import require_usable_values
from .option_words import BY_AZURE, BY_GCS, BY_HUB, BY_S3, IN_CLIENT

_S3 = {"key", "secret", "token", "endpoint_url", "region", "profile", "anon", *FALLBACK_NAMES}
_NESTED = ("client_kwargs", "config_kwargs")
_DATASETS = "datasets"
_MAX_SHOWN = 12
# Stores whose options may be passed for a local path too
_SHARING = ("s3", "https", "gs", "az", "hf", "sftp", "ftp", "smb", "webdav")
_SERVICE = {"token", "secure"}


def require_known_options(url: str, scheme: str, options: StorageOptions) -> None:
    """Validate the names of storage options; for s3 also the values, and the environment's endpoint.

    Args:
        url: of an object or bucket, for the error.
        scheme: of the URL.
        options: of the user.

    Raises:
        UrlError: for an option that the scheme's filesystem does not have.
    """
    where = redact(url)
    if scheme in S3:
        _require_of_s3(where, options)
        return
    if not options:
        return
    if scheme in WITHOUT_BUCKET:
        _require_of_some_store(where, scheme, options)
        return
    if scheme == _DATASETS:
        _require(where, "storage_options", options, _SERVICE | {*FALLBACK_NAMES}, {})
        return
    if scheme in GS or scheme in AZURE or scheme == HUGGING_FACE:
        own = _GCS if scheme in GS else AZURE_OPTIONS if scheme in AZURE else HUB_OPTIONS
        if unknown := options.keys() - own - {*FALLBACK_NAMES}:
            others, meant = _others(scheme)
            _require(where, "storage_options", unknown, {*own, *others}, meant)
        return
    known = _of_filesystem(scheme)
    if known is not None:
        _require(where, "storage_options", options, known | {*FALLBACK_NAMES}, {})


def _require_of_s3(where: str, options: StorageOptions) -> None:
    require_usable_values(where, options)
    if unknown := options.keys() - _S3 - {*_NESTED}:
        _require(where, "storage_options", unknown, _S3 | _of_s3fs(), BY_S3)
    if nested := options.get("client_kwargs"):
        _require(where, "storage_options['client_kwargs']", nested, _of_client(), IN_CLIENT)
    if nested := options.get("config_kwargs"):
        _require(where, "storage_options['config_kwargs']", nested, _of_config(), {})
        if of_s3 := nested.get("s3"):
            _require(where, "storage_options['config_kwargs']['s3']", of_s3, {*CONFIG_OF_S3}, {})
    if arguments := (options.get("s3_additional_kwargs") or {}).keys() - ARGUMENTS:
        _require(where, "storage_options['s3_additional_kwargs']", arguments, {*ARGUMENTS} | _of_operations(), {})


def _others(scheme: str) -> tuple[set[str], Mapping[str, str]]:
    """Options of the filesystem that reads a store with options that have no translation, and words of others."""
    if scheme in GS:
        return _of_gcsfs(), BY_GCS
    return (_of_adlfs(), BY_AZURE) if scheme in AZURE else (_of_hub(), BY_HUB)


def _require(where: str, what: str, names: Iterable[str], known: set[str], meant: Mapping[str, str]) -> None:
    for name in sorted(map(str, names)):
        if name in known:
            continue
        word = meant.get(name.lower())
        advice = f"; did you mean {word!r}?" if word is not None else did_you_mean(name, sorted(known))
        usual = sorted((_S3 if known >= _S3 else known) - {*FALLBACK_NAMES})  # those of a store, before s3fs's many
        more = ", and others" if len(known) > _MAX_SHOWN else ""
        raise UrlError(
            f"{where}: unknown option {name!r} in {what}{advice or '.'} Known are "
            f"{', '.join(usual[:_MAX_SHOWN])}{more}.",
            url=where,
        )


def _require_of_some_store(where: str, scheme: str, options: StorageOptions) -> None:
    """Refuse options of no store for local files and memory, whose filesystems accept any name, and ignore it.

    Those of other stores are accepted, because a list of URLs of several stores has one dict of options.
    """
    usual = _S3 | _GCS | _SERVICE | HUB_OPTIONS | {*_NESTED, "auto_mkdir"}
    if options.keys() <= usual:
        return
    import fsspec

    known = usual | _of_every(fsspec.get_filesystem_class(scheme))
    if options.keys() <= known:
        return
    for other in _SHARING:
        with contextlib.suppress(Exception):  # a package that is not installed, or does not fit another one
            known |= (
                _of_s3fs() if other in S3 else _of_filesystem(other) or _of_every(fsspec.get_filesystem_class(other))
            )
    for name in sorted(options.keys() - known):
        what = "Local files need none" if scheme in LOCAL else "memory:// needs none"
        near = did_you_mean(name, sorted(known)) or "."
        raise UrlError(
            f"{where}: unknown option {name!r} in storage_options{near} {what}; in a list of "
            "URLs of several stores the options of the others are accepted.",
            url=where,
        )


def check_options(url: str, options: StorageOptions) -> None:
    """Validate the options for a URL when a pipe is built, where that imports nothing large.

    Raises:
        UrlError: like :func:`require_known_options`.
    """
    scheme = url.partition("://")[0].lower()
    if "://" not in url:
        scheme = "file"
    if scheme in S3 or scheme in (_DATASETS, HUGGING_FACE) or scheme in WITHOUT_BUCKET:
        require_known_options(url, scheme, options)


def _parameters(function: Any) -> set[str]:
    """Names of the parameters of a function, without ``self`` and those that stand for many."""
    many = inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL
    found = inspect.signature(function).parameters.values()
    return {parameter.name for parameter in found if parameter.kind not in many} - {"self"}


def _of_s3fs() -> set[str]:
    """Options of s3fs, of the session that it makes, and of every fsspec filesystem. The import takes 0.3 s."""
    from aiobotocore.session import AioSession
    from fsspec.asyn import AsyncFileSystem
    from s3fs import S3FileSystem

    return _parameters(S3FileSystem.__init__) | _parameters(AioSession.__init__) | _of_every(AsyncFileSystem)


def _of_gcsfs() -> set[str]:
    """Options of every asynchronous fsspec filesystem: gcsfs accepts others too, which have no effect."""
    from fsspec.asyn import AsyncFileSystem

    return _of_every(AsyncFileSystem)


def _of_adlfs() -> set[str]:
    """Options of adlfs, and of every asynchronous fsspec filesystem."""
    from fsspec.asyn import AsyncFileSystem

    return ADLFS_OPTIONS | _of_every(AsyncFileSystem)


def _of_hub() -> set[str]:
    """Options of huggingface_hub's filesystem; none if it is not installed."""
    import fsspec

    try:
        return _of_every(fsspec.get_filesystem_class(HUGGING_FACE))
    except (ValueError, ImportError):
        return set()


def _of_every(kind: Any) -> set[str]:
    """Options that fsspec itself reads."""
    caching = {"use_listings_cache", "listings_expiry_time", "max_paths", "skip_instance_cache"}
    return caching | set().union(*(_parameters(one.__init__) for one in kind.__mro__ if "__init__" in vars(one)))


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


def _of_filesystem(scheme: str) -> set[str] | None:
    """Options of a filesystem of fsspec; ``None`` if it accepts any, or cannot be imported."""
    import fsspec

    try:
        kind = fsspec.get_filesystem_class(scheme)
    except (ValueError, ImportError):
        return None  # an error of its own follows
    constructor = kind.__init__
    if scheme in HTTP:  # it passes the others to each request
        from aiohttp import ClientSession

        return _of_every(kind) | _parameters(ClientSession._request)
    takes_any = any(
        one.kind is inspect.Parameter.VAR_KEYWORD for one in inspect.signature(constructor).parameters.values()
    )
    return None if takes_any else _of_every(kind)
