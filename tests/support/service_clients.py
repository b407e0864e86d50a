"""Clients of a dataset service, by HTTP alone."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import io
import json
import os
import socket
import tarfile
import uuid
from collections.abc import Iterable, Mapping
from email.message import Message
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

JSON = {"Content-Type": "application/json"}
Body = bytes | Iterable[bytes] | None


class Answer(NamedTuple):
    """Status, body and headers of a response."""

    status: int
    body: bytes
    headers: Message

    def json(self) -> Any:
        """The document, which ends with a line feed so that a shell's prompt is on a line of its own."""
        assert self.headers["Content-Type"] == "application/json"
        assert self.body.endswith(b"}\n")
        return json.loads(self.body)

    @property
    def error(self) -> str:
        """The message of a refusal, which is all of its JSON."""
        document = self.json()
        assert self.status >= 400
        assert list(document) == ["error"]
        return str(document["error"])


def ask(address: str, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Answer:
    """Send a request by a connection of its own; an iterator is sent in chunks."""
    with contextlib.closing(http.client.HTTPConnection(address, timeout=120)) as connection:
        connection.request(method, path, body, dict(headers or {}))
        answer = connection.getresponse()
        return Answer(answer.status, answer.read(), answer.headers)


class Dataset:
    """A dataset of a service.

    Args:
        address: ``host:port`` of the service.
        name: of the dataset, which is created unless it is there.
        root: folder of the datasets, of a service on this machine's disk.
    """

    def __init__(self, address: str, name: str | None = None, root: Path | None = None) -> None:
        self.address, self.name, self.root = address, name or f"d-{uuid.uuid4().hex[:8]}", root
        assert ask(address, "POST", "/datasets", json.dumps({"name": self.name}), JSON).status in (201, 409)

    @property
    def url(self) -> str:
        return f"datasets://{self.address}/{self.name}"

    @property
    def folder(self) -> Path:
        assert self.root is not None
        return self.root / self.name

    def ask(self, method: str, below: str = "", body: Body = None, headers: Mapping[str, str] | None = None) -> Answer:
        """Send a request about what is below ``/datasets/NAME``, percent-encoded. No error shows where the root is."""
        answer = ask(self.address, method, f"/datasets/{self.name}{below}", body, headers)
        assert answer.status < 400 or self.root is None or str(self.root).encode() not in answer.body
        return answer

    def put(self, path: str, body: Body = b"", headers: Mapping[str, str] | None = None) -> Answer:
        return self.ask("PUT", f"/files/{quote(path)}", body, headers)

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Answer:
        return self.ask("GET", f"/files/{quote(path)}", None, headers)

    def head(self, path: str, headers: Mapping[str, str] | None = None) -> Answer:
        return self.ask("HEAD", f"/files/{quote(path)}", None, headers)

    def delete(self, path: str, headers: Mapping[str, str] | None = None) -> Answer:
        return self.ask("DELETE", f"/files/{quote(path)}", None, headers)

    def fill(self, files: Mapping[str, bytes]) -> None:
        for path, data in files.items():
            assert self.put(path, data).status == 200

    def page(self, **query: object) -> Any:
        """One page."""
        return self.ask("GET", f"/files?{urlencode(query)}").json()

    def paths(self, **query: object) -> list[str]:
        """Paths of all files and folders, page by page."""
        found: list[str] = []
        after: str | None = ""
        while after is not None:
            page = self.page(**query, after=after)
            found += sorted([*(file["path"] for file in page["files"]), *page["folders"]])
            after = page["next"]
        return found

    def contents(self) -> dict[str, bytes]:
        return {path: self.get(path).body for path in self.paths()}

    def unpack(self, archive: bytes) -> Answer:
        return self.ask("PUT", "?unpack=1", archive)


def new_dataset(address: str) -> str:
    """The name of a new dataset of a service."""
    return Dataset(address).name


def connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=120)


def begin(address: str, method: str, path: str, *lines: str, sent: bytes = b"") -> socket.socket:
    """Send the head of a request, and the first bytes of its body; return the connection."""
    connection = connect(address)
    head = [f"{method} {path} HTTP/1.1", "Host: localhost", *lines, "", ""]
    connection.sendall("\r\n".join(head).encode() + sent)
    return connection


def rest(connection: socket.socket) -> bytes:
    """All bytes until the other side ends the connection."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(65536):
            received += piece
    return received


def metric(address: str, line: str) -> float:
    """The value of one of Prometheus' metrics, 0 if it is not there."""
    name = f"torchdata_remote_service_{line} "
    lines = ask(address, "GET", "/metrics").body.decode().splitlines()
    return next((float(one.removeprefix(name)) for one in lines if one.startswith(name)), 0.0)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def digest_field(data: bytes) -> str:
    """A Repr-Digest or Content-Digest header."""
    return f"sha-256=:{base64.b64encode(hashlib.sha256(data).digest()).decode()}:"


def tar_bytes(
    files: Mapping[str, bytes] | list[tuple[str, bytes]], mode: str = "w", digests: Mapping[str, str] | None = None
) -> bytes:
    """An archive as ``tarfile`` writes it; with a record of SHA-256 for files of a batch."""
    with io.BytesIO() as buffer:
        with tarfile.open(fileobj=buffer, mode=mode, format=tarfile.PAX_FORMAT) as archive:  # type: ignore[call-overload]
            for name, data in files.items() if isinstance(files, Mapping) else files:
                member = tarfile.TarInfo(name)
                member.size = len(data)
                if digests is not None:
                    member.pax_headers = {"TORCHDATA_REMOTE.sha256": digests[name]}
                archive.addfile(member, io.BytesIO(data))
        return buffer.getvalue()


def in_tar(data: bytes) -> dict[str, bytes]:
    """Files of an archive as ``tarfile`` reads them."""
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]


def below(root: str | Path) -> set[str]:
    """Paths of all files below a folder of this machine, but for the service's lock. Folders may go meanwhile."""
    paths = (os.path.join(folder, name) for folder, _, names in os.walk(root) for name in names)
    return {os.path.relpath(path, root) for path in paths if os.path.basename(path) != "serving.lock"}
