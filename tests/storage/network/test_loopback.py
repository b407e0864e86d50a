"""Servers on this machine under the proxy of a company, which cannot reach them."""

from __future__ import annotations

import pytest

from tests.servers.s3 import S3Server
from torchdata_remote import Backend
from torchdata_remote.core.options import StorageOptions
from torchdata_remote.errors import AccessDeniedError
from torchdata_remote.storage import Connection, open_store
from torchdata_remote.storage.network import is_loopback, proxy_for


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:9000", True),
        ("https://127.3.2.1/x", True),
        ("http://localhost:9000", True),
        ("http://[::1]:9000", True),
        ("http://minio:9000", False),
        ("http://10.0.0.1", False),
        ("http://localhost.example.org", False),
        ("", False),
        ("http://[", False),
    ],
)
def test_loopback_is_told_by_the_host(url: str, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of other machines, and what is no URL, are none."""
    monkeypatch.setenv("ALL_PROXY", "http://proxy:3128")
    monkeypatch.setenv("NO_PROXY", "")
    assert is_loopback(url) is expected
    if url.startswith("http") and url != "http://[":
        assert (proxy_for(url) is None) is expected


@pytest.mark.parametrize("backend", [Backend.OBSTORE, Backend.BOTOCORE, Backend.FSSPEC])
def test_a_store_on_this_machine_is_reached_past_a_proxy(
    moto: S3Server, monkeypatch: pytest.MonkeyPatch, backend: Backend
) -> None:
    """Listing, reading and writing, whatever reads the environment: nothing listens at the proxy's address."""
    bucket = moto.new_bucket()
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    store, _ = open_store(f"s3://{bucket}", StorageOptions(moto.storage_options), Connection(backend))
    writer = store.create("a", overwrite=True)
    writer.write(b"12")
    writer.commit()
    assert [entry.path for entry in store.list_page("", recursive=True, token=None).entries] == ["a"]
    assert store.read("a", 0, 2, None).whole() == b"12"
    if backend is Backend.OBSTORE:
        web, path = open_store(f"{moto.endpoint_url}/{bucket}/a", StorageOptions(), Connection(backend))
        with pytest.raises(AccessDeniedError, match="403"):  # the server's answer
            web.read(path, 0, 2, None)
