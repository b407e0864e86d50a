"""Clients of services in this process."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.servers.service import running_service
from tests.support.shard_places import Place

if TYPE_CHECKING:
    from starlette.testclient import TestClient  # an extra of the package: test modules skip without it


@pytest.fixture
def client(place: Place) -> Iterator[TestClient]:
    """A client of a service on each kind of store in turn."""
    from tests.support.service_clients import client_of

    with client_of(place.url, storage_options=place.options) as made:
        yield made


@pytest.fixture
def local(tmp_path: Path) -> Iterator[TestClient]:
    """A client of a service whose datasets are folders of ``tmp_path / "root"``."""
    from tests.support.service_clients import client_of

    with client_of(tmp_path / "root") as made:
        yield made


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A client of one local service for all tests that need no root of their own, such as tables of requests."""
    from tests.support.service_clients import client_of

    with client_of(tmp_path_factory.mktemp("shared")) as made:
        yield made


@pytest.fixture(scope="session")
def served_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the datasets of ``served``."""
    return tmp_path_factory.mktemp("served")


@pytest.fixture(scope="session")
def served(served_root: Path) -> Iterator[str]:
    """``host:port`` of a service that is a process of its own."""
    with running_service(served_root, "--min-free-bytes", "0") as address:
        yield address


@pytest.fixture(scope="session")
def token() -> str:
    """The token of ``guarded_service``."""
    return "correct-horse-battery"


@pytest.fixture(scope="session")
def guarded_service(tmp_path_factory: pytest.TempPathFactory, token: str) -> Iterator[str]:
    """``host:port`` of a service that is a process of its own and requires ``token``."""
    folder = tmp_path_factory.mktemp("guarded-service")
    (folder / "token").write_text(token + "\n")
    with running_service(folder / "root", token_file=folder / "token") as address:
        yield address


@pytest.fixture
def dataset(request: pytest.FixtureRequest) -> str:
    """The name of a new dataset, of the one client that the test uses."""
    name = f"d-{uuid.uuid4().hex[:8]}"
    name_of_client = next(name for name in ("shared", "local", "client") if name in request.fixturenames)
    client = request.getfixturevalue(name_of_client)
    assert client.post("/datasets", json={"name": name}).status_code == 201
    return name
