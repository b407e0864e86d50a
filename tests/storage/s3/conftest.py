"""Each transport of S3."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.recording_s3 import RecordingS3, recording_s3
from tests.support.s3_stores import TRANSPORTS


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    """Each way to read S3."""
    name: str = request.param
    return name


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
