"""obstore reads with the endpoint and credentials that botocore resolves."""

from __future__ import annotations

from typing import Any

import pytest

from torchdata_remote.storage.s3.client import make_client
from torchdata_remote.storage.s3.endpoint import bucket_endpoint
from torchdata_remote.storage.s3.obstore import s3_reader
from torchdata_remote.storage.s3.session import make_session
from torchdata_remote.storage.s3.settings import S3Settings


@pytest.mark.parametrize(
    "endpoint",
    [
        "https://bucket.vpce-1a2b3c4d-5e6f.s3.us-east-1.vpce.amazonaws.com",
        "https://s3.dualstack.eu-west-1.amazonaws.com",
        "https://s3-fips.us-east-1.amazonaws.com",
        "http://127.0.0.1:9000",
        "http://127.0.0.1:9000/prefix",
    ],
)
def test_the_endpoint_is_the_same_for_obstore_and_botocore(endpoint: str) -> None:
    """An object is read from the endpoint that is listed, also where that is one of AWS."""
    settings = S3Settings(key="k", secret="s", endpoint_url=endpoint)
    session = make_session(settings, "s3://bucket")
    client = make_client(settings, session, "s3://bucket")
    reader = s3_reader("bucket", settings, session, lambda: client)
    assert client.meta.endpoint_url == endpoint
    assert bucket_endpoint(client, "bucket") == reader.endpoint == (f"{endpoint}/bucket", "us-east-1", "s3")
    config: dict[str, Any] = getattr(reader._store, "config")  # noqa: B009  # not in obstore's stubs for all stores
    assert config.get("endpoint") == f"{endpoint}/bucket"


def test_a_session_token_is_sent_by_obstore_and_botocore() -> None:
    """Together with key and secret."""
    settings = S3Settings(key="k", secret="s", token="session-token", endpoint_url="http://127.0.0.1:9")
    session = make_session(settings, "s3://bucket")
    assert session.get_credentials().get_frozen_credentials().token == "session-token"
    reader = s3_reader("bucket", settings, session, lambda: make_client(settings, session, ""))
    provider: Any = getattr(reader._store, "credential_provider")  # noqa: B009
    assert provider()["token"] == "session-token"
