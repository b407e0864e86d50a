"""Read the JSON of a response in bounded memory and time: any server may respond under the host of a URL."""

from __future__ import annotations

import json
import re
import time
from typing import Any, NamedTuple

from ...errors import StorageError, TransientStorageError
from ..http import stream_body
from .protocol import MAX_PATH_BYTES

_ENTRY_BYTES = 2 * MAX_PATH_BYTES + 1024  # of a page: a path with each byte escaped, size, etag, date and digest
_ENTRY_VALUES = 16
_MIN_BYTES_PER_S = 16 << 10
_ESCAPED = re.compile(rb'\\[\\"]')
_STRING = re.compile(rb'"[^"]*"')


class BodyLimits(NamedTuple):
    """Limits of the JSON of a response: of its bytes, and of its values, which take more memory than their bytes."""

    num_bytes: int
    num_values: int


SMALL = BodyLimits(64 << 10, 1 << 10)  # of the response about one file or dataset
DATASETS = BodyLimits(32 << 20, 1 << 20)  # of the list of all datasets: names have at most 128 characters


def page_limits(num_entries: int) -> BodyLimits:
    """Return the limits of a page of a listing.

    >>> page_limits(10_000)
    BodyLimits(num_bytes=30785536, num_values=161024)
    """
    return BodyLimits(
        SMALL.num_bytes + num_entries * _ENTRY_BYTES,
        SMALL.num_values + num_entries * _ENTRY_VALUES,
    )


def read_body(response: Any, max_bytes: int, wait_s: float, url: str) -> bytes:
    """Read a body of limited size.

    Args:
        response: of urllib3.
        max_bytes: the limit.
        wait_s: seconds that it may take, in addition to those for its bytes at the lowest speed.
        url: for errors.

    Raises:
        StorageError: for a larger body.
        TransientStorageError: if its bytes arrive too slowly.
    """
    body, began_s = bytearray(), time.monotonic()
    for piece in stream_body(response):
        body += piece
        if len(body) > max_bytes:
            raise _refused(url, f"has more than {max_bytes:,} bytes, which no response to this request has")
        if (took_s := time.monotonic() - began_s) > wait_s + len(body) / _MIN_BYTES_PER_S:
            raise TransientStorageError(
                f"{url}: {len(body):,} bytes of a response were received in {took_s:.0f} s, and it is not complete.",
                url=url,
            )
    return bytes(body)


def parse_json(body: bytes, limits: BodyLimits, url: str) -> Any:
    """Parse the JSON of a response.

    Args:
        body: of the response.
        limits: of the number of its values.
        url: for errors.

    Raises:
        StorageError: if it is no JSON, or has too many values.
    """
    if _num_values(body) > limits.num_values and _num_values(_without_strings(body)) > limits.num_values:
        raise _refused(url, f"has more than {limits.num_values:,} values, which no response to this request has")
    try:
        return json.loads(body.decode())
    except (ValueError, RecursionError):
        raise _refused(url, f"is {body[:80]!r}, which is no JSON") from None


def _num_values(text: bytes) -> int:
    """Count the characters that begin an array or object, or separate its values."""
    return sum(map(text.count, (b"[", b"{", b",")))


def _without_strings(text: bytes) -> bytes:
    return _STRING.sub(b"", _ESCAPED.sub(b"", text))


def _refused(url: str, what: str) -> StorageError:
    return StorageError(f"{url}: the response {what}. Is a dataset service running there?", url=url)
