"""Servers that the tests of Google Cloud Storage share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers.google import Google, google_servers


@pytest.fixture
def google() -> Iterator[Google]:
    with google_servers() as servers:
        yield servers
