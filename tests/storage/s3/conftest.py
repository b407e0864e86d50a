"""Each transport of S3."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers.aws_credentials import aws_credentials
from tests.servers.recording_s3 import RecordingS3, recording_s3
from tests.support.aws_sources import AwsPlace
from tests.support.s3_stores import TRANSPORTS
from torchdata_remote.core.options import StorageOptions
from torchdata_remote.storage.s3.settings import s3_settings
from torchdata_remote.storage.s3.store import S3Store


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


@pytest.fixture
def aws_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AwsPlace]:
    """The environment and the files of AWS, and its servers of credentials."""
    with aws_credentials(tmp_path) as running:
        yield AwsPlace(monkeypatch, tmp_path, running)


@pytest.fixture
def store_from(aws_place: AwsPlace, recorder: RecordingS3) -> Callable[..., S3Store]:
    """Returns a store whose credentials are from a source, on a server that has ``a``: ten digits."""
    recorder.objects["a"] = b"0123456789"

    def make(configure: Callable[[AwsPlace], dict[str, Any]], **more: Any) -> S3Store:
        options = {"endpoint_url": recorder.url, "region": "us-west-2", **configure(aws_place), **more}
        settings = s3_settings(StorageOptions(options))
        assert settings is not None
        return S3Store("bucket", settings, read_by_obstore=True)

    return make
