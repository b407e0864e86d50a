"""A proxy for http and, by CONNECT, for https: squid, which companies use, and which is written in C++.

``apt-get install squid``. One of Python would be measured itself. tinyproxy, which is smaller, leaves TCP_NODELAY off:
the last packet of a response by TLS waits for an acknowledgement, and small objects took twice the time.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slow_store import free_port, takes_connections

START_S = 20.0
CONFIG = """
http_port 127.0.0.1:{port}
http_access allow all
cache deny all
access_log none
cache_log /dev/null
pid_filename none
netdb_filename none
coredump_dir none
shutdown_lifetime 0 seconds
max_filedescriptors 4096
"""


def has_proxy() -> bool:
    """Whether squid is installed."""
    return shutil.which("squid") is not None


@contextmanager
def connect_proxy() -> Iterator[str]:
    """Run it until the block ends; gives its URL."""
    with tempfile.TemporaryDirectory(prefix="proxy-") as folder:
        port, config = free_port(), Path(folder) / "squid.conf"
        config.write_text(CONFIG.format(port=port))
        config.chmod(0o644)
        Path(folder).chmod(0o755)  # as root, squid reads it as another user
        # -n: the names of its shared memory, which another squid may have
        command = ["squid", "-N", "-n", f"bench{os.getpid()}", "-f", str(config)]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as running:
            try:
                deadline = time.monotonic() + START_S
                while not takes_connections(port):
                    if running.poll() is not None or time.monotonic() > deadline:
                        raise RuntimeError(f"squid does not answer on port {port}.")
                    time.sleep(0.02)
                yield f"http://127.0.0.1:{port}"
            finally:
                running.terminate()
