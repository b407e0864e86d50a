"""A proxy for http and, by CONNECT, for https: tinyproxy, which is written in C, with a thread for each connection.

``apt-get install tinyproxy``. One of Python would be measured itself.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slow_store import free_port, takes_connections

START_S = 10.0
CONFIG = """
Port {port}
Listen 127.0.0.1
Allow 127.0.0.1
Timeout 600
MaxClients 2048
LogLevel Critical
LogFile "{folder}/log"
PidFile "{folder}/pid"
"""


def has_proxy() -> bool:
    """Whether tinyproxy is installed."""
    return shutil.which("tinyproxy") is not None


@contextmanager
def connect_proxy() -> Iterator[str]:
    """Run it until the block ends; gives its URL."""
    with tempfile.TemporaryDirectory(prefix="proxy-") as folder:
        port, config = free_port(), Path(folder) / "tinyproxy.conf"
        config.write_text(CONFIG.format(port=port, folder=folder))
        with subprocess.Popen(["tinyproxy", "-d", "-c", str(config)], stdout=subprocess.DEVNULL) as running:
            try:
                deadline = time.monotonic() + START_S
                while not takes_connections(port):
                    if running.poll() is not None or time.monotonic() > deadline:
                        raise RuntimeError(f"tinyproxy does not answer on port {port}.")
                    time.sleep(0.02)
                yield f"http://127.0.0.1:{port}"
            finally:
                running.terminate()
