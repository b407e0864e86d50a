"""A plain http server of a folder: HEAD, GET, ranges, etags. It neither lists nor writes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests.servers.scripted import Request, Response, scripted


@contextmanager
def files_over_http(folder: Path) -> Iterator[str]:
    """Serve the files of a folder until the block ends; yields the URL, without a slash at its end."""

    def respond(request: Request) -> Response:
        path = folder / unquote(urlsplit(request.target).path).lstrip("/")
        if not path.is_file():
            return Response(404, b"no such file")
        data, stat = path.read_bytes(), path.stat()
        etag, first = f'"{stat.st_mtime_ns:x}-{stat.st_ino:x}"', request.headers.get("range", "bytes=0-")[6:]
        if request.headers.get("if-match", etag) != etag:
            return Response(412, b"another version")
        if first != "0-" and int(first.partition("-")[0]) >= len(data):
            return Response(416, b"", {"Content-Range": f"bytes */{len(data)}"})
        return Response.of_object(request, data, etag)

    with scripted(respond) as server:
        yield server.url
