"""An FTP server of a folder."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pyftpdlib.authorizers import DummyAuthorizer
from pyftpdlib.handlers import FTPHandler
from pyftpdlib.ioloop import IOLoop
from pyftpdlib.servers import FTPServer


@dataclass
class Ftp:
    """A running server."""

    url: str
    commands: list[str] = field(default_factory=list)
    silent: threading.Event = field(default_factory=threading.Event)  # if set, the server does not reply
    num_refused: int = 0  # number of the next MLSD commands that are refused by 425


@contextmanager
def ftp_server(folder: Path) -> Iterator[Ftp]:
    """Serve a folder, for reading and writing without a password, until the block ends."""
    running = Ftp("")
    authorizer = DummyAuthorizer()
    authorizer.add_anonymous(str(folder), perm="elradfmwMT")

    class Handler(FTPHandler):  # type: ignore[misc]  # pyftpdlib has no types
        def pre_process_command(self, line: str, command: str, argument: str) -> None:
            running.commands.append(command)
            if running.silent.is_set():
                return
            if command == "MLSD" and running.num_refused:
                running.num_refused -= 1
                self.respond("425 Cannot open data connection.")
                return
            super().pre_process_command(line, command, argument)

    Handler.authorizer = authorizer
    # Its own loop: the default one is shared, and two threads that drive it close each other's sockets.
    server = FTPServer(("127.0.0.1", 0), Handler, ioloop=IOLoop())
    running.url = f"ftp://127.0.0.1:{server.address[1]}"
    ended = threading.Event()

    def serve() -> None:
        while not ended.is_set():
            server.serve_forever(timeout=0.01, blocking=False)
        server.close_all()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield running
    finally:
        ended.set()
        thread.join()
