"""Names of storage options: what has a translation, what only fsspec's filesystem knows, and what none knows."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Mapping
from typing import Any

from ..core import arguments as check
from ..core.arguments import did_you_mean
from ..core.options import FALLBACK_NAMES, StorageOptions
from ..core.urls import AZURE, DATASETS, GS, HTTP, HUGGING_FACE, S3, WITHOUT_BUCKET, redact
from ..errors import UrlError

_MAX_SHOWN = 12
CLIENT_OF_S3 = {  # of client_kwargs, with the names of s3fs
    "region_name": "region",
    "endpoint_url": "endpoint_url",
    "aws_access_key_id": "key",
    "aws_secret_access_key": "secret",
    "aws_session_token": "token",
    "use_ssl": "use_ssl",
    "verify": "verify",
}
NESTED_OF_S3: dict[str, set[str]] = {  # the names in options that are dicts
    "client_kwargs": {*CLIENT_OF_S3},
    "config_kwargs": {
        *("proxies", "proxies_config", "s3", "connect_timeout", "read_timeout", "max_pool_connections", "user_agent"),
        *("use_dualstack_endpoint", "use_fips_endpoint"),
    },
}
_SAME_AS_HERE = {  # of config_kwargs, with the values that this package uses anyway
    "signature_version": "s3v4",
    "request_checksum_calculation": "when_required",
    "response_checksum_validation": "when_required",
}
_NESTED_OF_CONFIG = {  # of these botocore would ignore other names
    "s3": {
        *("addressing_style", "us_east_1_regional_endpoint", "use_accelerate_endpoint", "use_arn_region"),
        *("use_dualstack_endpoint", "disable_multiregion_access_points", "payload_signing_enabled"),
    },
    "proxies_config": {"proxy_ca_bundle", "proxy_client_cert", "proxy_use_forwarding_for_https"},
}
_S3 = {
    *("key", "secret", "token", "endpoint_url", "region", "profile", "anon", "use_ssl", "requester_pays"),
    *("version_aware", "s3_additional_kwargs", *NESTED_OF_S3),  # an object is read in one version by its etag
}
_GS = {
    *("token", "project", "endpoint_url", "requester_pays", "access"),
    # About what this package does not do: checking on demand, caching listings, creating buckets, saving tokens
    *("consistency", "cache_timeout", "check_connection", "default_location", "secure_serialize"),
}
OF_AZURE = (  # that have a variable of the environment, too
    *("account_name", "account_key", "connection_string", "sas_token"),
    *("client_id", "client_secret", "tenant_id", "anon"),
)
_AZURE = {*OF_AZURE, "credential", "account_host", "location_mode"}
_TRANSLATED: dict[str, set[str]] = {
    **dict.fromkeys(S3, _S3),
    **dict.fromkeys(GS, _GS),
    **dict.fromkeys(AZURE, _AZURE),
    **{scheme: {"headers"} for scheme in HTTP},
    DATASETS: {"token", "secure"},
    HUGGING_FACE: {"token", "endpoint", "revision"},
}
_BY_GCSFS = ("cache", "browser")  # values of token


def nested(options: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return an option that is a dict, without the values that are ``None``.

    Raises:
        UrlError: if it is something else.
    """
    found = options.get(name) or {}
    if not isinstance(found, Mapping):
        raise UrlError(f"storage_options: {name!r} must be a dict, got {check.a_kind(found)}.")
    return {name: value for name, value in found.items() if value is not None}


def untranslated(scheme: str, options: StorageOptions) -> list[str]:
    """Return how the options for a bucket are written that obstore has no word for. They select fsspec."""
    names = sorted(options.keys() - _TRANSLATED[scheme] - {*FALLBACK_NAMES})
    found = [repr(name) for name in names if options[name] is not None]
    if scheme in S3:
        config = nested(options, "config_kwargs")
        found += [
            f"{name}[{word!r}]"
            for name, known in NESTED_OF_S3.items()
            for word in sorted(nested(options, name).keys() - known)
            if name != "config_kwargs" or _SAME_AS_HERE.get(word) != config[word]
        ]
        unknown = nested(config, "proxies_config").keys() - {"proxy_ca_bundle"}
        found += [f"config_kwargs['proxies_config'][{word!r}]" for word in sorted(unknown)]
    elif scheme in GS and options.get("token") in _BY_GCSFS:
        found.append("'token'")
    elif inspect.iscoroutinefunction(getattr(options.get("credential"), "get_token", None)):
        found.append("'credential' of azure.identity.aio")
    return found


def check_options(url: str, options: StorageOptions) -> None:
    """Refuse an option that has no translation and that the scheme's filesystem does not have.

    A filesystem is imported only for a name without a translation. Local files and memory ignore the options of other
    stores, because a list of URLs of several stores has one dict of options.

    Raises:
        UrlError: names the option, and the nearest name.
    """
    scheme, where = url.partition("://")[0].lower() if "://" in url else "file", redact(url)
    known = _TRANSLATED.get(scheme, set())
    if scheme in WITHOUT_BUCKET:
        known = {"auto_mkdir"}.union(*_TRANSLATED.values())
    unknown = options.keys() - known - {*FALLBACK_NAMES}
    if unknown:
        is_ours = scheme in (*HTTP, DATASETS, HUGGING_FACE)
        more = set() if is_ours else _of_filesystem(scheme, any_name=bool(known))
        if known or more:
            _refuse(where, "storage_options", unknown - more, known, more)
    if scheme in S3:
        config = nested(options, "config_kwargs")
        for name, words in _NESTED_OF_CONFIG.items():
            _refuse(
                where, f"storage_options['config_kwargs'][{name!r}]", nested(config, name).keys() - words, words, set()
            )


def _refuse(where: str, what: str, unknown: set[str], known: set[str], more: set[str]) -> None:
    for name in sorted(unknown):
        word = CLIENT_OF_S3.get(name)  # of boto3
        nearest = f"; did you mean {word!r}?" if word in known else did_you_mean(name, sorted(known))
        shown = ", ".join(sorted(known or more)[:_MAX_SHOWN])
        raise UrlError(
            f"{where}: unknown option {name!r} in {what}{nearest or did_you_mean(name, sorted(more)) or '.'} Known are "
            f"{shown}, and where fsspec reads those of its filesystem.",
            url=where,
        )


def _of_filesystem(scheme: str, *, any_name: bool) -> set[str]:
    """Return the options of a filesystem of fsspec; none if it is not installed.

    Args:
        scheme: of URLs.
        any_name: whether to return them also if it accepts other names, which it may pass on to another library.
    """
    import fsspec

    with contextlib.suppress(Exception):  # a package that is not installed, or does not fit another one
        kind = fsspec.get_filesystem_class(scheme)
        found = [inspect.getfullargspec(one.__init__) for one in kind.__mro__ if "__init__" in vars(one)]
        if any_name or found[0].varkw is None:
            caching = {
                "use_listings_cache",
                "listings_expiry_time",
                "max_paths",
                "skip_instance_cache",
            }  # of fsspec itself
            return caching.union(*(one.args[1:] + one.kwonlyargs for one in found))
    return set()
