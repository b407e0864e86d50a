"""Ask botocore for the address of a bucket: its rules know access points, zones, FIPS, dual-stack and acceleration."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from ...core.options import StorageOptions
from .network import CONFIG as CONFIG_OF_NETWORK

_AWS_HOST = re.compile(
    r"https?://s3(express)?(-[a-z0-9]+)*(\.[a-z0-9-]+)*\.amazonaws\.(com(\.cn)?|eu)(:\d+)?(/|$)", re.IGNORECASE
)
_OPERATION, _METHOD = "GetObjectAcl", "get_object_acl"  # of the same address as GetObject, and never sent
_KEY = "k"

_CONFIG = frozenset({"use_dualstack_endpoint", "use_fips_endpoint"})
_TRANSLATED_OF_S3 = frozenset(
    {
        *("addressing_style", "us_east_1_regional_endpoint", "use_accelerate_endpoint", "use_arn_region"),
        *("disable_multiregion_access_points", "use_dualstack_endpoint"),
    }
)
CONFIG_OF_S3 = _TRANSLATED_OF_S3 | {"payload_signing_enabled"}  # that botocore knows
# Arguments of botocore's Config with the values that this package uses anyway
_DEFAULTS = {
    "signature_version": "s3v4",
    "request_checksum_calculation": "when_required",
    "response_checksum_validation": "when_required",
}


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


def is_of_aws(url: str) -> bool:
    """Whether a server is one of AWS.

    >>> [is_of_aws(f"https://{host}") for host in ("s3.amazonaws.com", "s3-us-west-2.amazonaws.com", "s3.example.org")]
    [True, True, False]
    """
    return _AWS_HOST.match(url) is not None


class Endpoint(NamedTuple):
    """Where the objects of a bucket are, and how requests for them are signed."""

    url: str  # of the bucket; the key follows after a slash
    region: str
    service: str  # "s3", "s3express", "s3-object-lambda", "s3-outposts"


class _ResolvedError(Exception):
    """Ends a request before it is signed and sent."""


def bucket_endpoint(client: Any, bucket: str) -> Endpoint:
    """Return the address that a botocore client uses for a bucket. Nothing is sent.

    Args:
        client: of S3, with its configuration, and with the regions that it was redirected to.
        bucket: a name, an alias or the ARN of an access point.

    Raises:
        botocore.exceptions.BotoCoreError: if the configuration has no address for it.
    """
    client.meta.events.register_first(f"before-sign.s3.{_OPERATION}", _stop, unique_id="torchdata_remote")
    try:
        getattr(client, _METHOD)(Bucket=bucket, Key=_KEY)
    except _ResolvedError as resolved:
        request = resolved.args[0]
    signing = request.context.get("signing", {})
    service = str(signing.get("signing_name") or "s3")
    if request.context.get("auth_type") == "v4a":  # of multi-region access points
        service += " by SigV4a"
    return Endpoint(
        str(request.url).partition("?")[0].removesuffix(f"/{_KEY}"),
        str(signing.get("region") or client.meta.region_name),
        service,
    )


def _stop(request: Any, **_: Any) -> None:
    raise _ResolvedError(request)
