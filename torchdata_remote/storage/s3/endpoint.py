"""The address of a bucket, from the options, the configuration of AWS, and botocore's table of regions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ...core.arguments import check
from ...core.options import StorageOptions
from ...errors import UrlError
from .network import CONFIG as CONFIG_OF_NETWORK

if TYPE_CHECKING:
    from .settings import S3Settings

_AWS_HOST = re.compile(
    r"https?://s3(express)?(-[a-z0-9]+)*(\.[a-z0-9-]+)*\.amazonaws\.(com(\.cn)?|eu)(:\d+)?(/|$)", re.IGNORECASE
)
_CONFIG = frozenset({"use_dualstack_endpoint", "use_fips_endpoint"})
_TRANSLATED_OF_S3 = frozenset({"addressing_style", "us_east_1_regional_endpoint", "use_dualstack_endpoint"})
_BY_S3FS = frozenset({"use_accelerate_endpoint", "use_arn_region", "disable_multiregion_access_points"})
CONFIG_OF_S3 = _TRANSLATED_OF_S3 | _BY_S3FS | {"payload_signing_enabled"}  # that botocore knows
# Arguments of botocore's Config with the values that this package uses anyway
_DEFAULTS = {
    "signature_version": "s3v4",
    "request_checksum_calculation": "when_required",
    "response_checksum_validation": "when_required",
}
_FLAGS = _CONFIG | _BY_S3FS


def untranslated_config(options: StorageOptions) -> list[str]:
    """Return how the names in ``config_kwargs`` that only s3fs knows are written."""
    config = options.get("config_kwargs") or {}
    of_s3 = config.get("s3")
    given = {name for name, value in config.items() if value is not None and value != _DEFAULTS.get(name)}
    unknown = sorted(given - _CONFIG - CONFIG_OF_NETWORK - {"s3"})
    found = [f"config_kwargs[{name!r}]" for name in unknown]
    if isinstance(of_s3, Mapping):
        found += [f"config_kwargs['s3'][{name!r}]" for name in sorted(of_s3.keys() - _TRANSLATED_OF_S3)]
    return found


def config_of_endpoint(options: StorageOptions) -> dict[str, Any]:
    """Return the arguments of botocore's ``Config`` that select an address."""
    config = options.get("config_kwargs") or {}
    return {name: config[name] for name in (*_CONFIG, "s3") if name in config}


def require_usable_config(where: str, options: StorageOptions) -> None:
    """Validate the flags of ``config_kwargs`` that select an address; a text such as "false" would be a yes.

    Raises:
        UrlError: names the flag.
    """
    config = options.get("config_kwargs") or {}
    of_s3 = config.get("s3")
    shown = "storage_options['config_kwargs']"
    if of_s3 is not None and not isinstance(of_s3, Mapping):
        raise UrlError(f"{where}: {shown}['s3'] must be a dict, got {check.a_kind(of_s3)}.", url=where)
    for path, found in ((shown, config), (f"{shown}['s3']", of_s3 or {})):
        for name in sorted(found.keys() & _FLAGS):
            if not isinstance(found[name], bool | None):
                kind = check.a_kind(found[name])
                raise UrlError(f"{where}: {path}[{name!r}] must be True or False, got {kind}.", url=where)


def is_of_aws(url: str) -> bool:
    """Whether a server is one of AWS.

    >>> [is_of_aws(f"https://{host}") for host in ("s3.amazonaws.com", "s3-us-west-2.amazonaws.com", "s3.example.org")]
    [True, True, False]
    """
    return _AWS_HOST.match(url) is not None


class Address(NamedTuple):
    """Where the objects of a bucket are, and the region that requests for them are signed for."""

    url: str  # of the bucket; the key follows after a slash
    region: str
    is_of_aws: bool


def is_directory_bucket(bucket: str) -> bool:
    """Whether a bucket is one of S3 Express One Zone: without order, and with sessions instead of signatures."""
    return bucket.endswith("--x-s3")


def bucket_address(bucket: str, settings: S3Settings, session: Any, region: str, *, is_found: bool = False) -> Address:
    """Return the address of a bucket, by botocore's tables of regions. Nothing is sent.

    Args:
        bucket: its name.
        settings: of the store.
        session: of botocore, for its configuration.
        region: of the bucket.
        is_found: whether AWS has named the region, so that an address of another region is not used.

    Raises:
        UrlError: if a configured endpoint holds credentials, or a key of the user would be sent by plain http.
    """
    where = f"s3://{bucket}"
    endpoint = settings.endpoint_url or _configured_endpoint(session)
    if "@" in (endpoint or ""):
        raise UrlError(
            f"{where}: endpoint_url in ~/.aws/config holds credentials (an @), which logs and errors would show. Use "
            "aws_access_key_id and aws_secret_access_key there.",
            url=where,
        )
    is_aws = endpoint is None or is_of_aws(endpoint)
    if endpoint is None or (is_aws and (is_found or is_directory_bucket(bucket))):
        scheme = "https" if settings.use_ssl else "http"
        endpoint = f"{scheme}://{_host_of_aws(bucket, region, settings, session)}"
    if is_aws and settings.requests.has_customer_key and not endpoint.lower().startswith("https:"):
        raise UrlError(
            f"{where}: SSECustomerKey is sent with each request, and AWS accepts it by https only; the address is "
            f"{endpoint}. Leave out use_ssl=False, or set the endpoint to https://.",
            url=where,
        )
    of_s3 = {**(session.get_scoped_config().get("s3") or {}), **(settings.config.get("s3") or {})}
    style = of_s3.get("addressing_style") or ("virtual" if is_aws else "path")
    if style == "path" or (style == "auto" and not is_aws) or "." in bucket or not _is_of_dns(bucket):
        return Address(f"{endpoint.rstrip('/')}/{bucket}", region, is_aws)
    scheme, _, rest = endpoint.rstrip("/").partition("://")
    return Address(f"{scheme}://{bucket}.{rest}", region, is_aws)


def _is_of_dns(bucket: str) -> bool:
    """Whether the name of a bucket may be a part of a host name."""
    return re.fullmatch("[a-z0-9][a-z0-9-]{1,61}[a-z0-9]", bucket) is not None


def _configured_endpoint(session: Any) -> str | None:
    from botocore.configprovider import ConfiguredEndpointProvider

    if session.get_config_variable("ignore_configured_endpoint_urls"):
        return None
    configured = ConfiguredEndpointProvider(
        full_config=session.full_config, scoped_config=session.get_scoped_config(), client_name="s3"
    )
    found: str | None = configured.provide()
    return found


def _host_of_aws(bucket: str, region: str, settings: S3Settings, session: Any) -> str:
    if is_directory_bucket(bucket):
        zone = bucket.removesuffix("--x-s3").rpartition("--")[2]
        return f"s3express-{zone}.{region}.amazonaws.com"
    resolver = session.get_component("endpoint_resolver")
    flags = {name: settings.config.get(name, session.get_config_variable(name)) for name in sorted(_CONFIG)}
    return str(resolver.construct_endpoint("s3", region, **flags)["hostname"])
