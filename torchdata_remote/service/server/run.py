"""Run the service as a process."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...errors import ServiceError
from .app import make_app
from .limits import ServiceLimits
from .middleware import is_loopback

_MIN_TOKEN_CHARACTERS = 16
_SHUTDOWN_S = 10


def serve(
    root: str,
    *,
    host: str,
    port: int,
    token_file: str | None,
    limits: ServiceLimits,
    storage_options: Mapping[str, Any] | None = None,
    on_listening: Callable[[str], object] = lambda address: None,
) -> None:
    """Serve datasets until SIGTERM or Ctrl-C. Running requests then get ten seconds to finish.

    Args:
        root: URL of the folder of datasets.
        host: address to listen on; without a token, a loopback address.
        port: to listen on; 0 chooses a free one.
        token_file: contains the token.
        limits: of requests.
        storage_options: for the store.
        on_listening: called with ``host:port`` when connections are accepted.

    Raises:
        UrlError: for a root that cannot be written to.
        ServiceError: for an address that others can reach, without a token; an address in use; a token that cannot be
            read; a root that another process serves.
        KeyboardInterrupt: after Ctrl-C, when the running requests have ended.
    """
    token = None if token_file is None else read_token(token_file)
    if token is None and not is_loopback(host):
        raise ServiceError(
            f"--host {host} is reachable for others, who could then read, replace and delete all datasets. Pass "
            "--token-file, or leave --host at 127.0.0.1."
        )
    started = _StartupErrors(make_app(root, token=token, limits=limits, storage_options=storage_options))
    config = uvicorn.Config(
        started,
        http="httptools",
        log_level="warning",
        timeout_graceful_shutdown=_SHUTDOWN_S,
        server_header=False,
        proxy_headers=False,
        backlog=2048,
        lifespan="on",
    )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, port))
        except OSError as error:
            raise ServiceError(
                f"{host}, port {port}: {error.strerror or error}. Choose another --port; 0 takes a free one."
            ) from error
        server = _Server(
            config, lambda: on_listening(f"{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}")
        )
        with contextlib.suppress(SystemExit):  # raised if the application does not start
            server.run(sockets=[listening])
    if server.interrupted:
        raise KeyboardInterrupt
    if not server.started:
        reason = started.failure or "see the log"
        raise ServiceError(f"{root} could not be served: {reason}") from started.failure


class _StartupErrors:
    """Keeps the error with which an application failed to start, instead of a traceback in the log."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.failure: Exception | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await self._app(scope, receive, send)
            return

        async def quiet(message: Message) -> None:
            await send({**message, "message": ""} if message["type"].endswith(".failed") else message)

        try:
            await self._app(scope, receive, quiet)
        except Exception as error:
            self.failure = error
            raise


class _Server(uvicorn.Server):
    """Reports when it accepts connections, and exits with status 0 after SIGTERM."""

    def __init__(self, config: uvicorn.Config, on_listening: Callable[[], object]) -> None:
        super().__init__(config)
        self._on_listening = on_listening
        self.interrupted = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_listening()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        # uvicorn would raise the signal again after the shutdown: the process would seem killed by SIGTERM, and Ctrl-C
        # would have no effect where a shell has made the process ignore SIGINT
        self.force_exit = self.interrupted and sig == signal.SIGINT
        self.interrupted = self.interrupted or sig == signal.SIGINT
        self.should_exit = True


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
