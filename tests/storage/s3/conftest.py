"""Stores that the tests of S3 share."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.recording_s3 import RecordingS3, recording_s3
from tests.servers.s3 import S3Server
from tests.support.s3_stores import TRANSPORTS, shared_bucket, shared_store
from torchdata_remote.storage import Store


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    """Each way to read S3."""
    name: str = request.param
    return name


@pytest.fixture
def any_store(transport: str, s3: S3Server) -> Store:
    """Each way to read S3, on each server, in a bucket that tests share."""
    return shared_store(s3, transport)


@pytest.fixture
def any_bucket(s3: S3Server) -> str:
    """The bucket of ``any_store``."""
    return shared_bucket(s3)


@pytest.fixture
def folder() -> str:
    """A prefix in a shared bucket that no other test uses."""
    return f"{uuid.uuid4().hex}/"


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[RecordingS3]:
    """A server that records what it is sent."""
    with recording_s3(tmp_path) as running:
        yield running


@pytest.fixture
def aws(recorder: RecordingS3, monkeypatch: pytest.MonkeyPatch) -> RecordingS3:
    """All hosts of AWS, by https: requests to them are recorded."""
    for name, value in recorder.environment.items():
        monkeypatch.setenv(name, value)
    return recorder
