"""Errors of access name the source of the credentials, and never their values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.servers.scripted import Response, scripted
from torchdata_remote.core.options import Backend, StorageOptions
from torchdata_remote.errors import AccessDeniedError
from torchdata_remote.storage import Connection, open_store

KEYS = {"key": "AKIACANARY", "secret": "CANARY"}


def _denied(options: dict[str, Any], backend: Backend = Backend.AUTOMATIC) -> str:
    with scripted(lambda request: Response.of_error(403, "AccessDenied")) as server:
        more = {"endpoint_url": server.url, "region": "us-east-1"}
        store, path = open_store("s3://photos/a", StorageOptions({**options, **more}), Connection(backend))
        with pytest.raises(AccessDeniedError) as caught:
            store.read(path, 0, 1, None)
    assert "CANARY" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("backend", [Backend.OBSTORE, Backend.BOTOCORE, Backend.FSSPEC])
def test_those_of_the_options_are_named(backend: Backend) -> None:
    assert "The credentials are from 'key' and 'secret' of storage_options." in _denied(KEYS, backend)


def test_those_of_the_environment_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIACANARY")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "CANARY")
    assert "The credentials are from the environment (AWS_ACCESS_KEY_ID)." in _denied({})


def test_those_of_a_file_are_named_with_their_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "credentials"
    file.write_text("[lab]\naws_access_key_id = AKIACANARY\naws_secret_access_key = CANARY\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    assert f"The credentials are from {file}, profile 'lab'." in _denied({"profile": "lab"})


def test_a_request_without_signature_is_named() -> None:
    assert "The request was not signed (anon=True)." in _denied({"anon": True})
