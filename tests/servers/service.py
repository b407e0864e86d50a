"""The dataset service as a process of its own, on loopback."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

_START_S = 60


class Service:
    """A service that runs.

    Args:
        root: URL of its datasets.
        arguments: more of ``torchdata-remote serve``'s.
        port: 0 takes a free one.
        environment: of the process; this one's by default.
    """

    def __init__(
        self, root: str | Path, *arguments: str, port: int = 0, environment: Mapping[str, str] | None = None
    ) -> None:
        command = [sys.executable, "-m", "torchdata_remote.cli", "serve", "--root", str(root), "--port", str(port)]
        self.process = subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, text=True, env=environment)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()  # it is printed once connections are taken
        if not line.startswith("http://"):
            self.process.kill()
            raise RuntimeError(f"the service did not start: {line!r}, status {self.process.wait(_START_S)}")
        self.address = line.removeprefix("http://").partition("/")[0]

    @property
    def url(self) -> str:
        """Of the service, without a slash."""
        return f"http://{self.address}"

    def kill(self) -> None:
        """As the kernel does it, when memory is out."""
        self.process.kill()
        self.process.wait(_START_S)

    def stop(self) -> int:
        """As Kubernetes does it; returns the exit status."""
        self.process.terminate()
        try:
            return self.process.wait(_START_S)
        finally:
            self.process.kill()
            assert self.process.stdout is not None
            self.process.stdout.close()


@contextlib.contextmanager
def running_service(root: str | Path, *arguments: str, token_file: Path | None = None) -> Iterator[str]:
    """A service while the block runs; its ``host:port``."""
    if token_file is not None:
        arguments = (*arguments, "--token-file", str(token_file))
    service = Service(root, *arguments)
    try:
        yield service.address
    finally:
        service.stop()
