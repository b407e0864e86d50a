"""A server that speaks the Hub's API, and the CDN to which it redirects, in threads of this process.

The CDN has a port of its own, so it is another host. The behaviour is that of the Hub's documentation and of
``huggingface_hub``'s requests, which ``tests/stores/test_hub_of_tests.py`` sends.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import json
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, quote, unquote, urlsplit

from tests.servers.hub_repositories import File, Repository

TOKEN = "hf_tests" + "0" * 26  # of nobody
_KINDS = ("models", "datasets", "spaces")


class Request(NamedTuple):
    """What was received: ``hub`` or ``cdn``, method, path without query, and whether a token came."""

    host: str
    method: str
    path: str
    has_token: bool
    query: str


class _Listener(ThreadingHTTPServer):
    """One of the ports."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, hub: Hub, host: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.hub, self.host = hub, host

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that close their connection."""


class Hub:
    """A running Hub, its repositories, and its behaviour, which tests may change."""

    def __init__(self) -> None:
        self.repositories: dict[tuple[str, str], Repository] = {}
        self.blobs: dict[str, File] = {}
        self.new_names: dict[str, str] = {}
        self.page_size = 1000
        self.signature_s = 3600.0  # how long a URL of the CDN is valid
        self.serves_small_files = "resolve-cache"  # or "directly"
        self.serves_lfs = "cdn"  # or "directly", as a mirror does
        self.secret = b"1"
        self.requests: list[Request] = []
        self.responses: list[tuple[int, dict[str, str]]] = []  # to the next requests to the Hub, before others
        self.cdn_responses: list[tuple[int, dict[str, str]]] = []
        self.listeners = {host: _Listener(self, host) for host in ("hub", "cdn")}

    @property
    def url(self) -> str:
        """Without a slash at its end."""
        return self.listeners["hub"].url

    @property
    def cdn_url(self) -> str:
        """Likewise."""
        return self.listeners["cdn"].url

    def expire_signatures(self) -> None:
        """Make the CDN refuse all URLs that were signed until now, whatever their time."""
        self.secret = uuid.uuid4().bytes

    def repository(self, name: str, kind: str = "datasets") -> Repository:
        """Return a repository, which is created where there is none."""
        return self.repositories.setdefault((kind, name), Repository(kind, name, self.blobs))

    def count(self, host: str, part: str = "") -> int:
        """Number of requests to a host whose path contains a part."""
        return sum(one.host == host and part in one.path for one in list(self.requests))

    def sign(self, path: str, expires: str) -> str:
        """Signature of a path of the CDN."""
        return hmac.new(self.secret, f"{path}{expires}".encode(), hashlib.sha256).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet
    disable_nagle_algorithm = True
    server: _Listener

    def do_GET(self) -> None:
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.url = urlsplit(self.path)
        self.token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        self.hub, host = self.server.hub, self.server.host
        self.hub.requests.append(Request(host, self.command, self.url.path, bool(self.token), self.url.query))
        planned = self.hub.cdn_responses if host == "cdn" else self.hub.responses
        if planned:
            status, headers = planned.pop(0)
            return self._send(status, b"planned", headers)
        return self._from_cdn() if host == "cdn" else self._from_hub()

    do_HEAD = do_POST = do_GET  # noqa: N815  # names of the base class

    # The CDN

    def _from_cdn(self) -> None:
        query = {name: values[0] for name, values in parse_qs(self.url.query).items()}
        expires = query.get("Expires", "0")
        if self.token:
            return self._send(400, b"Only one auth mechanism allowed")
        if query.get("Signature") != self.hub.sign(self.url.path, expires) or float(expires) < time.time():
            return self._send(403, b"<Error><Code>AccessDenied</Code></Error>")
        file = self.hub.blobs.get(self.url.path.rpartition("/")[2])
        if file is not None:
            return self._send_file(file, {"ETag": f'"{hashlib.sha256(file.etag.encode()).hexdigest()}"'})
        return self._send(404, b"no such blob")

    # The Hub

    def _from_hub(self) -> None:
        if self.token and self.token != TOKEN:
            return self._fail(401, "", "Invalid credentials in Authorization header")
        parts = [unquote(part) for part in self.url.path.strip("/").split("/")]
        if parts[:2] == ["api", "resolve-cache"]:
            return self._resolve_cache(parts[2:])
        if parts[0] == "api":
            return self._api(parts[1:])
        kind = parts.pop(0) if parts[0] in _KINDS else "models"
        if "resolve" not in parts:
            return self._fail(404, "", "Not Found")
        at = parts.index("resolve")
        repository = self._repository(kind, "/".join(parts[:at]))
        return None if repository is None else self._resolve(repository, parts[at + 1], "/".join(parts[at + 2 :]))

    def _repository(self, kind: str, name: str) -> Repository | None:
        if name in self.hub.new_names:
            new = self.hub.new_names[name]
            location = self.path.replace(f"/{kind}/{name}/", f"/{kind}/{new}/", 1)
            self._send(307, b"", {"Location": location})
            return None
        repository = self.hub.repositories.get((kind, name))
        if repository is None or (repository.is_private and not self.token):
            # Who has no token is not told what exists
            self._fail(404 if self.token else 401, "RepoNotFound", "Repository not found")
            return None
        return repository

    def _commit(self, repository: Repository, revision: str) -> str | None:
        commit = repository.find_commit(revision)
        if commit is None:
            self._fail(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return commit

    def _api(self, parts: list[str]) -> None:
        kind, after = parts[0], next((n for n, part in enumerate(parts) if part in _ROUTES), len(parts))
        if kind not in _KINDS:
            return self._fail(404, "", "Not Found")
        repository = self._repository(kind, "/".join(parts[1:after]))
        if repository is None:
            return None
        route, revision, *path = [*parts[after:], "revision", "main"][: max(2, len(parts) - after)]
        commit = self._commit(repository, revision)
        if commit is None:
            return None
        query = parse_qs(self.url.query)
        if route == "tree":
            return self._tree(repository, commit, "/".join(path), query)
        if route == "paths-info":
            wanted, files = parse_qs(self.body.decode()).get("paths", []), repository.files(commit)
            return self._send_json([files[path].info() for path in wanted if path in files])
        about: dict[str, Any] = {"_id": "0" * 24, "id": repository.name, "sha": commit}
        if "expand" not in query:
            about["siblings"] = [{"rfilename": path} for path in repository.files(commit)]
        return self._send_json(about, {"X-Repo-Commit": commit})

    def _tree(self, repository: Repository, commit: str, folder: str, query: dict[str, list[str]]) -> None:
        is_recursive = query.get("recursive", ["false"])[0].lower() in ("true", "1")
        found = repository.tree(commit, folder, recursive=is_recursive)
        if found is None:
            return self._fail(404, "EntryNotFound", f"{folder} does not exist on the revision")
        limit = min(self.hub.page_size, int(query.get("limit", ["1000"])[0]))
        start = int(bytes.fromhex(query.get("cursor", [b"0".hex()])[0]))
        headers = {"X-Repo-Commit": commit}
        if start + limit < len(found):
            cursor = str(start + limit).encode().hex()
            page = (
                f"http://{self.headers['Host']}{self.url.path}?recursive={is_recursive}&limit={limit}&cursor={cursor}"
            )
            headers["Link"] = f'<{page}>; rel="next"'
        return self._send_json(found[start : start + limit], headers)

    def _resolve(self, repository: Repository, revision: str, path: str) -> None:
        if repository.is_gated and self.token not in repository.accepted:
            message = f"Access to {repository.name} is restricted. You must have access to it and be authenticated."
            return self._fail(403 if self.token else 401, "GatedRepo", message)
        commit = self._commit(repository, revision)
        if commit is None:
            return None
        file = repository.files(commit).get(path)
        if file is None:
            return self._fail(404, "EntryNotFound", "Entry not found")
        headers = {"X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        linked = {"X-Linked-ETag": file.etag, "X-Linked-Size": str(len(file.data))}
        if file.is_lfs and self.hub.serves_lfs == "cdn":
            where = f"/xet-bridge-us/{uuid.uuid4().hex[:8]}/{file.sha256}"
            expires = str(int(time.time() + self.hub.signature_s))
            name = quote(f'inline; filename="{path.rpartition("/")[2]}"', safe="")
            signed = f"response-content-disposition={name}&Expires={expires}&Signature={self.hub.sign(where, expires)}"
            location = f"{self.hub.cdn_url}{where}?{signed}&Key-Pair-Id=K1"
            return self._send(302, location.encode(), {**headers, **linked, "Location": location})
        if not file.is_lfs and self.hub.serves_small_files == "resolve-cache":
            location = f"/api/resolve-cache/{repository.kind}/{repository.name}/{commit}/{quote(path)}"
            query = f"{quote(self.url.path, safe='')}=&etag={quote(file.etag)}"
            return self._send(307, b"", {**headers, **linked, "Location": f"{location}?{query}"})
        return self._send_file(file, {**headers, "ETag": file.etag})

    def _resolve_cache(self, parts: list[str]) -> None:
        kind, owner, name, commit, *path = parts
        repository = self._repository(kind, f"{owner}/{name}")
        if repository is None:
            return None
        file = repository.files(commit)["/".join(path)]
        return self._send_file(file, {"X-Repo-Commit": commit, "ETag": file.etag})

    # Responses

    def _send_file(self, file: File, headers: dict[str, str]) -> None:
        data, span = file.data, self.headers.get("Range", "")
        headers = {"Accept-Ranges": "bytes", **headers}
        if not span.startswith("bytes="):
            return self._send(200, data, headers)
        first, _, last = span.removeprefix("bytes=").partition("-")
        start, end = int(first), min(int(last) + 1 if last else len(data), len(data))
        if start >= len(data):
            return self._send(416, b"", {"Content-Range": f"bytes */{len(data)}"})
        return self._send(206, data[start:end], {**headers, "Content-Range": f"bytes {start}-{end - 1}/{len(data)}"})

    def _send_json(self, document: Any, headers: dict[str, str] | None = None) -> None:
        self._send(200, json.dumps(document).encode(), {"Content-Type": "application/json", **(headers or {})})

    def _fail(self, status: int, code: str, message: str) -> None:
        body = json.dumps({"error": message}).encode()
        self._send(status, body, {**({"X-Error-Code": code} if code else {}), "X-Error-Message": message})

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response_only(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Write no log."""


_ROUTES = ("tree", "revision", "paths-info")


@contextmanager
def running_hub() -> Iterator[Hub]:
    """Run a Hub until the block ends."""
    hub = Hub()
    threads = [
        threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        for listener in hub.listeners.values()
    ]
    for thread in threads:
        thread.start()
    try:
        yield hub
    finally:
        for listener in hub.listeners.values():
            listener.shutdown()
            listener.server_close()
        for thread in threads:
            thread.join(10)


@dataclasses.dataclass(frozen=True)
class HubPlace:
    """A Hub behind the interface of all stores; a place is a dataset. Objects are changed in the server itself."""

    hub: Hub
    requests_to: str = ""
    name: str = "hub"
    can_write: bool = False

    @property
    def endpoint_url(self) -> str:
        return self.requests_to or self.hub.url

    @property
    def storage_options(self) -> dict[str, Any]:
        return {"endpoint": self.endpoint_url, "token": TOKEN}

    def through(self, endpoint_url: str) -> HubPlace:
        return dataclasses.replace(self, requests_to=endpoint_url)

    def new_place(self) -> str:
        name = f"tests/{uuid.uuid4().hex[:12]}"
        self.hub.repository(name)
        return f"hf://datasets/{name}"

    def _find(self, url: str) -> tuple[Repository, str]:
        owner, name, *path = url.removeprefix("hf://datasets/").split("/", 2)
        return self.hub.repository(f"{owner}/{name}"), "".join(path)

    def put(self, url: str, data: bytes) -> None:
        repository, path = self._find(url)
        repository.commit({path: data})

    def get(self, url: str) -> bytes:
        repository, path = self._find(url)
        return repository.files()[path].data

    def delete(self, url: str) -> None:
        repository, path = self._find(url)
        repository.commit({}, deleted=[path])

    def paths(self, place: str) -> list[str]:
        return sorted(self._find(place)[0].files())


@contextmanager
def hub_places() -> Iterator[HubPlace]:
    """Datasets of a Hub of this process."""
    with running_hub() as hub:
        yield HubPlace(hub)
