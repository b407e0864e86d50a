"""Objects of an S3 bucket whose responses follow a script, byte by byte."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torchdata_remote as tdr
from tests.servers.raw import answer, raw

AT_ONCE = tdr.RetryPolicy(deadline_s=3600, first_wait_s=0, max_wait_s=0)
MOST_REQUESTS = 100  # an engine that asks for ever is a failure, not a test that hangs


class Fault(NamedTuple):
    """Faults of one response: of its head, and of its body, which ends after so many bytes."""

    head: str = "right"
    breaks_after: int | None = None


class Asked(NamedTuple):
    """A request: first byte, the byte after the last one, If-Match, If-None-Match."""

    start: int
    end: int | None
    if_match: str | None
    if_none_match: str | None = None


_ERRORS = {
    "refused": ("500 Internal Server Error", "InternalError"),
    "slow down": ("503 Slow Down", "SlowDown"),
    "denied": ("403 Forbidden", "AccessDenied"),
    "missing": ("404 Not Found", "NoSuchKey"),
    "412": ("412 Precondition Failed", "PreconditionFailed"),
    "416": ("416 Range Not Satisfiable", "InvalidRange"),
}


class WireObject:
    """One object; each GET meets the next fault of the script, and none when that has ended."""

    def __init__(self, url: str, data: bytes, script: Sequence[Fault]) -> None:
        self.url, self.data, self.etag = url, data, '"v1"'
        self.script, self.requests, self.num_heads = iter(script), list[Asked](), 0
        self.conditions = True  # whether If-Match is understood

    def listed(self) -> tdr.RemoteUrl:
        return tdr.RemoteUrl(self.url, len(self.data), self.etag)

    def respond(self, head: str) -> bytes:
        fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
        if_match, if_none_match = fields.get("if-match"), fields.get("if-none-match")
        data, etag, total = self.data, self.etag, len(self.data)
        if head.startswith("HEAD"):
            self.num_heads += 1
            return answer("200 OK", b"", *_lines(etag, total))
        first, _, last = fields.get("range", "bytes=0-").removeprefix("bytes=").partition("-")
        start, end = int(first), int(last) + 1 if last else None
        self.requests.append(Asked(start, end, if_match, if_none_match))
        fault = next(self.script, Fault()) if len(self.requests) < MOST_REQUESTS else Fault("missing")
        if self.conditions and if_match not in (None, etag):
            fault = Fault("412")
        if fault.head == "right" and if_none_match == etag:
            return answer("304 Not Modified", b"", f"ETag: {etag}")
        if fault.head == "right" and start >= total and "range" in fields:
            fault = Fault("416")
        if fault.head in _ERRORS:
            status, code = _ERRORS[fault.head]
            body = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()
            return answer(status, body, f"Content-Length: {len(body)}")
        end = total if end is None else min(end, total)
        if fault.head == "short":
            end = max(start, end - 1)
        elif fault.head == "shifted on":
            start, end = start + 1, min(end + 1, total)
        elif fault.head == "shifted back":
            start, end = max(start - 1, 0), end - 1
        elif fault.head == "whole":
            start, end = 0, total
        elif fault.head == "etag":
            etag = '"v2"'
        total += {"grown": 1, "shrunk": -1}.get(fault.head, 0)
        body = data[start:end]
        is_part = "range" in fields and fault.head != "whole"
        span = [f"Content-Range: bytes {start}-{end - 1}/{total}"] if is_part else []
        lines = [*_lines(etag, len(body)), *span]
        return answer("206 Partial Content" if is_part else "200 OK", body[: fault.breaks_after], *lines)


def _lines(etag: str, length: int) -> list[str]:
    return [f"ETag: {etag}", f"Content-Length: {length}", "Last-Modified: Sat, 21 Nov 2026 00:00:00 GMT"]


class Wire:
    """A running server of objects."""

    def __init__(self) -> None:
        self.endpoint_url = ""
        self._objects: dict[str, WireObject] = {}
        self._numbers = itertools.count()

    @property
    def storage_options(self) -> dict[str, Any]:
        return {"endpoint_url": self.endpoint_url, "key": "k", "secret": "s", "region": "us-east-1"}

    def put(self, data: bytes, *script: Fault) -> WireObject:
        """An object of a name of its own."""
        name = f"{next(self._numbers)}"
        made = self._objects[f"/bkt/{name}"] = WireObject(f"s3://bkt/{name}", data, script)
        return made

    def respond(self, head: str) -> bytes:
        return self._objects[head.split()[1].partition("?")[0]].respond(head)

    def open(self, *urls: str, **options: Any) -> Iterator[tuple[str, Any]]:
        """Streams of objects, read by one request at a time and in one part, by default."""
        chosen = {"max_in_flight": 1, "part_bytes": 1 << 20, "retry": AT_ONCE, "storage_options": self.storage_options}
        yield from tdr.pipes.AsyncPrefetch(tdr.IterableWrapper(list(urls)), **{**chosen, **options})

    def read(self, url: str, **options: Any) -> bytes:
        """The bytes of an object."""
        [(_, stream)] = self.open(url, **options)
        try:
            data: bytes = stream.read()
            return data
        finally:
            stream.close()


@contextmanager
def wire() -> Iterator[Wire]:
    """Run a server."""
    running = Wire()
    with raw(running.respond) as server:
        running.endpoint_url = server.url
        yield running
