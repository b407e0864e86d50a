"""Run the service as a process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import sys
from collections.abc import Callable, Mapping
from typing import Any

from starlette.types import ASGIApp

from ...errors import ServiceError
from .app import STOPPING, make_app
from .http.connections import listen, within_descriptors
from .http.http_server import Certificate, HttpServer
from .http.lifespan import lifespan
from .limits import ServiceLimits
from .middleware import is_loopback
from .stop_signals import SIGINT_STATUS, StopSignals

_MIN_TOKEN_CHARACTERS = 16


def serve(
    root: str,
    *,
    host: str,
    port: int,
    token_file: str | None,
    limits: ServiceLimits,
    certificate: Certificate | None = None,
    storage_options: Mapping[str, Any] | None = None,
    on_listening: Callable[[str], object] = lambda address: None,
) -> None:
    """Serve datasets until SIGTERM or Ctrl-C. Running requests then get ten seconds to finish.

    If some do not, or threads of the HTTP server may still run, the process ends here, with the status of the signal.

    Args:
        root: URL of the folder of datasets.
        host: address to listen on; without a token, a loopback address.
        port: to listen on; 0 chooses a free one.
        token_file: contains the token.
        limits: of requests and connections.
        certificate: for https; ``None`` serves http.
        storage_options: for the store.
        on_listening: called with ``host:port`` when connections are accepted.

    Raises:
        UrlError: for a root that cannot be written to.
        ServiceError: for an address that others can reach, without a token; an address in use; a token or a certificate
            that cannot be read; a root that another process serves.
        KeyboardInterrupt: after Ctrl-C, when the running requests have ended.
    """
    token = None if token_file is None else read_token(token_file)
    if token is None and not is_loopback(host):
        raise ServiceError(
            f"--host {host} is reachable for others, who could then read, replace and delete all datasets. Pass "
            "--token-file, or leave --host at 127.0.0.1."
        )
    if certificate is not None:
        require_certificate(certificate)
    signals, all_ended = StopSignals(), True
    with signals.handled():
        app = make_app(root, token=token, limits=limits, storage_options=storage_options)
        limits = within_descriptors(limits)
        with listen(host, port, limits) as listening:
            port = listening.getsockname()[1]
            shown = f"{f'[{host}]' if ':' in host else host}:{port}"
            with contextlib.suppress(asyncio.CancelledError):  # by a signal before all had started
                all_ended = asyncio.run(
                    _serve(app, listening, limits, certificate, signals, on_listening=lambda: on_listening(shown))
                )
        if not all_ended:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(SIGINT_STATUS if signals.interrupted else 0)  # threads would disturb the interpreter's end
        if signals.interrupted:
            raise KeyboardInterrupt


async def _serve(
    app: ASGIApp,
    listening: socket.socket,
    limits: ServiceLimits,
    certificate: Certificate | None,
    signals: StopSignals,
    *,
    on_listening: Callable[[], object],
) -> bool:
    """Serve until a signal comes. Returns whether all requests and threads of the server have ended then."""
    serving = asyncio.current_task()
    assert serving is not None
    server: HttpServer | None = None

    def end() -> None:
        if server is None:
            serving.cancel()
        else:
            state[STOPPING].set()  # long work ends now, so that its requests do
            server.end()

    signals.calling(end)
    async with lifespan(app) as state:
        server = HttpServer(app, listening, limits, certificate)
        on_listening()
        all_ended = await server.run()
    if not all_ended:  # they are cancelled now, which the server's own future does not expect
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    return all_ended


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
