"""A botocore client that speaks Google's XML API: S3's requests with Google's headers and a token.

The differences are those that Google documents (https://cloud.google.com/storage/docs/xml-api/reference-headers):
headers begin with ``x-goog-``, a mixture with ``x-amz-`` is refused, and the condition that no object exists is the
generation 0.
"""

from __future__ import annotations

import os
from typing import Any

from ..clouds.aws_credentials import _shared_loader as shared_loader
from ..clouds.bucket import CloudBucket
from ..s3.client import make_client
from ..s3.headers import tolerate_malformed_headers
from ..s3.page_parser import install_page_parser
from ..s3.settings import S3Settings

GENERATION_MATCH = "x-goog-if-generation-match"
# What botocore would read from the environment and files of AWS, and its names and defaults
_WITHOUT_AWS: dict[str, tuple[None, None, Any, None]] = {
    "profile": (None, None, None, None),
    "config_file": (None, None, os.devnull, None),
    "credentials_file": (None, None, os.devnull, None),
    "use_fips_endpoint": (None, None, False, None),
    "use_dualstack_endpoint": (None, None, False, None),
}
# Without it the server decompresses what is stored compressed, and ignores the range
STORED_BYTES = {"Accept-Encoding": "gzip"}


def make_gcs_client(cloud: CloudBucket, read_timeout_s: float) -> Any:
    """Make a client that does not retry.

    Args:
        cloud: endpoint and credentials.
        read_timeout_s: seconds without a byte after which a request fails.
    """
    import botocore.session

    session = botocore.session.Session(session_vars=_WITHOUT_AWS)
    session.register_component("data_loader", shared_loader(None))
    shape = S3Settings(endpoint_url=cloud.config["base_url"], region="auto", anon=True, read_timeout_s=read_timeout_s)
    client = make_client(shape, session, cloud.url)
    install_page_parser(client)
    tolerate_malformed_headers(client)

    def translate(request: Any, **_: Any) -> None:
        _speak_google(request.headers)
        token = cloud.credentials.current().fields.get("token")
        if token is not None:
            request.headers["Authorization"] = f"Bearer {token}"
        for name, value in cloud.more_headers().items():
            request.headers[name] = value

    def ask_for_stored_bytes(request: Any, **_: Any) -> None:
        for name, value in STORED_BYTES.items():
            request.headers[name] = value

    client.meta.events.register("before-send.s3", translate)
    for operation in ("GetObject", "HeadObject"):
        client.meta.events.register(f"before-send.s3.{operation}", ask_for_stored_bytes)
    return client


def _speak_google(headers: Any) -> None:
    """Replace S3's headers by Google's."""
    for name in list(headers.keys()):
        lower = name.lower()
        if lower.startswith(("x-amz-", "amz-sdk-")):
            value = headers[name]
            del headers[name]
            if lower.startswith("x-amz-"):
                headers[f"x-goog-{lower[len('x-amz-') :]}"] = value
    if headers.get("If-None-Match") in ("*", b"*"):
        del headers["If-None-Match"]
        headers[GENERATION_MATCH] = "0"
    if "x-goog-copy-source" in headers:
        headers[GENERATION_MATCH] = "0"  # a copy never replaces an object
