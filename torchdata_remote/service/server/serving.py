"""Run the service as a process: its socket, the HTTP server, its token and certificate, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from granian._granian import SocketHolder
from granian.constants import HTTPModes, Interfaces, SSLProtocols
from granian.http import HTTP1Settings
from granian.log import LogLevels
from granian.server.embed import Server

from ...errors import ServiceError
from ...storage.dataset_service.token import is_loopback
from .access import AccessMiddleware
from .app import lifespan, make_app
from .limits import ServiceLimits
from .responses import own_descriptors

if sys.platform != "win32":
    import resource

_MIN_TOKEN_CHARACTERS = 16
_BACKLOG = 2048
_OTHER_DESCRIPTORS = 256  # of files that are written, of the store, of the program; half of fewer
_MAX_TIMEOUT_MS = (1 << 31) - 1
_SocketHolder: Any = SocketHolder  # its stub does not show how it is made
_MAX_HEAD_BYTES = 256 << 10  # of a request's line and headers; also what is received of a body at once
_SHUTDOWN_S = 10.0  # for running requests
_SIGINT_STATUS = 130  # as shells report it
_STEPS_OF_START = 5  # of the event loop, in which `serve` starts a task, and that one the server
_log = logging.getLogger("torchdata_remote")


def serve(
    root: str,
    *,
    host: str,
    port: int,
    token_file: str | None,
    limits: ServiceLimits,
    certificate: Certificate | None = None,
    storage_options: Mapping[str, Any] | None = None,
    pass_through: bool = False,
    on_listening: Callable[[str], object] = lambda address: None,
) -> None:
    """Serve datasets until SIGTERM or Ctrl-C. Running requests then get ten seconds to finish, and the process ends.

    Args:
        root: URL of the folder of datasets.
        host: address to listen on; without a token, a loopback address.
        port: to listen on; 0 chooses a free one.
        token_file: contains the token.
        limits: of requests and connections.
        certificate: for https; ``None`` serves http.
        storage_options: for the store.
        pass_through: whether files of a bucket are sent by the service, and clients are not redirected to the bucket.
        on_listening: called with ``host:port`` when connections are accepted.

    Raises:
        UrlError: for a root that cannot be written to.
        ServiceError: for an address that others can reach, without a token; an address in use; a token or a certificate
            that cannot be read; a root that another process serves.
        KeyboardInterrupt: after Ctrl-C while it starts.
    """
    token = None if token_file is None else read_token(token_file)
    if token is None and not is_loopback(host):
        raise ServiceError(
            f"--host {host} is reachable for others, who could then read, replace and delete all datasets. Pass "
            "--token-file, or leave --host at 127.0.0.1."
        )
    if certificate is not None:
        require_certificate(certificate)
    app = make_app(root, token=token, limits=limits, storage_options=storage_options, pass_through=pass_through)
    limits = within_descriptors(limits)
    with listen(host, port, limits) as listening:
        port = listening.getsockname()[1]
        shown = f"{f'[{host}]' if ':' in host else host}:{port}"
        asyncio.run(_serve(app, HttpServer(app, listening, limits, certificate), lambda: on_listening(shown)))


async def _serve(app: AccessMiddleware, server: HttpServer, on_listening: Callable[[], object]) -> None:
    """Serve until SIGTERM or Ctrl-C, and end the process. Ctrl-C once more does not wait for requests."""
    status = 0

    def end(new_status: int) -> None:
        nonlocal status
        if status and new_status:
            os._exit(status)
        status = status or new_status
        app.context.stopping.is_set = True  # long work ends now, so that its requests do
        server.signal_handler_interrupt()  # type: ignore[no-untyped-call]  # of the library

    def started() -> None:
        with contextlib.suppress(NotImplementedError):  # on Windows, where Ctrl-C ends the process at once
            for number, its_status in ((signal.SIGTERM, 0), (signal.SIGINT, _SIGINT_STATUS)):
                asyncio.get_running_loop().add_signal_handler(number, end, its_status)
        on_listening()

    async with lifespan(app):
        await server.run(started)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # threads may still run, and disturb the interpreter's end


def require_certificate(certificate: Certificate) -> None:
    """Require that a certificate and its key can be used.

    Raises:
        ServiceError: names the files.
    """
    try:
        for path in certificate:
            with open(path, "rb"):
                pass
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*certificate, password="")
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        files = " and ".join(map(os.path.abspath, certificate))
        raise ServiceError(
            f"{files}: expected a certificate and its private key in PEM, without a password: {error}."
        ) from error


def read_token(path: str) -> str:
    """Read the token in a file, without surrounding white space.

    Raises:
        ServiceError: if it cannot be read, or is too short.
    """
    try:
        with open(path, encoding="utf-8") as file:
            token = file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ServiceError(f"{os.path.abspath(path)}: the token cannot be read: {error}.") from error
    if len(token) < _MIN_TOKEN_CHARACTERS or not token.isascii() or not token.isprintable():
        raise ServiceError(
            f"{os.path.abspath(path)}: a token has at least {_MIN_TOKEN_CHARACTERS} printable ASCII characters. Make "
            "one by: openssl rand -hex 32"
        )
    return token


def listen(host: str, port: int, limits: ServiceLimits) -> socket.socket:
    """Open the socket. Its connections end if the other side takes no byte for ``idle_timeout_s`` (Linux).

    Raises:
        ServiceError: for an address in use, or one of another machine.
    """
    timeout_ms = min(_MAX_TIMEOUT_MS, int(limits.idle_timeout_s * 1000))
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        # all that are accepted inherit it; it ends those whose other side is gone, too
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout_ms)
        listening.bind((host, port))
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        raise ServiceError(
            f"{host}, port {port}: {error.strerror or error}. Choose another --port; 0 takes a free one."
        ) from error
    return listening


def within_descriptors(limits: ServiceLimits) -> ServiceLimits:
    """Return limits that fit this process' limit of open files, which is raised as far as its owner may.

    A connection needs one descriptor, and the file that it reads another.
    """
    if sys.platform == "win32":
        return limits
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # macOS has another limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    descriptors = own_descriptors()
    num_connections = max(1, (descriptors - min(_OTHER_DESCRIPTORS, descriptors // 2)) // 2)
    if num_connections < min(limits.max_connections, _BACKLOG):
        _log.warning("%d connections at once: the limit of open files allows no more (ulimit -n)", num_connections)
    return replace(limits, max_connections=min(limits.max_connections, num_connections))


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
        self, app: AccessMiddleware, listening: socket.socket, limits: ServiceLimits, certificate: Certificate | None
    ) -> None:
        head_timeout_ms = max(1, int(limits.head_timeout_s * 1000))
        super().__init__(
            app,
            interface=Interfaces.ASGINL,
            http=HTTPModes.http1,
            websockets=False,
            backlog=_BACKLOG,
            backpressure=limits.max_connections,
            http1_settings=HTTP1Settings(header_read_timeout=head_timeout_ms, max_buffer_size=_MAX_HEAD_BYTES),
            log_level=LogLevels.critical,
            ssl_cert=None if certificate is None else Path(certificate.certificate),
            ssl_key=None if certificate is None else Path(certificate.key),
            ssl_protocol_min=SSLProtocols.tls12,
        )
        self._listening = listening
        self._shd: Any = None

    def _init_shared_socket(self) -> None:
        self._shd = _SocketHolder(self._listening.detach(), False, _BACKLOG)

    async def run(self, started: Callable[[], object]) -> None:
        """Answer requests until the library's interrupt; then give the running ones ten seconds.

        Args:
            started: called when the library has started.
        """
        serving = asyncio.ensure_future(self.serve())
        for _ in range(_STEPS_OF_START):
            await asyncio.sleep(0)
        started()
        is_stopped: Any = self.main_loop_interrupt  # an asyncio.Event here, a threading.Event in the base class
        stopping = asyncio.ensure_future(is_stopped.wait())
        await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait((serving,), timeout=_SHUTDOWN_S)
        if serving.done():
            serving.result()
