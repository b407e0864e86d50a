"""Serve an ASGI application over HTTP/1.1, on a socket that listens already."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from pathlib import Path
from typing import Any, NamedTuple

from granian._granian import SocketHolder
from granian.constants import HTTPModes, Interfaces, SSLProtocols
from granian.http import HTTP1Settings
from granian.log import LogLevels
from granian.server.embed import Server
from starlette.types import ASGIApp

from ..limits import ServiceLimits
from .connections import BACKLOG

_SocketHolder: Any = SocketHolder  # its stub does not show how it is made
_MIN_HEAD_BYTES = 8192  # hyper takes no less
_SHUTDOWN_S = 10.0  # for running requests
_STEPS_OF_START = 5  # of the event loop, in which `serve` starts a task, and that one the server
_THREADS = "/proc/self/task"
_THREADS_END_S, _POLL_S = 1.0, 0.01


class Certificate(NamedTuple):
    """Files in PEM: a certificate with those of the authorities between, and its private key."""

    certificate: str
    key: str


class HttpServer(Server):
    """An HTTP server in the running event loop.

    Args:
        app: answers the requests. Its ``lifespan`` is not called.
        listening: the socket, which the server closes.
        limits: of heads and connections.
        certificate: for https; ``None`` serves http.
    """

    def __init__(
        self, app: ASGIApp, listening: socket.socket, limits: ServiceLimits, certificate: Certificate | None
    ) -> None:
        head_timeout_ms = max(1, int(limits.head_timeout_s * 1000))
        super().__init__(
            app,
            interface=Interfaces.ASGINL,
            http=HTTPModes.http1,
            websockets=False,
            backlog=BACKLOG,
            backpressure=limits.max_connections,
            http1_settings=HTTP1Settings(
                header_read_timeout=head_timeout_ms, max_buffer_size=max(_MIN_HEAD_BYTES, limits.max_head_bytes)
            ),
            log_level=LogLevels.critical,
            ssl_cert=None if certificate is None else Path(certificate.certificate),
            ssl_key=None if certificate is None else Path(certificate.key),
            ssl_protocol_min=SSLProtocols.tls12,
        )
        self._listening = listening
        self._is_started = self._is_ended = False
        self._shd: Any = None

    def _init_shared_socket(self) -> None:
        self._shd = _SocketHolder(self._listening.detach(), False, BACKLOG)

    def end(self) -> None:
        """Stop accepting connections; :meth:`run` returns when the running requests have ended."""
        self._is_ended = True
        if self._is_started:  # before, the library would not notice
            self.signal_handler_interrupt()  # type: ignore[no-untyped-call]  # of the library

    async def run(self) -> bool:
        """Answer requests until :meth:`end` is called; then give the running ones ten seconds.

        Returns:
            Whether all of them have ended, and the threads of the server. If not, end the process by ``os._exit``:
            it is aborted if a thread enters the interpreter while that ends.
        """
        threads = _native_threads()
        serving = asyncio.ensure_future(self.serve())
        for _ in range(_STEPS_OF_START):
            await asyncio.sleep(0)
        self._is_started = True
        if self._is_ended:
            self.end()
        is_stopped: Any = self.main_loop_interrupt  # an asyncio.Event here, a threading.Event in the base class
        stopping = asyncio.ensure_future(is_stopped.wait())
        await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait((serving,), timeout=_SHUTDOWN_S)
        stopping.cancel()
        if not serving.done():
            return False
        serving.result()
        return threads is not None and await _threads_have_ended(threads)


async def _threads_have_ended(before: set[str]) -> bool:
    """Wait until the server's threads have ended. Returns whether they have, as far as the system shows them."""
    for _ in range(int(_THREADS_END_S / _POLL_S)):
        threads = _native_threads()
        if threads is None:
            return False
        if not threads - before - {str(thread.native_id) for thread in threading.enumerate()}:
            return True
        await asyncio.sleep(_POLL_S)
    return False


def _native_threads() -> set[str] | None:
    try:
        return set(os.listdir(_THREADS))
    except OSError:  # without /proc, and on other systems than Linux
        return None
