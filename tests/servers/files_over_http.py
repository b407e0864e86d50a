"""A plain http server of a folder: HEAD, GET, ranges, etags. It neither lists nor writes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests.servers.threaded import in_thread


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet
    disable_nagle_algorithm = True
    root: Path

    def do_GET(self) -> None:
        path = self.root / unquote(urlsplit(self.path).path).lstrip("/")
        if not path.is_file():
            return self._send(404, b"no such file")
        with path.open("rb") as file:
            data = file.read()
        stat = path.stat()
        headers = {
            "ETag": f'"{stat.st_mtime_ns:x}-{stat.st_ino:x}"',
            "Last-Modified": formatdate(int(stat.st_mtime), usegmt=True),
            "Accept-Ranges": "bytes",
        }
        if self.headers.get("If-Match", headers["ETag"]) != headers["ETag"]:
            return self._send(412, b"another version", headers)
        span = self.headers.get("Range", "")
        if not span.startswith("bytes="):
            return self._send(200, data, headers)
        first, _, last = span.removeprefix("bytes=").partition("-")
        start, end = int(first), min(int(last) + 1 if last else len(data), len(data))
        if start >= len(data):
            return self._send(416, b"", {"Content-Range": f"bytes */{len(data)}"})
        return self._send(206, data[start:end], {**headers, "Content-Range": f"bytes {start}-{end - 1}/{len(data)}"})

    do_HEAD = do_GET  # noqa: N815  # a name of the base class

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response_only(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        pass


@contextmanager
def files_over_http(folder: Path) -> Iterator[str]:
    """Serve the files of a folder until the block ends; yields the URL, without a slash at its end."""
    handler = type("Handler", (_Handler,), {"root": folder})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    with in_thread(server):
        yield f"http://127.0.0.1:{server.server_port}"
