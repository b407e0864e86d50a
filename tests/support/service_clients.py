"""What tests of the service share."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import io
import json
import os
import tarfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from email.message import Message
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from torchdata_remote.service.server.app import make_app
from torchdata_remote.service.server.context import ServiceContext
from torchdata_remote.service.server.limits import ServiceLimits

LIMITS = ServiceLimits(min_free_bytes=0)


@contextmanager
def client_of(
    root: str | Path,
    *,
    token: str | None = None,
    limits: ServiceLimits = LIMITS,
    storage_options: Mapping[str, Any] | None = None,
) -> Iterator[TestClient]:
    """A client of a service that runs in this process while the block does."""
    app = make_app(str(root), token=token, limits=limits, storage_options=storage_options)
    with TestClient(app, base_url="http://localhost") as made:
        yield made


def ask(
    address: str, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
) -> tuple[int, bytes, Message]:
    """Status, body and headers of a request that goes through a socket; an iterator is sent in chunks."""
    with contextlib.closing(http.client.HTTPConnection(address, timeout=60)) as connection:
        connection.request(method, path, body, dict(headers or {}))
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.headers


def new_dataset(address: str) -> str:
    """The name of a new dataset of a service."""
    name = f"d-{uuid.uuid4().hex[:8]}"
    status, _, _ = ask(address, "POST", "/datasets", json.dumps({"name": name}), {"Content-Type": "application/json"})
    assert status == 201
    return name


def poll(address: str, is_true: Callable[[], bool]) -> None:
    """Send requests to a service, each answered at once, until something is true; the test has a time limit."""
    while not is_true():
        assert ask(address, "GET", "/healthz")[0] == 200


def poll_in_process(client: TestClient, is_true: Callable[[], bool]) -> None:
    """As ``poll``, of a service in this process."""
    while not is_true():
        assert client.get("/healthz").status_code == 200


def context_of(client: TestClient) -> ServiceContext:
    """What a client's service knows."""
    context: ServiceContext = client.app._app._app.state.context  # type: ignore[attr-defined]
    return context


def digest_field(data: bytes) -> str:
    """A Repr-Digest or Content-Digest header."""
    return f"sha-256=:{base64.b64encode(hashlib.sha256(data).digest()).decode()}:"


def tar_bytes(files: Mapping[str, bytes] | list[tuple[str, bytes]], mode: str = "w") -> bytes:
    """An archive as ``tarfile`` writes it."""
    with io.BytesIO() as buffer:
        with tarfile.open(fileobj=buffer, mode=mode) as archive:  # type: ignore[call-overload]
            for name, data in files.items() if isinstance(files, Mapping) else files:
                member = tarfile.TarInfo(name)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
        return buffer.getvalue()


def in_tar(data: bytes) -> dict[str, bytes]:
    """Files of an archive as ``tarfile`` reads them."""
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]


def all_files(client: TestClient, dataset: str, limit: int = 1000) -> list[str]:
    """Paths of a dataset's files, page by page."""
    found: list[str] = []
    after = ""
    while True:
        page = client.get(f"/datasets/{dataset}/files", params={"after": after, "limit": limit}).json()
        found += [file["path"] for file in page["files"]]
        if page["next"] is None:
            return found
        after = page["next"]


def below(root: str | Path) -> set[str]:
    """Paths of all files below a folder of this machine, but for the service's lock. Folders may go meanwhile."""
    paths = (os.path.join(folder, name) for folder, _, names in os.walk(root) for name in names)
    return {os.path.relpath(path, root) for path in paths if os.path.basename(path) != "serving.lock"}
