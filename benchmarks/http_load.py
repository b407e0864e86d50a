"""Send HTTP requests from many connections at once by wrk, which needs little of the processors that the server has."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from slow_store import nginx_path

_NGINX = """
{user}
daemon off; pid {work}/pid; error_log {work}/error.log; worker_processes {processes};
events {{ worker_connections 4096; }}
http {{
  access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000000;
  client_body_temp_path {work}/a; proxy_temp_path {work}/b; fastcgi_temp_path {work}/c; uwsgi_temp_path {work}/d;
  scgi_temp_path {work}/e;
  server {{ listen 127.0.0.1:{port} backlog=2048; root {root}; }}
}}
"""
_SCRIPT = """
local number = {seed}
local paths = {{ {paths} }}
request = function()
  number = number + 1
  local headers = {{}}
  if {range_bytes} > 0 then
    local first = (number * 7919 % {num_ranges}) * {range_bytes}
    headers["Range"] = "bytes=" .. first .. "-" .. first + {range_bytes} - 1
  end
  return wrk.format("GET", paths[number % {num_paths} + 1], headers)
end
"""
_UNITS_MS = {"us": 1e-3, "ms": 1.0, "s": 1e3, "m": 60e3}


@dataclass(frozen=True)
class Load:
    """What is asked for.

    Args:
        shown: in tables.
        num_files: of ``file_bytes`` each.
        file_bytes: of a file.
        num_clients: connections, each with one request at a time.
        range_bytes: of a request; 0 asks for whole files.
    """

    shown: str
    num_files: int
    file_bytes: int
    num_clients: int
    range_bytes: int = 0

    @property
    def request_bytes(self) -> int:
        return self.range_bytes or self.file_bytes


@dataclass(frozen=True)
class Answered:
    """Requests in a second, and milliseconds that 99 % of them took at most."""

    per_s: float
    p99_ms: float


def send(load: Load, url: str, paths: list[str], seconds: float, work: Path) -> Answered:
    """Send requests for ``seconds``.

    Raises:
        RuntimeError: if one fails.
    """
    script = work / "load.lua"
    quoted = ", ".join(f'"{path}"' for path in paths)
    ranges = max(1, load.file_bytes // load.range_bytes) if load.range_bytes else 1
    values = {"range_bytes": load.range_bytes, "num_ranges": ranges, "num_paths": len(paths), "seed": 0}
    script.write_text(_SCRIPT.format(paths=quoted, **values))
    wrk = shutil.which("wrk")
    if wrk is None:
        raise RuntimeError("wrk is missing: apt-get install wrk")
    command = [wrk, "-t1", f"-c{load.num_clients}", f"-d{seconds:.0f}s", "--timeout", "60s", "--latency", "-s"]
    shown = subprocess.run([*command, str(script), url], capture_output=True, text=True, check=True).stdout
    if "Non-2xx" in shown or "Socket errors" in shown:
        raise RuntimeError(f"requests to {url} failed:\n{shown}")
    p99 = re.search(r"99%\s+([\d.]+)(us|ms|s|m)\b", shown)
    per_s = re.search(r"Requests/sec:\s+([\d.]+)", shown)
    if p99 is None or per_s is None:
        raise RuntimeError(f"wrk printed something else:\n{shown}")
    return Answered(float(per_s[1]), float(p99[1]) * _UNITS_MS[p99[2]])


@contextmanager
def nginx(root: Path, processes: int, work: Path) -> Iterator[str]:
    """Run nginx with plain files; yields its URL."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    work.mkdir()
    user = "user root;" if Path("/root").owner() == "root" else ""
    config = work / "nginx.conf"
    config.write_text(_NGINX.format(user=user, work=work, processes=processes, port=port, root=root))
    process = subprocess.Popen([nginx_path(), "-c", str(config), "-e", str(work / "error.log")])
    try:
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except ConnectionRefusedError:
                time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)
