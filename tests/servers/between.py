"""A proxy between the package and a store, which answers some requests itself, or loses what the store answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import urllib3

from tests.servers.scripted import DROPPED, Request, Response, scripted

LOST = Response(DROPPED)
_OF_CONNECTION = ("transfer-encoding", "connection")


def changes(request: Request) -> bool:
    """Whether it may change what is stored."""
    return request.method in ("PUT", "POST", "DELETE")


@contextmanager
def between(endpoint_url: str, decide: Callable[[Request], Response | None]) -> Iterator[str]:
    """Run a proxy until the block ends; yields its address.

    ``decide`` returns ``None`` to forward a request, ``LOST`` to forward it and to close the connection without the
    answer, or an answer.
    """
    pool = urllib3.PoolManager(maxsize=16, retries=False)

    def respond(request: Request) -> Response:
        decided = decide(request)
        if decided not in (None, LOST):
            return decided
        found = pool.request(
            *(request.method, endpoint_url + request.target),
            body=request.body, headers=request.headers, decode_content=False, redirect=False,
        )  # fmt: skip
        headers = {name.title(): value for name, value in found.headers.items() if name.lower() not in _OF_CONNECTION}
        return decided or Response(found.status, found.data, headers)

    with pool, scripted(respond) as server:
        yield server.url
