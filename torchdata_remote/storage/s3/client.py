"""The client of botocore that sends all requests of S3 but those of obstore."""

from __future__ import annotations

import contextlib
import re
from functools import partial
from typing import Any
from urllib.parse import unquote, urlsplit

from ...core.threads.forks import hold_forks
from ...core.urls import redact
from ...errors import RemoteDataError, StorageError, UrlError
from ..errors import from_botocore, from_status
from ..network import authorities_of, environment_proxies, proxy_for, require_authorities
from .endpoint import bucket_endpoint, is_of_aws
from .network import config_of_proxies
from .settings import S3Settings, region_of

_REDIRECTS = (301, 302, 303, 307, 308)


def make_client(settings: S3Settings, session: Any, url: str, bucket: str = "") -> Any:
    """Make an S3 client that does not retry, and follows the AWS environment.

    Args:
        settings: of the store.
        session: of botocore.
        url: of the bucket, for errors.
        bucket: whose address decides on the proxy; by default that of the service does.

    Raises:
        UrlError: if the endpoint is no URL, or holds credentials, or the authorities or the proxy cannot be used.
    """
    from botocore import UNSIGNED
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    network = settings.network
    verify, _ = authorities_of(network)

    def create(proxies: dict[str, str]) -> Any:
        try:
            with hold_forks():  # only one thread at a time can create a client
                return create_client(proxies)
        except (BotoCoreError, ValueError) as error:
            known = from_botocore(error, url)
            raise known if isinstance(known, RemoteDataError) else UrlError(f"{url}: {error}") from error

    def create_client(proxies: dict[str, str]) -> Any:
        return session.create_client(
            "s3",
            region_name=region_of(settings, session),
            endpoint_url=settings.endpoint_url,
            use_ssl=settings.use_ssl,
            verify=True if verify is None else verify,  # or botocore would ask the environment once more
            config=Config(
                signature_version=UNSIGNED if settings.anon else None,
                retries={"mode": "standard", "total_max_attempts": 1},
                max_pool_connections=network.max_connections,
                connect_timeout=network.connect_timeout_s,
                read_timeout=settings.read_timeout_s,
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
                proxies_config=config_of_proxies(network),
                user_agent=network.user_agent,
                proxies=proxies,  # always given, so that botocore does not ask the environment
                **settings.config,
            ),
        )

    client = create({})
    require_authorities(network, str(client.meta.endpoint_url))
    proxy = proxy_for(_address(client, bucket), network.proxies)
    if proxy is not None:
        _require_for_botocore(proxy, url)
        client = create({"http": proxy, "https": proxy})
    if "@" in str(client.meta.endpoint_url):
        raise UrlError(
            f"{url}: endpoint_url in ~/.aws/config holds credentials (an @), which logs and errors would show. Use "
            "aws_access_key_id and aws_secret_access_key there.",
            url=url,
        )
    if settings.requests.has_customer_key and follows_redirects(client) and not _is_https(client):
        raise UrlError(
            f"{url}: SSECustomerKey is sent with each request, and AWS accepts it by https only; the address is "
            f"{client.meta.endpoint_url}. Leave out use_ssl=False, or set the endpoint to https://.",
            url=url,
        )
    if follows_redirects(client):
        client.meta.events.register_first("needs-retry.s3.HeadBucket", partial(_require_region, url))
    else:
        client.meta.events.register_first("needs-retry.s3", _refuse_redirect)
    return client


def _is_https(client: Any) -> bool:
    return str(client.meta.endpoint_url).lower().startswith("https:")


def _address(client: Any, bucket: str) -> str:
    """Address of a bucket, which may be a host of its own; of the service for a bucket that has none."""
    from botocore.exceptions import BotoCoreError

    if bucket and environment_proxies():
        with contextlib.suppress(BotoCoreError):
            return bucket_endpoint(client, bucket).url
    return str(client.meta.endpoint_url)


def _refuse_redirect(response: tuple[Any, Any] | None, **about: Any) -> None:
    """Refuse redirects of stores other than AWS, which redirects to a bucket's region.

    (botocore would request the region recursively, until Python's stack overflows.)
    """
    if response is not None and response[0].status_code in _REDIRECTS:
        target = re.split("[?#]", redact(response[0].headers.get("Location", "nowhere")), maxsplit=1)[0]
        raise StorageError(
            f"The store redirects to {target}. Redirects are not followed: set endpoint_url to the right address."
        )


def _require_region(url: str, response: tuple[Any, Any] | None, **about: Any) -> None:
    """Refuse a redirect that does not name the bucket's region: botocore would ask for it by the same request."""
    if response is not None and response[0].status_code in _REDIRECTS:
        headers = {name.lower() for name in response[0].headers}
        if "x-amz-bucket-region" not in headers:
            raise from_status(response[0].status_code, "", url)


def follows_redirects(client: Any) -> bool:
    """Whether a client is one of AWS, which redirects requests to a bucket's region."""
    return is_of_aws(str(client.meta.endpoint_url))


def _require_for_botocore(proxy: str, url: str) -> None:
    """Refuse a user without a password, and letters outside of ASCII, which botocore sends without or not at all."""
    parts = urlsplit(proxy)
    if parts.username is None:
        return
    if not parts.username or not parts.password or not f"{unquote(parts.username)}{unquote(parts.password)}".isascii():
        raise UrlError(
            f"{url}: the proxy of {parts.hostname} needs a user and a password, of ASCII characters only: botocore "
            "sends no others.",
            url=url,
        )
