"""A service, a proxy before it, and processes that push and pull."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.service.transfer.jobs import Jobs, running_jobs
from tests.service.transfer.proxy import Proxy, running_proxy

_numbers = itertools.count()


@pytest.fixture(scope="session")
def service(served: str) -> str:
    """``host:port`` of a service."""
    return served


@pytest.fixture
def proxy(service: str) -> Iterator[Proxy]:
    """Between the client and the service. One per test, so that no connection is shared with another test."""
    with running_proxy(service) as proxy:
        yield proxy


@pytest.fixture
def dataset() -> str:
    """A name that no other test has."""
    return f"transfer-{next(_numbers)}"


@pytest.fixture
def url(service: str, dataset: str) -> str:
    """Of a dataset that is not there yet."""
    return f"datasets://{service}/{dataset}"


@pytest.fixture
def proxy_url(proxy: Proxy, dataset: str) -> str:
    """The same dataset, by way of the proxy."""
    return f"datasets://{proxy.address}/{dataset}"


@pytest.fixture(scope="session")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    with running_jobs(tmp_path_factory.mktemp("fifos")) as jobs:
        yield jobs
