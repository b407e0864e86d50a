"""Each transport of S3."""

from __future__ import annotations

import pytest

from tests.support.s3_stores import TRANSPORTS


@pytest.fixture(params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> str:
    """Each way to read S3."""
    name: str = request.param
    return name
