"""Read the bodies of urllib3's responses."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from ..error_tables import from_urllib3
from ..errors import to_package_error

_CHUNK_BYTES = 1 << 18


def stream_body(response: Any) -> Iterator[memoryview]:
    """Yield the body of a urllib3 response as it arrives, so that the caller notices slow progress."""
    while chunk := response.read1(_CHUNK_BYTES, decode_content=False):
        yield memoryview(chunk)


def chunks_of(response: Any, shown: str) -> Generator[memoryview, None, None]:
    """Yield the body of a response as it arrives; then its connection is used again.

    Args:
        response: of urllib3.
        shown: URL for errors. That of the request, which may be signed, is not shown.
    """
    try:
        yield from stream_body(response)
        response.release_conn()
    except Exception as error:  # noqa: BLE001  # no other exception leaves this module
        raise to_package_error(from_urllib3, error, shown) from None
    finally:
        response.close()


def whole_body(response: Any, shown: str) -> bytes:
    """Return the body of a response, whose connection is used again.

    Args:
        response: of urllib3.
        shown: URL for errors, as above.
    """
    try:
        body: bytes = response.read(decode_content=False)
        response.release_conn()
    except Exception as error:  # noqa: BLE001  # as above
        response.close()
        raise to_package_error(from_urllib3, error, shown) from None
    return body
