"""A folder of any store, as the tests of all stores use it."""

from __future__ import annotations

import dataclasses
import uuid
from typing import Any

import torchdata_remote as tdr
from tests.servers.azurite import AzuritePlace
from tests.servers.store_server import S3Place, StoreServer, url_at
from tests.stores.rows import Row
from tests.support import objects


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

    def put(self, name: str, data: bytes) -> None:
        self.server.put(self.url + name, data)

    def get(self, name: str) -> bytes:
        return self.server.get(self.url + name)

    def names(self) -> list[str]:
        """The names of all objects in the folder, by another client."""
        paths = self.server.paths(url_at(self.server, self.place))
        return [path.removeprefix(self.name) for path in paths if path.startswith(self.name)]

    def shards(self) -> list[str]:
        return [name for name in self.names() if name.endswith(".tar")]

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

    def listed(self, source: str = "", **more: Any) -> list[str]:
        """Names below this folder, by the package."""
        more = {"retry": objects.PATIENT, **more}
        return [url.removeprefix(self.url) for url in objects.listed(self.url + source, self.options, **more)]

    def found(self, name: str) -> tdr.RemoteUrl:
        return objects.found(self.url + name, self.options)

    def read(self, name: str, **more: Any) -> bytes:
        """By a name, or by the URL of a listing."""
        url = name if isinstance(name, tdr.RemoteUrl) else self.url + name
        return objects.read(url, self.options, **{"retry": objects.PATIENT, "backend": self.row.backend, **more})

    def writer(self, template: str = "{shard}.tar", **more: Any) -> tdr.ShardWriter:
        return tdr.ShardWriter(self.url + template, storage_options=self.options, **more)


def new_folder(row: Row, server: StoreServer, place: str) -> Folder:
    return Folder(row, server, place if row.mutable else server.new_place(), f"{uuid.uuid4().hex[:8]}/")
