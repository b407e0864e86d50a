"""HTTP/1.1 on a socket: message heads unchanged, bodies in pieces."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Iterator, Mapping

PIECE_BYTES = 256 << 10
_HEAD_BYTES = 64 << 10
_LINGER_S = 1.0


class Head:
    """First line and headers of a request or a response."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self._lines = raw[:-4].decode("latin-1").split("\r\n")
        self.first = [*self._lines[0].split(" ", 2), "", ""][:3]
        self.fields: dict[str, str] = {}  # by names in lower case
        for line in self._lines[1:]:
            name, _, value = line.partition(":")
            self.fields[name.lower()] = value.strip()

    @property
    def status(self) -> int:
        return int(self.first[1])

    @property
    def keeps_alive(self) -> bool:
        """Whether the sender keeps the connection open."""
        connection = self.fields.get("connection", "").lower()
        return connection == "keep-alive" if "HTTP/1.0" in self.first else connection != "close"

    @property
    def is_chunked(self) -> bool:
        return self.fields.get("transfer-encoding", "").lower().endswith("chunked")

    @property
    def length(self) -> int | None:
        """Bytes of the body; ``None`` without Content-Length."""
        return int(self.fields["content-length"]) if "content-length" in self.fields else None

    def edited(self, changes: Mapping[str, str | None], *, first: str | None = None) -> bytes:
        """Return this head with other values for some headers; ``None`` removes a header."""
        names = {name.lower() for name in changes}
        kept = [line for line in self._lines[1:] if line.partition(":")[0].lower() not in names]
        added = [f"{name}: {value}" for name, value in changes.items() if value is not None]
        return "\r\n".join([first or self._lines[0], *kept, *added, "", ""]).encode("latin-1")


class Wire:
    """One connection, with the bytes that were read ahead."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self.held = b""
        self._buffer = memoryview(bytearray(PIECE_BYTES))

    def send(self, head: bytes, body: Iterator[memoryview]) -> None:
        """Send a head together with the first piece of its body, then the rest."""
        self.sock.sendall(head + next(body, b""))
        for piece in body:
            self.sock.sendall(piece)

    def try_send(self, piece: memoryview) -> bool:
        """Send a piece; return ``False`` if the other side has closed the connection."""
        try:
            self.sock.sendall(piece)
        except OSError:
            return False
        return True

    def head(self) -> Head | None:
        """Read the next head; ``None`` if the other side has closed the connection."""
        return Head(raw) if (raw := self._until(b"\r\n\r\n")) else None

    def body(self, head: Head, *, framed: bool = True) -> Iterator[memoryview]:
        """Read the body after ``head``, until FIN if there is no length; ``framed`` keeps the framing of chunks."""
        if head.is_chunked:
            return self._chunks(framed)
        return self._exactly(head.length) if head.length is not None else iter(lambda: self._some(PIECE_BYTES), b"")

    def is_closed_within(self, seconds: float) -> bool:
        """Wait; return ``True`` as soon as either side closes the connection."""
        deadline = time.monotonic() + seconds
        try:
            while (rest_s := deadline - time.monotonic()) > 0:
                self.sock.settimeout(rest_s)
                if not (more := self.sock.recv(_HEAD_BYTES)):
                    return True
                self.held += more
        except TimeoutError:
            pass
        self.sock.settimeout(None)
        return False

    def is_stale(self) -> bool:
        """Whether the other side has closed the connection, or sent unexpected bytes."""
        try:
            self.sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def reset(self) -> None:
        """Close with RST instead of FIN."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def close_gracefully(self) -> None:
        """Send FIN, and read for a moment: a close with unread bytes would reset the connection."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)
            self.is_closed_within(_LINGER_S)

    def _some(self, at_most: int) -> memoryview:
        """Read the next bytes; none at FIN. They are valid until the next call."""
        if self.held:
            piece, self.held = self.held[:at_most], self.held[at_most:]
            return memoryview(piece)
        return self._buffer[: self.sock.recv_into(self._buffer, min(at_most, PIECE_BYTES))]

    def _exactly(self, num_bytes: int) -> Iterator[memoryview]:
        while num_bytes:
            piece = self._some(num_bytes)
            if not piece:
                raise ConnectionError(f"the connection ended {num_bytes:,} bytes before the end of a body")
            num_bytes -= len(piece)
            yield piece

    def _chunks(self, framed: bool) -> Iterator[memoryview]:
        size = 1
        while size:
            line = self._until(b"\r\n")
            size = int(line.partition(b";")[0], 16)
            if framed:
                yield memoryview(line)
            yield from self._exactly(size)
            end = self._until(b"\r\n")
            while size == 0 and end != b"\r\n":  # trailers
                if framed:
                    yield memoryview(end)
                end = self._until(b"\r\n")
            if framed:
                yield memoryview(end)

    def _until(self, mark: bytes) -> bytes:
        """Read up to and including ``mark``; nothing at FIN before the first byte."""
        while (end := self.held.find(mark)) < 0:
            if len(self.held) > _HEAD_BYTES:
                raise ConnectionError(f"no {mark!r} within {_HEAD_BYTES:,} bytes")
            more = self.sock.recv(_HEAD_BYTES)
            if not more:
                if self.held:
                    raise ConnectionError(f"the connection ended before {mark!r}")
                return b""
            self.held += more
        end += len(mark)
        line, self.held = self.held[:end], self.held[end:]
        return line
