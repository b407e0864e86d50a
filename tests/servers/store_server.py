"""Each kind of store behind one interface, for tests that hold for all of them."""

from __future__ import annotations

import dataclasses
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

import fsspec

from tests.servers.files_over_http import files_over_http
from tests.servers.s3 import S3Server
from tests.servers.service import running_service

PARTIAL_SUFFIX = ".torchdata_remote-partial"  # of files that listings leave out
Self = TypeVar("Self", bound="StoreServer")


class StoreServer(Protocol):
    """A running store. Objects are put, read and deleted by another client than this package's.

    A ``place`` is the URL of a bucket, container or folder, without a slash at its end.
    """

    @property
    def name(self) -> str:
        """Such as ``moto``."""

    @property
    def endpoint_url(self) -> str:
        """``http://127.0.0.1:port``, where a proxy forwards to; empty if there is none."""

    @property
    def storage_options(self) -> dict[str, Any]:
        """For this package."""

    @property
    def can_write(self) -> bool:
        """Whether this package can write there."""

    def through(self: Self, endpoint_url: str) -> Self:
        """Return the same server by another address, such as that of a ``FaultyStore``."""

    def new_place(self) -> str:
        """Create an empty bucket or container."""

    def put(self, url: str, data: bytes) -> None:
        """Store an object."""

    def get(self, url: str) -> bytes:
        """Read an object."""

    def delete(self, url: str) -> None:
        """Delete an object."""

    def paths(self, place: str) -> list[str]:
        """Return the paths of all objects below a place, sorted."""


def url_at(server: StoreServer, url: str) -> str:
    """Return the URL by which a server is asked at its own address, for a URL that names an address of it."""
    scheme, _, rest = url.partition("://")
    if scheme not in ("http", "https", "datasets"):
        return url
    return f"{scheme}://{urlsplit(server.endpoint_url).netloc}/{rest.partition('/')[2]}"


def _new_name() -> str:
    return f"test-{uuid.uuid4().hex[:12]}"


@dataclasses.dataclass(frozen=True)
class S3Place:
    """An S3 server, by botocore; ``requests_to`` is where this package sends its requests."""

    server: S3Server
    requests_to: str = ""
    can_write: bool = True

    @property
    def name(self) -> str:
        return self.server.name

    @property
    def endpoint_url(self) -> str:
        return self.requests_to or self.server.endpoint_url

    @property
    def storage_options(self) -> dict[str, Any]:
        return {**self.server.storage_options, "endpoint_url": self.endpoint_url}

    def through(self, endpoint_url: str) -> S3Place:
        return dataclasses.replace(self, requests_to=endpoint_url)

    def new_place(self) -> str:
        return f"s3://{self.server.new_bucket()}"

    def put(self, url: str, data: bytes) -> None:
        self.server.client().put_object(**_bucket_and_key(url), Body=data)

    def get(self, url: str) -> bytes:
        body: bytes = self.server.client().get_object(**_bucket_and_key(url))["Body"].read()
        return body

    def delete(self, url: str) -> None:
        self.server.client().delete_object(**_bucket_and_key(url))

    def paths(self, place: str) -> list[str]:
        pages = self.server.client().get_paginator("list_objects_v2").paginate(Bucket=place.removeprefix("s3://"))
        return sorted(found["Key"] for page in pages for found in page.get("Contents", ()))


def _bucket_and_key(url: str) -> dict[str, str]:
    bucket, _, key = url.removeprefix("s3://").partition("/")
    return {"Bucket": bucket, "Key": key}


@dataclasses.dataclass(frozen=True)
class FolderPlace:
    """A folder of the local disk: as it is, or served by http or by the dataset service.

    Args:
        name: of the server.
        folder: that has the places.
        start: of the URLs of places, with a slash at its end.
        endpoint_url: of the server; empty for the local disk.
        can_write: whether this package can write there.
    """

    name: str
    folder: Path
    start: str
    endpoint_url: str = ""
    can_write: bool = True
    storage_options: dict[str, Any] = dataclasses.field(default_factory=dict)

    def through(self, endpoint_url: str) -> FolderPlace:
        options = {name: endpoint_url if name == "base_url" else value for name, value in self.storage_options.items()}
        moved = dataclasses.replace(self, endpoint_url=endpoint_url, storage_options=options)
        return dataclasses.replace(moved, start=url_at(moved, self.start))

    def new_place(self) -> str:
        name = _new_name()
        (self.folder / name).mkdir()
        return self.start + name

    def _path(self, url: str) -> Path:
        return self.folder / url_at(self, url).removeprefix(self.start)

    def put(self, url: str, data: bytes) -> None:
        path = self._path(url)
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = path.with_name(f".{uuid.uuid4().hex}{PARTIAL_SUFFIX}")  # a reader may be under way
        whole.write_bytes(data)
        whole.replace(path)

    def get(self, url: str) -> bytes:
        return self._path(url).read_bytes()

    def delete(self, url: str) -> None:
        self._path(url).unlink()

    def paths(self, place: str) -> list[str]:
        folder = self._path(place)
        return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@dataclasses.dataclass(frozen=True)
class MemoryPlace:
    """``memory://`` of this process."""

    name: str = "memory"
    endpoint_url: str = ""
    can_write: bool = True

    @property
    def storage_options(self) -> dict[str, Any]:
        return {}

    def through(self, endpoint_url: str) -> MemoryPlace:
        raise AssertionError(f"memory has no address: {endpoint_url}")

    def new_place(self) -> str:
        return f"memory://{_new_name()}"

    def put(self, url: str, data: bytes) -> None:
        fsspec.filesystem("memory").pipe_file(_in_memory(url), data)

    def get(self, url: str) -> bytes:
        data: bytes = fsspec.filesystem("memory").cat_file(_in_memory(url))
        return data

    def delete(self, url: str) -> None:
        fsspec.filesystem("memory").rm_file(_in_memory(url))

    def paths(self, place: str) -> list[str]:
        memory, root = fsspec.filesystem("memory"), place.removeprefix("memory:/") + "/"
        return sorted(name.removeprefix(root) for name in memory.find(root)) if memory.exists(root) else []


def _in_memory(url: str) -> str:
    """A path, because fsspec does not read a URL whose path has two colons."""
    return url.removeprefix("memory:/")


@contextmanager
def local_places(folder: Path) -> Iterator[FolderPlace]:
    """Places in a folder of the local disk."""
    yield FolderPlace("local", folder, f"file://{folder}/")


@contextmanager
def dataset_places(folder: Path) -> Iterator[FolderPlace]:
    """Datasets of a service, whose root is a new folder."""
    root = folder / "datasets"
    root.mkdir()
    try:
        with running_service(root) as address:
            yield FolderPlace("datasets", root, f"datasets://{address}/", f"http://{address}")
    finally:
        shutil.rmtree(root, ignore_errors=True)


@contextmanager
def http_places(folder: Path) -> Iterator[FolderPlace]:
    """Folders behind a plain http server, with ranges and etags."""
    with files_over_http(folder) as url:
        yield FolderPlace("http", folder, f"{url}/", url, can_write=False)
