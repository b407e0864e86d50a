"""Send requests by urllib3, and read the bodies of responses. No exception but those of this package leaves here."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from typing import Any

from ...errors import RemoteDataError
from ..errors import from_urllib3, mark_host_known, to_package_error
from ..network import ServerPools

_CHUNK_BYTES = 1 << 18


def send(
    pools: ServerPools,
    method: str,
    url: str,
    shown: str,
    headers: Mapping[str, str],
    body: bytes | bytearray | None = None,
) -> Any:
    """Send one request, and return urllib3's response without its body. Redirects are not followed.

    Args:
        pools: of connections.
        method: of HTTP.
        url: which may be signed, and is not shown.
        shown: URL for errors.
        headers: of the request.
        body: of the request.
    """
    try:
        response = pools.manager(url).urlopen(
            method,
            url,
            headers=headers,
            body=body,
            redirect=False,
            preload_content=False,
            enforce_content_length=True,
        )
    except (RemoteDataError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001  # any of urllib3 and of what it uses
        raise to_package_error(from_urllib3, error, shown) from None
    mark_host_known(shown)
    return response


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
    except Exception as error:  # noqa: BLE001  # as above
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
