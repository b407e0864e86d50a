"""A server that speaks enough of S3 to record what is sent to it; as an https proxy, it is every host of AWS."""

from __future__ import annotations

import functools
import hashlib
import re
import ssl
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import trustme

from tests.servers.threaded import in_thread

DATE = "Tue, 24 Nov 2020 04:49:20 GMT"
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")
_PATH_STYLE = re.compile(r"s3[.-]|127\.0\.0\.1")  # the host of the service rather than of a bucket


class Recorded(NamedTuple):
    """A request."""

    method: str
    host: str
    path: str  # with the query
    headers: dict[str, str]  # names in lower case
    body: bytes = b""

    @property
    def query(self) -> dict[str, str]:
        """Of the URL."""
        return {name: values[0] for name, values in parse_qs(urlsplit(self.path).query, keep_blank_values=True).items()}

    @property
    def operation(self) -> str:
        """S3's name of it."""
        query = self.query
        if "session" in query:
            return "CreateSession"
        if "uploads" in query:
            return "CreateMultipartUpload" if self.method == "POST" else "ListMultipartUploads"
        if "uploadId" in query:
            of_upload = {"PUT": "UploadPart", "POST": "CompleteMultipartUpload", "DELETE": "AbortMultipartUpload"}
            return of_upload[self.method]
        if "list-type" in query:
            return "ListObjectsV2"
        if not self.key:
            return "HeadBucket"
        return {"GET": "GetObject", "HEAD": "HeadObject", "PUT": "PutObject", "DELETE": "DeleteObject"}[self.method]

    @property
    def key(self) -> str:
        """Of the object."""
        path = unquote(urlsplit(self.path).path).lstrip("/")
        return path.partition("/")[2] if _PATH_STYLE.match(self.host) else path

    @property
    def is_by_obstore(self) -> bool:
        """Whether obstore sent it, and not botocore."""
        return self.headers.get("user-agent", "").startswith("object_store")

    @property
    def access_key(self) -> str:
        """That signed it; empty if there is no signature."""
        found = re.search(r"Credential=([^/]+)/", self.headers.get("authorization", ""))
        return found[1] if found else ""

    @property
    def form(self) -> dict[str, str]:
        """Of the body."""
        return {name: values[0] for name, values in parse_qs(self.body.decode()).items()}

    @property
    def signed(self) -> tuple[str, str, set[str]]:
        """Region and service of the signature, and the headers that it covers; empty if there is none."""
        header = self.headers.get("authorization", "")
        scope = re.search(r"Credential=[^/]+/\d+/([^/]+)/([^/]+)/", header)
        names = re.search(r"SignedHeaders=([^,]+)", header)
        return (scope[1], scope[2], set(names[1].split(";"))) if scope and names else ("", "", set())


Response = tuple[int, dict[str, str], bytes]


@dataclass
class RecordingS3:
    """A running server; all its buckets have the same objects."""

    url: str
    ca_file: str
    objects: dict[str, bytes] = field(default_factory=dict)
    requests: list[Recorded] = field(default_factory=list)
    answer: Callable[[Recorded], Response | None] = lambda _: None  # instead of what follows
    metadata: dict[str, dict[str, str]] = field(default_factory=dict)  # headers, by key
    is_md5: bool = True  # whether etags are MD5
    _parts: dict[str, bytes] = field(default_factory=dict)
    _etags: dict[str, str] = field(default_factory=dict)

    @property
    def storage_options(self) -> dict[str, Any]:
        """To use it as a server of its own."""
        return {"endpoint_url": self.url, "key": "k", "secret": "s", "region": "us-west-2"}

    @property
    def environment(self) -> dict[str, str]:
        """To reach it in place of AWS."""
        return {"HTTPS_PROXY": self.url, "NO_PROXY": "", "AWS_CA_BUNDLE": self.ca_file, "SSL_CERT_FILE": self.ca_file}

    def taken(self) -> list[Recorded]:
        """Return the requests so far, and forget them."""
        found, self.requests = self.requests, []
        return found

    def respond(self, request: Recorded, body: bytes) -> Response:
        """Record a request and answer it."""
        self.requests.append(request)
        return self.answer(request) or getattr(self, f"_{request.operation}")(request, body)

    def _etag(self, key: str, data: bytes) -> str:
        made = hashlib.md5(data).hexdigest() if self.is_md5 else uuid.uuid4().hex
        return self._etags.setdefault(f"{key}\0{data!r}", f'"{made}"')

    def _ListObjectsV2(self, request: Recorded, _: bytes) -> Response:  # noqa: N802  # S3's names
        prefix, after = request.query.get("prefix", ""), request.query.get("start-after", "")
        found = sorted(key for key in self.objects if key.startswith(prefix) and key > after)
        contents = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>2020-11-24T04:49:20.000Z</LastModified><ETag>"
            f"{escape(self._etag(key, self.objects[key]))}</ETag><Size>{len(self.objects[key])}</Size></Contents>"
            for key in found
        )
        return 200, {}, f"<ListBucketResult><IsTruncated>false</IsTruncated>{contents}</ListBucketResult>".encode()

    def _GetObject(self, request: Recorded, _: bytes) -> Response:  # noqa: N802
        if request.key not in self.objects:
            return 404, {}, b"<Error><Code>NoSuchKey</Code></Error>"
        data = self.objects[request.key]
        headers = {"ETag": self._etag(request.key, data), "Last-Modified": DATE, **self.metadata.get(request.key, {})}
        wanted = _RANGE.fullmatch(request.headers.get("range", ""))
        if wanted is None:
            return 200, headers, data
        start, end = int(wanted[1]), int(wanted[2] or len(data)) + 1
        headers["Content-Range"] = f"bytes {start}-{min(end, len(data)) - 1}/{len(data)}"
        return 206, headers, data[start:end]

    _HeadObject = _GetObject

    def _HeadBucket(self, request: Recorded, _: bytes) -> Response:  # noqa: N802
        found = re.search(r"s3[.-]([a-z0-9-]+)\.amazonaws", request.host)
        return 200, {"x-amz-bucket-region": found[1]} if found else {}, b""

    def _PutObject(self, request: Recorded, body: bytes) -> Response:  # noqa: N802
        self.objects[request.key], self.metadata[request.key] = body, _metadata(request)
        return 200, {"ETag": self._etag(request.key, body)}, b""

    def _DeleteObject(self, request: Recorded, _: bytes) -> Response:  # noqa: N802
        self.objects.pop(request.key, None)
        return 204, {}, b""

    def _CreateMultipartUpload(self, request: Recorded, _: bytes) -> Response:  # noqa: N802
        self.metadata[request.key] = _metadata(request)
        return 200, {}, b"<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>"

    def _UploadPart(self, request: Recorded, body: bytes) -> Response:  # noqa: N802
        number = request.query["partNumber"]
        self._parts[number] = body
        return 200, {"ETag": self._etag(number, body)}, b""

    def _CompleteMultipartUpload(self, request: Recorded, _: bytes) -> Response:  # noqa: N802
        self.objects[request.key] = b"".join(self._parts[number] for number in sorted(self._parts, key=int))
        return 200, {}, b"<CompleteMultipartUploadResult><ETag>e</ETag></CompleteMultipartUploadResult>"

    def _AbortMultipartUpload(self, request: Recorded, _: bytes) -> Response:  # noqa: N802
        return 204, {}, b""

    def _ListMultipartUploads(self, request: Recorded, _: bytes) -> Response:  # noqa: N802
        return 200, {}, b"<ListMultipartUploadsResult><IsTruncated>false</IsTruncated></ListMultipartUploadsResult>"

    def _CreateSession(self, request: Recorded, _: bytes) -> Response:  # noqa: N802
        return (
            200,
            {},
            (
                b"<CreateSessionResult><Credentials><SessionToken>of-session</SessionToken><SecretAccessKey>s</SecretAccessKey>"
                b"<AccessKeyId>session-key</AccessKeyId><Expiration>2999-01-01T00:00:00Z</Expiration></Credentials>"
                b"</CreateSessionResult>"
            ),
        )


def _metadata(request: Recorded) -> dict[str, str]:
    return {name: value for name, value in request.headers.items() if name.startswith("x-amz-meta-")}


@functools.cache
def _authority() -> trustme.CA:
    return trustme.CA()


@functools.cache
def _context(host: str) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    _authority().issue_cert(f"*.{host.partition('.')[2]}").configure_cert(context)
    return context


@contextmanager
def recording_s3(folder: Path) -> Iterator[RecordingS3]:
    """Run a server until the block ends.

    Args:
        folder: for the certificate of its authority.
    """
    ca_file = folder / "authority.pem"
    _authority().cert_pem.write_to_path(str(ca_file))
    running = RecordingS3("", str(ca_file))
    lock = threading.RLock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        tunnel = ""

        def do_CONNECT(self) -> None:  # name of the base class
            self.send_response_only(200)
            self.end_headers()
            self.tunnel = self.path.rpartition(":")[0]
            self.connection = _context(self.tunnel).wrap_socket(self.connection, server_side=True)
            self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb", 0)
            self.close_connection = False

        def respond(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            body = self.rfile.read(int(headers.get("content-length", 0)))
            with lock:
                request = Recorded(self.command, self.tunnel or headers["host"], self.path, headers, body)
                status, more, data = running.respond(request, body)
            self.send_response_only(status)
            for name, value in more.items():
                self.send_header(name, value)
            if status != 204:
                self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = respond  # noqa: N815

        def log_message(self, *arguments: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """A client that closes its connection is no fault."""

    server = Server(("127.0.0.1", 0), Handler)
    running.url = f"http://127.0.0.1:{server.server_port}"
    with in_thread(server):
        yield running
