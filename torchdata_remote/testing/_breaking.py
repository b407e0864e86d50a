"""Sound answers to broken ones: arithmetic on bytes, without sockets."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto

from ._wire import Head

# The server behind is not asked for these.
INSTEAD = {
    "slow_down": ("503 Slow Down", "SlowDown", "Please reduce your request rate."),
    "internal_error": ("500 Internal Server Error", "InternalError", "We encountered an internal error."),
    "changed": ("412 Precondition Failed", "PreconditionFailed", "A precondition that you specified did not hold."),
    "bad_gateway": ("502 Bad Gateway", "BadGateway", "The server behind the proxy does not answer."),
}
OF_A_RANGE = {"short_range", "ignored_range", "shifted_range"}
WITHOUT_A_BODY = {"slow_down", "internal_error", "reset", "early_end", "stall"}  # what an answer to HEAD can have


class Then(Enum):
    """What becomes of the connection."""

    GO_ON = auto()
    END = auto()
    RESET = auto()
    STALL_AND_RESET = auto()


_AFTER_A_PART = {"reset_in_body": Then.RESET, "cut_body": Then.END, "stall_in_body": Then.STALL_AND_RESET}


@dataclass(frozen=True)
class Broken:
    """What is sent for an answer: at once, then by the byte; and what follows."""

    at_once: bytes
    then: Then = Then.GO_ON
    by_the_byte: bytes = b""


def error_answer(fault: str, *, with_body: bool) -> bytes:
    """An error as S3 words it."""
    status, code, message = INSTEAD[fault]
    body = (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>{message}</Message>'
        "<RequestId>FAULTYSTORE</RequestId></Error>"
    )
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n"
    return (head + "x-amz-request-id: FAULTYSTORE\r\n\r\n" + body * with_body).encode()


def status_line(answer: Head) -> str:
    """The status line of a connection that goes on, also where the server behind speaks HTTP/1.0."""
    return f"HTTP/1.1 {answer.first[1]} {answer.first[2]}"


def joined(answer: Head, body: bytes, **changes: str | None) -> bytes:
    """A whole answer whose headers tell its length."""
    lengths = {"Content-Length": str(len(body)), "Transfer-Encoding": None, "Connection": None, "Keep-Alive": None}
    named = {name.replace("_", "-"): value for name, value in changes.items()}
    return answer.edited({**lengths, **named}, first=status_line(answer)) + body


def broken_answer(fault: str, answer: Head, body: bytes, chance: float) -> Broken | None:
    """Break a sound answer with a body; ``None`` where this one cannot have the fault. ``chance`` is from [0, 1)."""
    if fault in OF_A_RANGE:
        found = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", answer.fields.get("content-range", ""))
        if answer.status == 206 and found and len(body) == int(found[2]) - int(found[1]) + 1:
            return _broken_range(fault, answer, body, chance, int(found[1]), int(found[3]))
        return Broken(joined(answer, body)) if fault == "ignored_range" and answer.status == 200 else None
    if fault == "other_answer":
        return Broken(joined(answer, body))
    if answer.status not in (200, 206) or not body:
        return None
    part = body[: int(chance * len(body))]
    if fault == "cut_without_length":
        return Broken(joined(answer, part, Content_Length=None, Connection="close"), Then.END)
    if fault == "flipped_bit":
        flipped, bit = bytearray(body), int(chance * 8 * len(body))
        flipped[bit // 8] ^= 1 << bit % 8
        return Broken(joined(answer, bytes(flipped)))
    if fault == "changed":
        return Broken(joined(answer, body, ETag=f'"{int(chance * 2**128):032x}"'))
    whole = joined(answer, body)
    if fault == "doubled":
        return Broken(whole + whole)
    head = whole[: len(whole) - len(body)]
    return Broken(head, by_the_byte=body) if fault == "trickle" else Broken(head + part, _AFTER_A_PART[fault])


def _broken_range(fault: str, answer: Head, body: bytes, chance: float, start: int, total: int) -> Broken | None:
    """``body`` lies at ``start`` of an object of ``total`` bytes."""
    stop = start + len(body)
    if fault == "short_range":
        kept = 1 + int(chance * (len(body) - 1))
        named = f"bytes {start}-{start + kept - 1}/{total}"
        return Broken(joined(answer, body[:kept], Content_Range=named)) if kept < len(body) else None
    if fault == "shifted_range":
        there = int(chance * max(total - len(body), 1))  # one of the places that are left, without its own
        there += there >= start
        named = f"bytes {there}-{there + len(body) - 1}/{max(total, there + len(body))}"
        return Broken(joined(answer, body, Content_Range=named))
    whole = bytes(start) + body + bytes(total - stop)
    ok = Head(answer.edited({"Content-Range": None}, first="HTTP/1.1 200 OK"))
    return Broken(joined(ok, whole))
