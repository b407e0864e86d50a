"""A server that speaks the Hub's API, and the CDN to which it redirects, in threads of this process.

The CDN has a port of its own, so it is another host. The behaviour is that of the Hub's documentation and of
``huggingface_hub``'s requests, which ``tests/stores/test_hub.py`` sends.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import json
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import parse_qs, quote, unquote, urlsplit

from tests.servers.hub_repositories import File, Repository
from tests.servers.scripted import Request as Asked
from tests.servers.scripted import Response, scripted

TOKEN = "hf_tests" + "0" * 26  # of nobody
_KINDS = ("models", "datasets", "spaces")


class Request(NamedTuple):
    """What was received: ``hub`` or ``cdn``, method, path without query, and whether a token came."""

    host: str
    method: str
    path: str
    has_token: bool
    query: str


class _Refused(Exception):  # noqa: N818  # an answer
    """A request is answered by this."""

    def __init__(self, answer: Response) -> None:
        super().__init__(answer)
        self.answer = answer


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
        self.url = self.cdn_url = ""  # without a slash at the end

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


class _Exchange:
    """A request to one of the hosts, and its answer."""

    def __init__(self, hub: Hub, host: str, request: Asked) -> None:
        self.hub, self.host, self.asked = hub, host, request
        self.url = urlsplit(request.target)
        self.query = {name: values[0] for name, values in parse_qs(self.url.query).items()}
        self.token = request.headers.get("authorization", "").removeprefix("Bearer ")

    def answer(self) -> Response:
        path = self.url.path
        self.hub.requests.append(Request(self.host, self.asked.method, path, bool(self.token), self.url.query))
        planned = self.hub.cdn_responses if self.host == "cdn" else self.hub.responses
        if planned:
            status, headers = planned.pop(0)
            return Response(status, b"planned", headers)
        try:
            return self._from_cdn() if self.host == "cdn" else self._from_hub()
        except _Refused as refused:
            return refused.answer

    # The CDN

    def _from_cdn(self) -> Response:
        expires = self.query.get("Expires", "0")
        if self.token:
            return Response(400, b"Only one auth mechanism allowed")
        if self.query.get("Signature") != self.hub.sign(self.url.path, expires) or float(expires) < time.time():
            return Response(403, b"<Error><Code>AccessDenied</Code></Error>")
        file = self.hub.blobs[self.url.path.rpartition("/")[2]]
        return self._file(file, {"ETag": f'"{hashlib.sha256(file.etag.encode()).hexdigest()}"'})

    # The Hub

    def _from_hub(self) -> Response:
        if self.token and self.token != TOKEN:
            raise _fail(401, "", "Invalid credentials in Authorization header")
        parts = [unquote(part) for part in self.url.path.strip("/").split("/")]
        if parts[:2] == ["api", "resolve-cache"]:
            kind, owner, name, commit, *path = parts[2:]
            file = self._repository(kind, f"{owner}/{name}").files(commit)["/".join(path)]
            return self._file(file, {"X-Repo-Commit": commit, "ETag": file.etag})
        if parts[0] == "api":
            return self._api(parts[1:])
        kind = parts.pop(0) if parts[0] in _KINDS else "models"
        if "resolve" not in parts:
            raise _fail(404, "", "Not Found")
        at = parts.index("resolve")
        return self._resolve(self._repository(kind, "/".join(parts[:at])), parts[at + 1], "/".join(parts[at + 2 :]))

    def _repository(self, kind: str, name: str) -> Repository:
        if name in self.hub.new_names:
            location = self.asked.target.replace(f"/{kind}/{name}/", f"/{kind}/{self.hub.new_names[name]}/", 1)
            raise _Refused(Response(307, b"", {"Location": location}))
        repository = self.hub.repositories.get((kind, name))
        if repository is None or (repository.is_private and not self.token):
            # Who has no token is not told what exists
            raise _fail(404 if self.token else 401, "RepoNotFound", "Repository not found")
        return repository

    def _commit(self, repository: Repository, revision: str) -> str:
        commit = repository.find_commit(revision)
        if commit is None:
            raise _fail(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return commit

    def _api(self, parts: list[str]) -> Response:
        kind, after = parts[0], next((n for n, part in enumerate(parts) if part in _ROUTES), len(parts))
        if kind not in _KINDS:
            raise _fail(404, "", "Not Found")
        repository = self._repository(kind, "/".join(parts[1:after]))
        route, revision, *path = [*parts[after:], "revision", "main"][: max(2, len(parts) - after)]
        commit = self._commit(repository, revision)
        files = repository.files(commit)
        if route == "tree":
            return self._tree(repository, commit, "/".join(path))
        if route == "paths-info":
            wanted = parse_qs(self.asked.body.decode()).get("paths", [])
            return _json([files[path].info() for path in wanted if path in files])
        return _json({"_id": "0" * 24, "id": repository.name, "sha": commit}, {"X-Repo-Commit": commit})

    def _tree(self, repository: Repository, commit: str, folder: str) -> Response:
        is_recursive = self.query.get("recursive", "").lower() in ("true", "1")
        found = repository.tree(commit, folder, recursive=is_recursive)
        if found is None:
            raise _fail(404, "EntryNotFound", f"{folder} does not exist on the revision")
        limit = min(self.hub.page_size, int(self.query.get("limit", "1000")))
        start = int(self.query.get("cursor", "0"))
        headers = {"X-Repo-Commit": commit}
        if start + limit < len(found):
            page = f"{self.hub.url}{self.url.path}?recursive={is_recursive}&limit={limit}&cursor={start + limit}"
            headers["Link"] = f'<{page}>; rel="next"'
        return _json(found[start : start + limit], headers)

    def _resolve(self, repository: Repository, revision: str, path: str) -> Response:
        if repository.is_gated and self.token not in repository.accepted:
            message = f"Access to {repository.name} is restricted. You must have access to it and be authenticated."
            raise _fail(403 if self.token else 401, "GatedRepo", message)
        commit = self._commit(repository, revision)
        file = repository.files(commit).get(path)
        if file is None:
            raise _fail(404, "EntryNotFound", "Entry not found")
        headers = {"X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        linked = {"X-Linked-ETag": file.etag, "X-Linked-Size": str(len(file.data))}
        if file.is_lfs and self.hub.serves_lfs == "cdn":
            where = f"/xet-bridge-us/{uuid.uuid4().hex[:8]}/{file.sha256}"
            expires = str(int(time.time() + self.hub.signature_s))
            name = quote(f'inline; filename="{path.rpartition("/")[2]}"', safe="")
            signed = f"response-content-disposition={name}&Expires={expires}&Signature={self.hub.sign(where, expires)}"
            location = f"{self.hub.cdn_url}{where}?{signed}&Key-Pair-Id=K1"
            return Response(302, location.encode(), {**headers, **linked, "Location": location})
        if not file.is_lfs and self.hub.serves_small_files == "resolve-cache":
            location = f"/api/resolve-cache/{repository.kind}/{repository.name}/{commit}/{quote(path)}"
            query = f"{quote(self.url.path, safe='')}=&etag={quote(file.etag)}"
            return Response(307, b"", {**headers, **linked, "Location": f"{location}?{query}"})
        return self._file(file, {**headers, "ETag": file.etag})

    def _file(self, file: File, headers: dict[str, str]) -> Response:
        span = self.asked.headers.get("range", "bytes=0-")[6:]
        if span != "0-" and int(span.partition("-")[0]) >= len(file.data):
            return Response(416, b"", {"Content-Range": f"bytes */{len(file.data)}"})
        found = Response.of_object(self.asked, file.data)
        return Response(found.status, found.body, {**found.headers, "Accept-Ranges": "bytes", **headers})


def _json(document: Any, headers: dict[str, str] | None = None) -> Response:
    return Response(200, json.dumps(document).encode(), {"Content-Type": "application/json", **(headers or {})})


def _fail(status: int, code: str, message: str) -> _Refused:
    headers = {**({"X-Error-Code": code} if code else {}), "X-Error-Message": message}
    return _Refused(Response(status, json.dumps({"error": message}).encode(), headers))


_ROUTES = ("tree", "revision", "paths-info")


@contextmanager
def running_hub() -> Iterator[Hub]:
    """Run a Hub until the block ends."""
    hub = Hub()
    with (
        scripted(lambda request: _Exchange(hub, "hub", request).answer()) as api,
        scripted(lambda request: _Exchange(hub, "cdn", request).answer()) as cdn,
    ):
        hub.url, hub.cdn_url = api.url, cdn.url
        yield hub


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
