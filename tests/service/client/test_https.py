"""Clients of a service that speaks https with a certificate of a private authority."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pytest

pytest.importorskip("starlette", reason="the service's libraries are not installed")

import trustme
from torch.utils.data.datapipes.iter import IterableWrapper

import torchdata_remote as tdr
from tests.servers.service import Service
from torchdata_remote.errors import StorageError, TransientStorageError

FILES = {"a": b"a" * 10, "deep/b": b"b" * 100_000, "large": b"l" * 3_000_000}
OPTIONS = {"secure": True}


@pytest.fixture
def authority(tmp_path: Path) -> trustme.CA:
    made = trustme.CA()
    made.cert_pem.write_to_path(tmp_path / "authority.pem")
    return made


@pytest.fixture
def service(authority: trustme.CA, tmp_path: Path) -> Service:
    made = authority.issue_cert("localhost", "127.0.0.1")
    for blob in made.cert_chain_pems:
        blob.write_to_path(tmp_path / "chain.pem", append=True)
    made.private_key_pem.write_to_path(tmp_path / "key.pem")
    arguments = ("--certificate", str(tmp_path / "chain.pem"), "--key", str(tmp_path / "key.pem"))
    return Service(tmp_path / "root", *arguments, "--min-free-bytes", "0")


def test_push_pull_and_read(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the authority in SSL_CERT_FILE."""
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)  # which precedes
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    url = f"datasets://{service.address}/d"
    for path, data in FILES.items():
        (tmp_path / "source" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "source" / path).write_bytes(data)
    try:
        assert tdr.push(tmp_path / "source", url, storage_options=OPTIONS).num_files == len(FILES)
        assert tdr.pull(url, tmp_path / "pulled", storage_options=OPTIONS).num_files == len(FILES)
        for path, data in FILES.items():
            assert (tmp_path / "pulled" / path).read_bytes() == data
        pipe = IterableWrapper([url + "/"]).list_remote(storage_options=OPTIONS).async_prefetch(storage_options=OPTIONS)
        read = {found.removeprefix(url + "/"): b"".join(stream.parts()) for found, stream in pipe}
        assert read == FILES
        with fsspec.open(f"{url}/a", secure=True) as file:
            assert file.read() == FILES["a"]
    finally:
        service.stop()


def test_a_certificate_that_is_not_trusted_is_an_error(service: Service, tmp_path: Path) -> None:
    """It says so; nothing was sent."""
    once = tdr.RetryPolicy(deadline_s=0.1)
    try:
        with pytest.raises((StorageError, TransientStorageError), match=r"(?i)certificate"):
            tdr.pull(f"datasets://{service.address}/d", tmp_path / "pulled", storage_options=OPTIONS, retry=once)
    finally:
        service.stop()
