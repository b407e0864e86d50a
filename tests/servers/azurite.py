"""Azurite, Microsoft's emulator of Azure Blob Storage, with its well-known account."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.servers.programs import npm_program
from tests.servers.s3 import process, wait_until

if TYPE_CHECKING:  # it takes 0.4 s to import, also for tests without it
    from azure.storage.blob import BlobServiceClient, ContainerClient

VERSION = "3.37.0"
ACCOUNT = "devstoreaccount1"
# Public: Microsoft documents it, and each emulator has it
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_LISTENS = re.compile(r"successfully listens on (https?://[\w.]+:\d+)")


@dataclasses.dataclass(frozen=True)
class AzuritePlace:
    """A running Azurite, by Microsoft's client; ``requests_to`` is where this package sends its requests."""

    own_url: str
    requests_to: str = ""
    name: str = "azurite"
    can_write: bool = True

    @property
    def endpoint_url(self) -> str:
        return self.requests_to or self.own_url

    @property
    def connection_string(self) -> str:
        """With the account key."""
        return _connection_string(self.endpoint_url)

    @property
    def storage_options(self) -> dict[str, Any]:
        return {"connection_string": self.connection_string}

    def through(self, endpoint_url: str) -> AzuritePlace:
        return dataclasses.replace(self, requests_to=endpoint_url)

    def new_place(self, *, public_access: str | None = None) -> str:
        name = f"test-{uuid.uuid4().hex[:12]}"
        _service_of(self.own_url).create_container(name, public_access=public_access)
        return f"az://{name}"

    def container(self, place: str) -> ContainerClient:
        """Microsoft's client of a container."""
        return _service_of(self.own_url).get_container_client(place.removeprefix("az://").partition("/")[0])

    def put(self, url: str, data: bytes) -> None:
        self.container(url).upload_blob(_path(url), data, overwrite=True)

    def get(self, url: str) -> bytes:
        data: bytes = self.container(url).download_blob(_path(url)).readall()
        return data

    def delete(self, url: str) -> None:
        self.container(url).delete_blob(_path(url))

    def paths(self, place: str) -> list[str]:
        return sorted(self.container(place).list_blob_names())

    def unfinished(self, place: str) -> list[str]:
        """Names of objects that have blocks which were not committed, and no committed one."""
        container = self.container(place)
        every = [blob.name for blob in container.list_blobs(include=["uncommittedblobs"])]
        return sorted(set(every) - set(container.list_blob_names()))


def _path(url: str) -> str:
    return url.removeprefix("az://").partition("/")[2]


def _connection_string(endpoint_url: str) -> str:
    scheme = endpoint_url.partition(":")[0]
    return (
        f"DefaultEndpointsProtocol={scheme};AccountName={ACCOUNT};AccountKey={KEY};"
        f"BlobEndpoint={endpoint_url}/{ACCOUNT};"
    )


@functools.lru_cache(maxsize=8)  # servers of one test come and go
def _service_of(url: str) -> BlobServiceClient:
    from azure.storage.blob import BlobServiceClient

    return BlobServiceClient.from_connection_string(_connection_string(url), retry_total=0)


@contextmanager
def azurite_server(folder: Path, *more: str) -> Iterator[AzuritePlace]:
    """Run Azurite, which keeps its data in memory; ready after about a second.

    Args:
        folder: for its log.
        more: options of the command line.
    """
    program = npm_program("azurite", VERSION) / "dist" / "src" / "blob" / "main.js"
    log = folder / "azurite.log"
    options = (
        *("--inMemoryPersistence", "--disableProductStyleUrl", "--disableTelemetry", "--silent", "--blobPort", "0"),
        "--skipApiVersionCheck",  # clients of Microsoft and adlfs ask for versions that are newer than this Azurite
    )
    with process("node", os.fspath(program), *options, *more, log=log) as running:

        def listens() -> re.Match[str] | None:
            return _LISTENS.search(log.read_text())

        wait_until(lambda: running.poll() is not None or listens() is not None, "Azurite")
        found = listens()
        assert found is not None, log.read_text()
        yield AzuritePlace(found[1])
