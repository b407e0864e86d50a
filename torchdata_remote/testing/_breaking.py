"""Responses of a store, intact and broken, and what requests of its kinds look like: arithmetic, without sockets."""

from __future__ import annotations

import re
from typing import Any, NamedTuple
from urllib.parse import parse_qs

RANGE_FAULTS = frozenset({"short_range", "ignored_range", "shifted_range"})
# For these the upstream server gets no request
STATUS = {
    "slow_down": ("503 Slow Down", "SlowDown", "Please reduce your request rate."),
    "internal_error": ("500 Internal Server Error", "InternalError", "We encountered an internal error."),
    "changed": ("412 Precondition Failed", "PreconditionFailed", "A precondition that you specified did not hold."),
    "bad_gateway": ("502 Bad Gateway", "BadGateway", "The upstream server does not respond."),
    "too_many_requests": ("429 Too Many Requests", "TooManyRequests", "Please reduce your request rate."),
}
WITHOUT_UPSTREAM = frozenset({"slow_down", "internal_error", "too_many_requests", "reset", "early_end"})
BODILESS_FAULTS = WITHOUT_UPSTREAM | {"stall"}  # possible for a response to HEAD
_OF_AZURE = {"slow_down": "ServerBusy", "changed": "ConditionNotMet", "too_many_requests": "ServerBusy"}
_LISTINGS = re.compile(
    r"/api/(?:datasets|models|spaces)/.+/(?:tree|paths-info)/.*"  # the Hub
    r"|.*/datasets/[^/]+/files"  # the dataset service
    r"|/storage/v1/b/[^/]+/o/?"  # the JSON API of Google Cloud Storage
)


def is_listing(path: str, query: str) -> bool:
    """Whether a request lists objects, by its path and query as they were sent.

    >>> is_listing("/bucket", "list-type=2&prefix=a"), is_listing("/account/box", "restype=container&comp=list")
    (True, True)
    >>> is_listing("/bucket/list-type=2", ""), is_listing("/datasets/name/files/a.jpg", "")
    (False, False)
    """
    fields = parse_qs(query, keep_blank_values=True)
    return fields.get("list-type") == ["2"] or fields.get("comp") == ["list"] or bool(_LISTINGS.fullmatch(path))


class Response(NamedTuple):
    """A response of the upstream server, with its body decoded."""

    status: int
    reason: str
    headers: list[tuple[str, str]]
    body: bytes

    def sent(self, body: bytes | None = None, *, ok: bool = False, **changes: str | None) -> bytes:
        """Return a complete response with Content-Length, and with other values of some headers; ``None`` for none."""
        data = self.body if body is None else body
        new = {"Transfer-Encoding": None, "Connection": None, "Keep-Alive": None, "Content-Length": str(len(data))}
        if not data and body is None and any(name.lower() == "content-length" for name, _ in self.headers):
            del new["Content-Length"]  # that of HEAD
        new |= {name.replace("_", "-"): value for name, value in changes.items()}
        names = {name.lower() for name in new}
        kept = [one for one in self.headers if one[0].lower() not in names]
        lines = [f"{name}: {value}" for name, value in [*kept, *new.items()] if value is not None]
        first = "200 OK" if ok else f"{self.status} {self.reason}"
        return "\r\n".join([f"HTTP/1.1 {first}", *lines, "", ""]).encode("latin-1") + data


class Broken(NamedTuple):
    """Bytes that are sent at once, bytes that are sent one by one, and the fault that ends the connection then."""

    at_once: bytes
    by_the_byte: bytes = b""
    ends: str = ""


def error_response(fault: str, headers: Any, retry_after_s: int, *, has_body: bool) -> bytes:
    """Make an error response with S3's XML, which is Azure's with other codes."""
    status, code, message = STATUS[fault]
    lines = [f"HTTP/1.1 {status}", "Content-Type: application/xml", "x-amz-request-id: FAULTYSTORE"]
    if "x-ms-version" in headers:
        code = _OF_AZURE.get(fault, code)
        lines.append(f"x-ms-error-code: {code}")
    if fault == "too_many_requests":
        lines.append(f"Retry-After: {retry_after_s}")
    body = (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>{message}</Message>'
        "<RequestId>FAULTYSTORE</RequestId></Error>"
    )
    return ("\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]) + body * has_body).encode()


def break_response(fault: str, response: Response, chance: float) -> Broken | None:
    """Break a response; ``None`` if it cannot have the fault. ``chance`` is from [0, 1)."""
    body = response.body
    if fault in RANGE_FAULTS:
        named = next((value for name, value in response.headers if name.lower() == "content-range"), "")
        found = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", named)
        if response.status == 206 and found and len(body) == int(found[2]) - int(found[1]) + 1:
            return _broken_range(fault, response, chance, int(found[1]), int(found[3]))
        return Broken(response.sent()) if fault == "ignored_range" and response.status == 200 else None
    if fault == "other_answer":
        return Broken(response.sent())
    if response.status not in (200, 206) or not body:
        return None
    part, whole = body[: int(chance * len(body))], response.sent()
    head = whole[: len(whole) - len(body)]
    if fault == "cut_without_length":
        return Broken(response.sent(part, Content_Length=None, Connection="close"), ends="cut_body")
    if fault == "flipped_bit":
        flipped, bit = bytearray(body), int(chance * 8 * len(body))
        flipped[bit // 8] ^= 1 << bit % 8
        return Broken(head + flipped)
    if fault == "changed":
        return Broken(response.sent(ETag=f'"{int(chance * 2**128):032x}"'))
    if fault == "doubled":
        return Broken(whole + whole)
    return Broken(head, by_the_byte=body) if fault == "trickle" else Broken(head + part, ends=fault)


def _broken_range(fault: str, response: Response, chance: float, start: int, total: int) -> Broken | None:
    """Break the response to a range that starts at byte ``start`` of an object of ``total`` bytes."""
    body = response.body
    if fault == "ignored_range":
        whole = bytes(start) + body + bytes(total - start - len(body))
        return Broken(response.sent(whole, ok=True, Content_Range=None))
    if fault == "short_range":
        kept = 1 + int(chance * (len(body) - 1))
        named = f"bytes {start}-{start + kept - 1}/{total}"
        return Broken(response.sent(body[:kept], Content_Range=named)) if kept < len(body) else None
    other = int(chance * max(total - len(body), 1))  # any start except the right one
    other += other >= start
    named = f"bytes {other}-{other + len(body) - 1}/{max(total, other + len(body))}"
    return Broken(response.sent(Content_Range=named))
