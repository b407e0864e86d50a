"""S3: what a bucket's options, in s3fs's words, and the environment of AWS mean for obstore and for s3fs."""

from __future__ import annotations

import base64
import dataclasses
import os
import re
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from ...core.arguments import check
from ...core.bucket_names import is_name_of_s3
from ...core.options import FALLBACK_NAMES, StorageOptions
from ...core.urls import redact
from ...errors import UrlError
from ..credentials import Credentials, Issued
from ..network import (
    ENVIRONMENT,
    NetworkSettings,
    environment_proxies,
    is_loopback,
    note_authorities,
    obstore_client_options,
    require_authorities,
)
from . import aws_credentials as aws
from . import s3_values as words
from .bucket import Target
from .s3_values import mapping

_FLAT = {"key", "secret", "token", "endpoint_url", "region", "profile", "anon", "use_ssl", *FALLBACK_NAMES}
# version_aware: an object is read in one version by its etag
_ELSEWHERE = {"client_kwargs", "config_kwargs", "s3_additional_kwargs", "requester_pays", "version_aware"}
_CLIENT = {
    "region_name": "region",
    "endpoint_url": "endpoint_url",
    "aws_access_key_id": "key",
    "aws_secret_access_key": "secret",
    "aws_session_token": "token",
    "use_ssl": "use_ssl",
}
_SAME_AS_HERE = {  # arguments of Config with the values that this package uses anyway
    "signature_version": "s3v4",
    "request_checksum_calculation": "when_required",
    "response_checksum_validation": "when_required",
}
_CREDENTIALS = {"key", "username", "secret", "password", "token", "session"}  # names of s3fs
_HOST = re.compile(r"[\w.-]+(:\d+)?/?")
_AWS_HOST = re.compile(r"(.*\.)?s3[a-z0-9-]*(\.[a-z0-9-]+)*\.amazonaws\.(com(\.cn)?|eu)")
_OWN_HOST = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")  # buckets that a certificate for *.HOST covers
_ZONAL = ("--x-s3", "--xa-s3")  # ends of the names of directory buckets, and of their access points


def untranslated(options: StorageOptions) -> list[str]:
    """Return how the options are written that obstore has no word for. They select s3fs."""
    config = mapping(options, "config_kwargs")
    same = {name for name, value in _SAME_AS_HERE.items() if config.get(name) == value}
    return [
        *(repr(name) for name in sorted(options.keys() - _FLAT - _ELSEWHERE) if options[name] is not None),
        *(
            f"{shown}[{name!r}]"
            for shown, given, known in (
                ("client_kwargs", mapping(options, "client_kwargs"), _CLIENT.keys() | {"verify"}),
                ("config_kwargs", config, words.CONFIG | same),
                ("config_kwargs['s3']", mapping(config, "s3"), words.OF_S3),
                ("config_kwargs['proxies_config']", mapping(config, "proxies_config"), {"proxy_ca_bundle"}),
                ("s3_additional_kwargs", mapping(options, "s3_additional_kwargs"), words.ARGUMENTS),
            )
            for name in sorted(given.keys() - known)
        ),
    ]


def s3_target(bucket: str, options: StorageOptions, read_timeout_s: float, region: str | None = None) -> Target:
    """Translate options without :func:`untranslated` ones. The AWS environment decides what they leave open.

    Args:
        bucket: its name.
        options: of the user.
        read_timeout_s: seconds without a byte after which a request fails, unless the options name them.
        region: where AWS says that the bucket is, instead of that of the options.

    Raises:
        UrlError: if a name, an address or a file of certificates cannot be used.
        AccessDeniedError: if a key has no secret, or the profile does not exist.
    """
    url = f"s3://{bucket}"
    if not is_name_of_s3(bucket):
        raise UrlError(
            f"{redact(url)}: no name of a bucket. It has letters, digits, dots, hyphens and underscores, or is the ARN "
            "of an access point; a name in another notation, such as with %20, is not converted.",
            url=redact(url),
        )
    given, config = _flat(options), mapping(options, "config_kwargs")
    keys, fallback = aws.keys_of(given, url), aws.keys_of(given, url, "fallback_")
    session = aws.aws_session(given.get("profile"), url)
    signed_for = region or given.get("region") or session.get_config_variable("region") or "us-east-1"
    address = _address(bucket, given, config, session, signed_for, is_found=region is not None)
    arguments = mapping(options, "s3_additional_kwargs")
    if check.flag("storage_options['requester_pays']", options.get("requester_pays") or False):
        arguments[words.PAYER] = "requester"
    network = _with_bundle(_network(options), session)
    note_authorities(url, network)
    client_options = obstore_client_options(address, config.get("read_timeout", read_timeout_s), network)
    if words.OWNER in arguments:
        client_options["default_headers"] = {"x-amz-expected-bucket-owner": arguments[words.OWNER]}
    issue = aws.chain_of(given.get("profile"), signed_for, fallback, url)
    if given.get("anon"):
        issue = partial(Issued, {}, None, aws.NOT_SIGNED)
    elif keys is not None:
        issue = partial(Issued, keys, None, aws.OF_OPTIONS)
    of_key = " Or SSECustomerKey of storage_options['s3_additional_kwargs'] is not that of the object."
    return Target(
        url,
        "S3Store",
        bucket,
        config={
            "endpoint": address,
            "region": signed_for,
            "virtual_hosted_style_request": True,  # says that the bucket is in the endpoint, in whatever way
            "s3_express": bucket.endswith(_ZONAL),  # sessions
            "request_payer": words.PAYER in arguments,
            "disable_bulk_delete": True,  # which some servers do not have
            **_encryption(arguments.get(words.KEY), address, url),
        },
        client_options=client_options,
        credentials=Credentials(issue, url, early_s=aws.EARLY_S, hint=of_key * (words.KEY in arguments)),
    )


def properties_of(options: StorageOptions) -> dict[str, Any]:
    """Return the properties of written objects, in botocore's words."""
    arguments = mapping(options, "s3_additional_kwargs")
    return {name: value for name, value in arguments.items() if name not in (words.PAYER, words.OWNER)}


def _flat(options: StorageOptions) -> dict[str, Any]:
    """Return the options that are no dicts, without ``None``; those of ``client_kwargs`` by their names of s3fs."""
    client = {_CLIENT[name]: value for name, value in mapping(options, "client_kwargs").items() if name in _CLIENT}
    given = {**client, **{name: options[name] for name in options.keys() & _FLAT if options[name] is not None}}
    for name in given.keys() & {"anon", "use_ssl"}:
        given[name] = check.flag(f"storage_options[{name!r}]", given[name])
    address = str(given.get("endpoint_url", "http://"))
    if not address.lower().startswith(("http://", "https://")):
        meant = f"; did you mean 'http://{address}'?" if _HOST.fullmatch(address) else "."
        raise UrlError(f"storage_options['endpoint_url'] is {address!r}; expected such as 'https://host:port'{meant}")
    return given


def _address(
    bucket: str, given: dict[str, Any], config: dict[str, Any], session: Any, region: str, *, is_found: bool
) -> str:
    """Return the URL of a bucket, behind which keys follow after a slash.

    The rules are botocore's: a bucket of AWS has a host of its own unless its name has dots, and a server of the user
    has buckets in its path; ``addressing_style`` changes both.
    """
    from botocore.utils import ensure_boolean

    of_s3 = {**(session.get_config_variable("s3") or {}), **mapping(config, "s3")}
    style = of_s3.get("addressing_style")
    server = given.get("endpoint_url") or _server_of_environment(session, f"s3://{bucket}")
    is_zonal = bucket.endswith(_ZONAL)
    if server and not (is_of_aws(server) and (is_found or is_zonal)):
        scheme, _, rest = server.rstrip("/").partition("://")
        return f"{scheme}://{bucket}.{rest}" if style == "virtual" else f"{scheme}://{rest}/{bucket}"

    def variant(name: str, *places: dict[str, Any]) -> bool:
        found = [place[name] for place in places if name in place] or [session.get_config_variable(name) or False]
        return bool(ensure_boolean(found[0]))

    scheme = "https" if given.get("use_ssl", True) else "http"
    service = "s3express" if is_zonal else "s3"
    service += "-fips" * variant("use_fips_endpoint", config)
    dualstack = ".dualstack" * variant("use_dualstack_endpoint", of_s3, config)
    host = f"{service}{dualstack}.{region}.{_suffix_of(region, session)}"
    if is_zonal:
        host = host.replace(service, f"{service}-{bucket.split('--')[-2]}", 1)
    elif ensure_boolean(of_s3.get("use_accelerate_endpoint", False)):
        host = f"s3-accelerate{dualstack}.amazonaws.com"
    elif style == "path" or _OWN_HOST.fullmatch(bucket) is None:
        return f"{scheme}://{host}/{bucket}"
    return f"{scheme}://{bucket}.{host}"


def _suffix_of(region: str, session: Any) -> str:
    """Return the end of the hosts of a region, such as ``amazonaws.com.cn``."""
    known = session.get_component("data_loader").load_data("partitions")["partitions"]
    found = [one["outputs"]["dnsSuffix"] for one in known if re.match(one["regionRegex"], region)]
    return str(found[0] if found else "amazonaws.com")


def _server_of_environment(session: Any, url: str) -> str | None:
    """Return the address of another server than AWS, from variables or ``~/.aws/config``."""
    if session.get_config_variable("ignore_configured_endpoint_urls"):
        return None
    scoped = session.get_scoped_config()
    of_service = session.full_config.get("services", {}).get(scoped.get("services"), {}).get("s3", {})
    in_file = of_service.get("endpoint_url") or scoped.get("endpoint_url")
    if "@" in (in_file or ""):
        raise UrlError(
            f"{url}: endpoint_url in ~/.aws/config holds credentials (an @), which logs and errors would show. Use "
            "aws_access_key_id and aws_secret_access_key there.",
            url=url,
        )
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or in_file


def is_of_aws(address: str) -> bool:
    """Whether a server is one of AWS.

    >>> [is_of_aws(f"https://{host}") for host in ("s3.amazonaws.com", "b.s3-x.amazonaws.com", "s3.example.org")]
    [True, True, False]
    """
    return _AWS_HOST.fullmatch((urlsplit(address).hostname or "").lower()) is not None


def _encryption(key: object, address: str, url: str) -> dict[str, str]:
    """Return what obstore sends with a key of the user."""
    data = words.customer_key(key)
    if data is None:
        return {}
    if is_of_aws(address) and address.startswith("http://"):
        raise UrlError(
            f"{url}: SSECustomerKey is sent with each request, and AWS accepts it by https only; the address is "
            f"{address}. Leave out use_ssl=False, or set the endpoint to https://.",
            url=url,
        )
    return {"server_side_encryption": "sse-c", "sse_customer_key_base64": base64.b64encode(data).decode()}


def _network(options: StorageOptions) -> NetworkSettings:
    """Return TLS, proxies and connections; the environment decides what the options leave open."""
    config, verify = mapping(options, "config_kwargs"), mapping(options, "client_kwargs").get("verify")
    authorities = mapping(config, "proxies_config").get("proxy_ca_bundle")
    return NetworkSettings(
        verify=os.fspath(verify) if isinstance(verify, os.PathLike) else verify,
        verify_source="" if verify is None else "storage_options['client_kwargs']['verify']",
        proxies=config.get("proxies"),
        proxy_authorities=None if authorities is None else os.fspath(authorities),
        connect_timeout_s=config.get("connect_timeout", ENVIRONMENT.connect_timeout_s),
        max_connections=config.get("max_pool_connections", ENVIRONMENT.max_connections),
        user_agent=config.get("user_agent"),
    )


def _with_bundle(network: NetworkSettings, session: Any) -> NetworkSettings:
    """Add the authorities that the AWS environment names, if the options name none."""
    bundle = None if network.verify is not None else session.get_config_variable("ca_bundle")
    if not bundle:
        return network
    in_variable = bool(os.environ.get("AWS_CA_BUNDLE"))
    source = "the environment variable AWS_CA_BUNDLE" if in_variable else "ca_bundle in ~/.aws/config"
    return dataclasses.replace(network, verify=bundle, verify_source=source)


# s3fs


def options_for_s3fs(options: StorageOptions, url: str) -> dict[str, Any]:
    """Return the options for s3fs: fallback credentials only if there are no others, and no proxy to this machine.

    Raises:
        AccessDeniedError: if credentials are incomplete or cannot be loaded.
        UrlError: if a file of certificates cannot be used.
    """
    keywords = {name: value for name, value in options.items() if name not in FALLBACK_NAMES}
    given, arguments = _flat(options), mapping(options, "s3_additional_kwargs")
    fallback, profile = aws.keys_of(given, url, "fallback_"), given.get("profile")
    session = aws.aws_session(profile, url)
    of_aws = "https:" if given.get("use_ssl", True) else "http://s3.amazonaws.com"
    address = str(given.get("endpoint_url") or _server_of_environment(session, url) or of_aws)
    _encryption(arguments.get(words.KEY), address, url)
    verify = require_authorities(_with_bundle(_network(options), session), address)
    if isinstance(verify, str):  # it does not read all variables
        keywords["client_kwargs"] = {**mapping(options, "client_kwargs"), "verify": verify}
    if words.KEY in arguments:
        arguments[words.KEY] = words.customer_key(arguments[words.KEY])  # it takes bytes only
        keywords["s3_additional_kwargs"] = arguments
    if environment_proxies() and is_loopback(address):
        keywords["config_kwargs"] = {"proxies": {}, **mapping(options, "config_kwargs")}
    has_own = given.get("anon") or "key" in given or any(options.get(name) is not None for name in _CREDENTIALS)
    if fallback is not None and not has_own:
        issued = aws.chain_of(profile, given.get("region", "us-east-1"), fallback, url)()
        if issued.source == aws.OF_FALLBACK:
            keywords |= zip(("key", "secret", "token"), fallback.values(), strict=True)
    return keywords


def source_of_options(options: StorageOptions) -> str:
    """Name the source of the credentials that s3fs uses."""
    given = _flat(options)
    if given.get("anon"):
        return f" {aws.NOT_SIGNED}"
    if given.keys() & {"key", "secret", "token"}:
        return f" {aws.OF_OPTIONS}"
    return " The credentials are those that botocore finds (environment, ~/.aws, role)."
