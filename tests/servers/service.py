"""The dataset service in a subprocess, on loopback."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

_START_S = 60
_STOP_S = 200  # requests to a store that stand still are given up after 30 s, and repeated


class Service:
    """A running service.

    Args:
        root: URL of its datasets.
        arguments: further ones of ``torchdata-remote serve``.
        port: 0 chooses a free one.
        environment: of the process; by default that of this process.
        prefix: of the command, such as one that sets limits.
        stderr: receives its messages; by default those of this process do.
    """

    def __init__(
        self,
        root: str | Path,
        *arguments: str,
        port: int = 0,
        environment: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
        stderr: IO[str] | None = None,
    ) -> None:
        command = [
            *prefix,
            sys.executable,
            "-m",
            "torchdata_remote.cli",
            "serve",
            "--root",
            str(root),
            "--port",
            str(port),
        ]
        self.process = subprocess.Popen(
            [*command, *arguments], stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()  # printed once connections are accepted
        if not line.startswith(("http://", "https://")):
            self.process.kill()
            raise RuntimeError(f"the service did not start: {line!r}, status {self.process.wait(_START_S)}")
        self.address = line.partition("://")[2].partition("/")[0]

    @property
    def url(self) -> str:
        """URL of the service, without a slash at the end."""
        return f"http://{self.address}"

    def num_connections(self) -> int:
        """Sockets that the process has open (Linux)."""
        links, folder = list[str](), f"/proc/{self.process.pid}/fd"
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):
                links.append(os.readlink(f"{folder}/{name}"))
        return sum(link.startswith("socket:") for link in links)

    def kill(self) -> None:
        """Kill the process, like the kernel when memory is exhausted."""
        self.process.kill()
        self.process.wait(_START_S)

    def stop(self) -> int:
        """Terminate the process, like Kubernetes, and return its exit status."""
        self.process.terminate()
        try:
            return self.process.wait(_STOP_S)
        finally:
            self.process.kill()
            assert self.process.stdout is not None
            self.process.stdout.close()


@contextlib.contextmanager
def running_service(root: str | Path, *arguments: str, token_file: Path | None = None) -> Iterator[str]:
    """Run a service while the block runs; yields its ``host:port``."""
    if token_file is not None:
        arguments = (*arguments, "--token-file", str(token_file))
    service = Service(root, *arguments)
    try:
        yield service.address
    finally:
        service.stop()
