"""Stores that the tests of S3 share."""

from __future__ import annotations

import uuid

import pytest

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
