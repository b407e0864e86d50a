"""TLS in front of a server, by a certificate of a private authority."""

from __future__ import annotations

import re
import socket
import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import trustme

from tests.servers.threaded import in_thread

HOST = (
    "store-of-company"  # which only the proxy of ``company_proxy`` knows; moto takes a part before a dot for a bucket
)
_AGENT = re.compile(rb"\r\nuser-agent: ([^\r]*)", re.IGNORECASE)


@dataclass
class TlsFront:
    """A running front.

    Args:
        port: on 127.0.0.1, for which the certificate holds; for ``HOST`` too.
        ca_file: certificate of the authority.
        client_files: certificate and key of a client that the front accepts.
        agents: User-Agent of each request.
    """

    port: int
    ca_file: str
    client_files: tuple[str, str]
    agents: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def taken(self) -> set[str]:
        """Return which libraries have sent requests, and forget them."""
        found, self.agents = self.agents, []
        return {"obstore" if agent.startswith("object_store") else "botocore" for agent in found}


@contextmanager
def tls_front(endpoint_url: str, folder: Path, *, needs_client: bool = False) -> Iterator[TlsFront]:
    """Run a front until the block ends.

    Args:
        endpoint_url: of the server behind it, on this machine.
        folder: for the certificates.
        needs_client: whether clients must have a certificate of the same authority.
    """
    authority = trustme.CA()
    ca_file, names = folder / "authority.pem", ("client.pem", "client.key")
    authority.cert_pem.write_to_path(str(ca_file))
    client = authority.issue_cert("trainer@company.test")
    client.cert_chain_pems[0].write_to_path(str(folder / names[0]))
    client.private_key_pem.write_to_path(str(folder / names[1]))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1", HOST).configure_cert(context)
    if needs_client:
        context.verify_mode = ssl.CERT_REQUIRED
        authority.configure_trust(context)
    host, port = endpoint_url.rpartition("/")[2].split(":")

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            # Errors are clients that do not trust the certificate, or go
            with (
                suppress(OSError),
                context.wrap_socket(self.request, server_side=True) as near,
                socket.create_connection((host, int(port))) as far,
            ):
                back = threading.Thread(target=_copy, args=(far, near, None), daemon=True)
                back.start()
                _copy(near, far, running.agents)
                back.join()

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads, request_queue_size = True, 128

    server = Server(("127.0.0.1", 0), Handler)
    running = TlsFront(server.server_address[1], str(ca_file), (str(folder / names[0]), str(folder / names[1])))
    with in_thread(server):
        yield running


def _copy(source: socket.socket, target: socket.socket, agents: list[str] | None) -> None:
    """Copy until the source ends or either breaks; the end of one direction is the end of both."""
    with suppress(OSError):
        while data := source.recv(1 << 16):
            if agents is not None:
                agents.extend(found.decode() for found in _AGENT.findall(data))
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)
