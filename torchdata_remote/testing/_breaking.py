"""Break intact responses: arithmetic on bytes, without sockets."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto

from ._wire import Head

RANGE_FAULTS = {"short_range", "ignored_range", "shifted_range"}
BODILESS_FAULTS = {
    "slow_down",
    "internal_error",
    "too_many_requests",
    "reset",
    "early_end",
    "stall",
}  # possible for a response to HEAD


class AfterResponse(Enum):
    """What happens to the connection after a response."""

    KEEP_OPEN = auto()
    END = auto()
    RESET = auto()
    STALL_AND_RESET = auto()


_AFTER_PART_OF_BODY = {
    "reset_in_body": AfterResponse.RESET,
    "cut_body": AfterResponse.END,
    "stall_in_body": AfterResponse.STALL_AND_RESET,
}


@dataclass(frozen=True)
class BrokenResponse:
    """Bytes sent at once, bytes sent one by one, and what happens then."""

    at_once: bytes
    then: AfterResponse = AfterResponse.KEEP_OPEN
    by_the_byte: bytes = b""


def status_line(response: Head) -> str:
    """Return a status line of HTTP/1.1, also if the upstream server uses HTTP/1.0."""
    return f"HTTP/1.1 {response.first[1]} {response.first[2]}"


def with_length(response: Head, body: bytes, **changes: str | None) -> bytes:
    """Make a complete response with Content-Length."""
    lengths = {"Content-Length": str(len(body)), "Transfer-Encoding": None, "Connection": None, "Keep-Alive": None}
    named = {name.replace("_", "-"): value for name, value in changes.items()}
    return response.edited({**lengths, **named}, first=status_line(response)) + body


def break_response(fault: str, response: Head, body: bytes, chance: float) -> BrokenResponse | None:
    """Break a response; ``None`` if it cannot have the fault. ``chance`` is from [0, 1)."""
    if fault in RANGE_FAULTS:
        found = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", response.fields.get("content-range", ""))
        if response.status == 206 and found and len(body) == int(found[2]) - int(found[1]) + 1:
            return _broken_range(fault, response, body, chance, int(found[1]), int(found[3]))
        return (
            BrokenResponse(with_length(response, body)) if fault == "ignored_range" and response.status == 200 else None
        )
    if fault == "other_answer":
        return BrokenResponse(with_length(response, body))
    if response.status not in (200, 206) or not body:
        return None
    part = body[: int(chance * len(body))]
    if fault == "cut_without_length":
        return BrokenResponse(with_length(response, part, Content_Length=None, Connection="close"), AfterResponse.END)
    if fault == "flipped_bit":
        flipped, bit = bytearray(body), int(chance * 8 * len(body))
        flipped[bit // 8] ^= 1 << bit % 8
        return BrokenResponse(with_length(response, bytes(flipped)))
    if fault == "changed":
        return BrokenResponse(with_length(response, body, ETag=f'"{int(chance * 2**128):032x}"'))
    whole = with_length(response, body)
    if fault == "doubled":
        return BrokenResponse(whole + whole)
    head = whole[: len(whole) - len(body)]
    return (
        BrokenResponse(head, by_the_byte=body)
        if fault == "trickle"
        else BrokenResponse(head + part, _AFTER_PART_OF_BODY[fault])
    )


def _broken_range(
    fault: str, response: Head, body: bytes, chance: float, start: int, total: int
) -> BrokenResponse | None:
    """Break the response to a range: ``body`` starts at byte ``start`` of an object of ``total`` bytes."""
    stop = start + len(body)
    if fault == "short_range":
        kept = 1 + int(chance * (len(body) - 1))
        named = f"bytes {start}-{start + kept - 1}/{total}"
        return BrokenResponse(with_length(response, body[:kept], Content_Range=named)) if kept < len(body) else None
    if fault == "shifted_range":
        other = int(chance * max(total - len(body), 1))  # any start except the right one
        other += other >= start
        named = f"bytes {other}-{other + len(body) - 1}/{max(total, other + len(body))}"
        return BrokenResponse(with_length(response, body, Content_Range=named))
    whole = bytes(start) + body + bytes(total - stop)
    ok = Head(response.edited({"Content-Range": None}, first="HTTP/1.1 200 OK"))
    return BrokenResponse(with_length(ok, whole))
