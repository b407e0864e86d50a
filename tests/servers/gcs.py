"""Google Cloud Storage's XML API, in a process that tests share: moto, by Google's names of headers.

It is as strict as Google's documentation says: conditions on multipart uploads are not implemented, ``x-amz-`` headers
are refused, and a missing object cannot be deleted.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote
from xml.etree import ElementTree as ET

import urllib3

from tests.servers.s3 import moto_server
from tests.servers.scripted import Request, Response, scripted

_GENERATION_MATCH = "x-goog-if-generation-match"
_NAMES = {"x-goog-meta-": "x-amz-meta-", "x-goog-copy-source": "x-amz-copy-source"}
_NOT_PASSED_ON = ("host", "authorization", "connection", "transfer-encoding", "accept-encoding", _GENERATION_MATCH)


class _Gcs:
    """Requests to Google, sent to a server of S3."""

    def __init__(self, endpoint_url: str) -> None:
        self.endpoint_url, self.lock = endpoint_url, threading.Lock()

    def send(
        self, method: str, target: str, headers: Mapping[str, str] = {}, body: bytes = b""
    ) -> urllib3.BaseHTTPResponse:
        path, _, query = target.partition("?")
        _, bucket, *key = unquote(path).split("/", 2)
        url = f"{self.endpoint_url}/{bucket}/{quote(''.join(key), safe='')}?{query}"
        headers = {**headers, "authorization": "AWS anyone:unchecked"}
        return _pool().request(method, url, headers=headers, body=body, decode_content=False, redirect=False)

    def respond(self, request: Request) -> Response:
        if any(name.startswith("x-amz-") for name in request.headers):
            return Response.of_error(400, "ExcessHeaderValues")
        path, _, query = request.target.partition("?")
        is_new = request.headers.get(_GENERATION_MATCH) == "0"
        if "upload" in query and (is_new or "if-none-match" in request.headers):
            return Response.of_error(400, "NotImplemented")
        if not is_new and (request.method != "DELETE" or "upload" in query):
            return self.pass_on(request)
        with self.lock:
            exists = self.send("HEAD", path).status == 200
            if exists == is_new:
                return Response.of_error(412, "PreconditionFailed") if exists else Response.of_error(404, "NoSuchKey")
            return self.pass_on(request)

    def pass_on(self, request: Request) -> Response:
        headers = {
            next((theirs + name[len(ours) :] for ours, theirs in _NAMES.items() if name.startswith(ours)), name): value
            for name, value in request.headers.items()
            if name not in _NOT_PASSED_ON
        }
        found = self.send(request.method, request.target, headers, request.body)
        kept = {name.title(): value for name, value in found.headers.items() if name.lower() not in _NOT_PASSED_ON}
        return Response(
            found.status,
            found.data,
            {n: v for n, v in kept.items() if not n.startswith("X-Amz-")}
            | {n.replace("X-Amz-Meta-", "x-goog-meta-"): v for n, v in kept.items() if n.startswith("X-Amz-Meta-")},
        )


@dataclasses.dataclass(frozen=True)
class GcsServer:
    """A running server. Objects are put, read and deleted by plain requests.

    Args:
        url: of it.
        requests_to: where this package sends its requests; empty for ``url``.
    """

    url: str
    requests_to: str = ""
    name: str = "gcs"
    can_write: bool = True

    @property
    def endpoint_url(self) -> str:
        return self.requests_to or self.url

    @property
    def storage_options(self) -> dict[str, Any]:
        return {"endpoint_url": self.endpoint_url, "token": "anon"}

    def through(self, endpoint_url: str) -> GcsServer:
        return dataclasses.replace(self, requests_to=endpoint_url)

    def new_place(self) -> str:
        place = f"gs://test-{uuid.uuid4().hex[:12]}"
        self.put(place, b"")
        return place

    def _ask(self, method: str, url: str, body: bytes = b"", query: str = "", **headers: str) -> bytes:
        bucket, _, key = url.partition("://")[2].partition("/")
        path = f"{self.url}/{bucket}/{quote(key, safe='')}"  # urllib3 would resolve dots between slashes
        headers = {"Accept-Encoding": "gzip", **headers}
        answer = _pool().request(method, path + query, body=body, headers=headers, decode_content=False)
        if answer.status == 404:
            raise FileNotFoundError(path)
        assert answer.status < 300, (method, path, answer.status, answer.data)
        return answer.data

    def put(self, url: str, data: bytes, **headers: str) -> None:
        self._ask("PUT", url, data, **headers)

    def get(self, url: str) -> bytes:
        return self._ask("GET", url)

    def delete(self, url: str) -> None:
        self._ask("DELETE", url)

    def paths(self, place: str) -> list[str]:
        found, after = list[str](), ""
        while True:
            page = ET.fromstring(self._ask("GET", place, query=f"?list-type=2&start-after={quote(after)}"))
            found += [one.text or "" for one in page.iterfind("{*}Contents/{*}Key")]
            if page.findtext("{*}IsTruncated") == "false":
                return found
            after = found[-1]


@functools.cache
def _pool() -> urllib3.PoolManager:
    return urllib3.PoolManager(maxsize=16)


@contextmanager
def gcs_server(folder: Path) -> Iterator[GcsServer]:
    """Run it until the block ends."""
    with moto_server(folder) as moto, scripted(_Gcs(moto.endpoint_url).respond, keeps=False) as server:
        yield GcsServer(server.url)
