"""The http proxy of a company (proxy.py): it asks for a password, and knows hosts that nothing else knows."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import trustme

from tests.servers.s3 import process, wait_until
from tests.support.ports import free_port

USER, PASSWORD = "trainer", "s3cret-of-proxy"
_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class CompanyProxy:
    """A running proxy.

    Args:
        url: without a password.
        log: what it has done.
        ca_file: the authority of an https proxy.
    """

    url: str
    log: Path
    ca_file: str

    @property
    def with_password(self) -> str:
        scheme, _, host = self.url.partition("://")
        return f"{scheme}://{USER}:{PASSWORD}@{host}"


@contextmanager
def company_proxy(folder: Path, *, tls: bool = False) -> Iterator[CompanyProxy]:
    """Run a proxy until the block ends.

    Args:
        folder: for its log and certificates.
        tls: whether it is reached by TLS.
    """
    port, log, authority = free_port(), folder / "proxy.log", trustme.CA()
    ca_file, certificate, key = (str(folder / name) for name in ("proxy-ca.pem", "proxy.pem", "proxy.key"))
    authority.cert_pem.write_to_path(ca_file)
    own = authority.issue_cert("127.0.0.1")
    own.cert_chain_pems[0].write_to_path(certificate)
    own.private_key_pem.write_to_path(key)
    command = [sys.executable, "-m", "proxy", "--hostname", "127.0.0.1", "--port", str(port)]
    command += ["--num-workers", "1", "--num-acceptors", "1", "--data-dir", str(folder), "--log-level", "INFO"]
    command += ["--basic-auth", f"{USER}:{PASSWORD}", "--plugins", "tests.servers.private_hosts.PrivateHosts"]
    command += ["--cert-file", certificate, "--key-file", key] if tls else []
    environment = {**os.environ, "PYTHONPATH": str(_ROOT)}
    with process(*command, log=log, environment=environment) as running:

        def is_ready() -> bool:
            if running.poll() is not None:
                raise RuntimeError(f"proxy.py has ended: {log.read_text()}")
            return _takes_connections(port)

        wait_until(is_ready, "proxy.py")
        yield CompanyProxy(f"{'https' if tls else 'http'}://127.0.0.1:{port}", log, ca_file)


def _takes_connections(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1):
            return True
    except OSError:
        return False
