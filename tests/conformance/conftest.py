"""The servers of the suite, and a folder of each of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.folder import Folder, new_folder
from tests.conformance.rows import Row
from tests.servers.file_servers import ftp_places, sftp_places, webdav_places
from tests.servers.hub import hub_places
from tests.servers.s3 import S3Server, temporary_folder
from tests.servers.store_server import (
    MemoryPlace,
    S3Place,
    StoreServer,
    dataset_places,
    http_places,
    local_places,
)


@pytest.fixture(scope="session")
def local_folder() -> Iterator[StoreServer]:
    with temporary_folder() as folder, local_places(folder) as server:
        yield server


@pytest.fixture(scope="session")
def hub() -> Iterator[StoreServer]:
    with hub_places() as server:
        yield server


@pytest.fixture(scope="session")
def memory() -> StoreServer:
    return MemoryPlace()


@pytest.fixture(scope="session")
def dataset_service() -> Iterator[StoreServer]:
    with temporary_folder() as folder, dataset_places(folder) as server:
        yield server


@pytest.fixture(scope="session")
def plain_http() -> Iterator[StoreServer]:
    with temporary_folder() as folder, http_places(folder) as server:
        yield server


@pytest.fixture(scope="session")
def ftp_folder() -> Iterator[StoreServer]:
    with temporary_folder() as folder, ftp_places(folder) as server:
        yield server


@pytest.fixture(scope="session")
def sftp_folder() -> Iterator[StoreServer]:
    with temporary_folder() as folder, sftp_places(folder) as server:
        yield server


@pytest.fixture(scope="session")
def webdav_folder() -> Iterator[StoreServer]:
    with temporary_folder() as folder, webdav_places(folder) as server:
        yield server


@pytest.fixture(scope="session")
def row(request: pytest.FixtureRequest) -> Row:
    chosen: Row = request.param
    return chosen


@pytest.fixture(scope="session")
def server(row: Row, request: pytest.FixtureRequest) -> StoreServer:
    running: S3Server | StoreServer = request.getfixturevalue(row.server)
    return S3Place(running) if isinstance(running, S3Server) else running


@pytest.fixture(scope="session")
def place(server: StoreServer) -> str:
    """A bucket in which each test has a folder of its own."""
    return server.new_place()


@pytest.fixture
def folder(row: Row, server: StoreServer, place: str) -> Folder:
    """An empty folder."""
    return new_folder(row, server, place)
