"""Servers of a folder that fsspec reads: ftp, sftp, WebDAV."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncssh
from cheroot import wsgi
from wsgidav.wsgidav_app import WsgiDAVApp

from tests.servers.ftp import ftp_server
from tests.servers.store_server import FolderPlace

_USER, _PASSWORD = "tests", "test-password"


class _Login(asyncssh.SSHServer):
    def __init__(self, connections: list[asyncssh.SSHServerConnection]) -> None:
        self.connections = connections

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self.connections.append(conn)

    def begin_auth(self, username: str) -> bool:
        return True

    def password_auth_supported(self) -> bool:
        return True

    def validate_password(self, username: str, password: str) -> bool:
        return (username, password) == (_USER, _PASSWORD)


@contextmanager
def sftp_places(folder: Path) -> Iterator[FolderPlace]:
    """Places of an SFTP server that knows one user."""
    logging.getLogger("asyncssh").setLevel(logging.ERROR)
    logging.getLogger("paramiko").setLevel(logging.ERROR)
    loop = asyncio.new_event_loop()
    connections: list[asyncssh.SSHServerConnection] = []  # of this server: each has a loop of its own

    async def start() -> asyncssh.SSHAcceptor:
        return await asyncssh.create_server(
            lambda: _Login(connections),
            "127.0.0.1",
            0,
            server_host_keys=[asyncssh.generate_private_key("ssh-ed25519")],
            sftp_factory=lambda channel: asyncssh.SFTPServer(channel, chroot=str(folder).encode()),
        )

    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    server = asyncio.run_coroutine_threadsafe(start(), loop).result(60)
    options = {"username": _USER, "password": _PASSWORD, "look_for_keys": False, "allow_agent": False}
    try:
        start_of_urls = f"sftp://127.0.0.1:{server.get_port()}/"
        yield FolderPlace("sftp", folder, start_of_urls, storage_options=options)
    finally:

        async def close() -> None:
            server.close()
            for connection in connections:
                connection.abort()
                await connection.wait_closed()
            await server.wait_closed()

        asyncio.run_coroutine_threadsafe(close(), loop).result(60)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
        loop.close()


@contextmanager
def webdav_places(folder: Path) -> Iterator[FolderPlace]:
    """Places of a WebDAV server without users."""
    app = WsgiDAVApp(
        {
            "provider_mapping": {"/": str(folder)},
            "simple_dc": {"user_mapping": {"*": True}},
            "verbose": 0,
            "logging": {"enable": False},
            "lock_storage": True,
        }
    )
    server = wsgi.Server(("127.0.0.1", 0), app, numthreads=4)
    server.prepare()
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{server.bind_addr[1]}"
    try:
        yield FolderPlace("webdav", folder, "webdav://", url, storage_options={"base_url": url})
    finally:
        server.stop()
        thread.join(60)


@contextmanager
def ftp_places(folder: Path) -> Iterator[FolderPlace]:
    """Places of an FTP server without users."""
    with ftp_server(folder) as server:
        yield FolderPlace("ftp", folder, f"{server.url}/")
