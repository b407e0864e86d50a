"""The servers of all stores, and a folder of each of them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest

from tests.servers.hub import hub_places
from tests.servers.recording_s3 import RecordingS3, recording_s3
from tests.servers.s3 import S3Server, temporary_folder
from tests.servers.store_server import (
    MemoryPlace,
    S3Place,
    StoreServer,
    dataset_places,
    http_places,
    local_places,
)
from tests.stores.folder import Folder, new_folder
from tests.stores.rows import Row


def _file_server(name: str, folder: Path) -> AbstractContextManager[StoreServer]:
    """The libraries of these servers are in the extra ``test-all``."""
    module = importlib.import_module("tests.servers.file_servers")
    places: AbstractContextManager[StoreServer] = getattr(module, f"{name}_places")(folder)
    return places


PLACES: dict[str, Callable[[Path], AbstractContextManager[StoreServer]]] = {
    "local_folder": local_places,
    "dataset_service": dataset_places,
    "plain_http": http_places,
    **{f"{name}_folder": partial(_file_server, name) for name in ("ftp", "sftp", "webdav")},
}


@pytest.fixture(scope="session")
def row(request: pytest.FixtureRequest) -> Row:
    chosen: Row = request.param
    return chosen


@pytest.fixture(scope="session")
def server(row: Row, request: pytest.FixtureRequest) -> StoreServer:
    running: S3Server | StoreServer = request.getfixturevalue(row.server)
    return S3Place(running) if isinstance(running, S3Server) else running


def _fixture_of(name: str) -> None:
    def start() -> Iterator[StoreServer]:
        with temporary_folder() as folder, PLACES[name](folder) as running:
            yield running

    globals()[name] = pytest.fixture(scope="session", name=name)(start)


for _name in PLACES:
    _fixture_of(_name)


@pytest.fixture(scope="session")
def hub_store() -> Iterator[StoreServer]:
    with hub_places() as running:
        yield running


@pytest.fixture(scope="session")
def memory() -> StoreServer:
    return MemoryPlace()


@pytest.fixture(scope="session")
def place_of_row(server: StoreServer) -> str:
    """A bucket in which each test has a folder of its own."""
    return server.new_place()


@pytest.fixture
def folder(row: Row, server: StoreServer, place_of_row: str) -> Folder:
    """An empty folder."""
    return new_folder(row, server, place_of_row)


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
