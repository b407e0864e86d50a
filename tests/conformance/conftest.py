"""The servers of the suite, and a folder of each of them."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conformance.rows import Row
from tests.servers.azurite import AzuritePlace
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
    url_at,
)
from torchdata_remote.core.options import StorageOptions
from torchdata_remote.storage import Connection, Store, open_store


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


@dataclasses.dataclass(frozen=True)
class Folder:
    """A folder in a place that tests share; ``name`` ends with a slash."""

    row: Row
    server: StoreServer
    place: str
    name: str

    @property
    def url(self) -> str:
        return f"{url_at(self.server, self.place)}/{self.name}"

    @property
    def options(self) -> dict[str, Any]:
        return {**self.server.storage_options, **dict(self.row.options)}

    @property
    def store(self) -> Store:
        return self._open()[0]

    @property
    def prefix(self) -> str:
        """Path of the folder in the store."""
        return self._open()[1]

    def _open(self) -> tuple[Store, str]:
        return open_store(self.url, StorageOptions(self.options), Connection(self.row.backend))

    def put(self, name: str, data: bytes) -> None:
        self.server.put(self.url + name, data)

    def get(self, name: str) -> bytes:
        return self.server.get(self.url + name)

    def names(self) -> list[str]:
        """The names of all objects in the folder, by another client."""
        paths = self.server.paths(url_at(self.server, self.place))
        return [path.removeprefix(self.name) for path in paths if path.startswith(self.name)]

    def unfinished(self) -> list[str]:
        """The names of objects that have parts, and are not complete, as far as another client sees them."""
        if isinstance(self.server, S3Place) and self.row.lists_uploads:
            prefix, bucket = self.name, self.place.removeprefix("s3://")
            found = self.server.server.client().list_multipart_uploads(Bucket=bucket, Prefix=prefix)
            return [upload["Key"] for upload in found.get("Uploads", ())]
        if isinstance(self.server, AzuritePlace):
            return [name for name in self.server.unfinished(self.place) if name.startswith(self.name)]
        return []

    def through(self, endpoint_url: str) -> Folder:
        """The same folder by another address."""
        return dataclasses.replace(self, server=self.server.through(endpoint_url))


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


def new_folder(row: Row, server: StoreServer, place: str) -> Folder:
    return Folder(row, server, place if row.mutable else server.new_place(), f"{uuid.uuid4().hex[:8]}/")


@pytest.fixture
def folder(row: Row, server: StoreServer, place: str) -> Folder:
    """An empty folder."""
    return new_folder(row, server, place)
