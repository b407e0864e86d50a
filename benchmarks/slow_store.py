"""A store on this machine with a fixed answer time and a fixed bandwidth per connection: nginx and some Lua.

It serves a folder as S3 does, as both APIs of Google Cloud Storage do, and as Azure does, lists it in pages of 1,000
keys (Azure: 5,000), and counts requests, so that what a client sent is measured where it arrives. ETags and ranges are
nginx's own. It only reads, and takes any credentials.

Run a command with such a store as its S3 server; the folders in FOLDER are the buckets:

    python benchmarks/slow_store.py FOLDER torchdata-remote bench s3://bucket/
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from slow_store_scripts import SCRIPTS

sys.path.append(str(Path(__file__).resolve().parent.parent))

from tests.support.ports import free_port

__all__ = ["SlowStore", "StoreNotInstalledError", "free_port", "nginx_path", "slow_store", "takes_connections"]

START_S = 20.0
MODULES = Path("/usr/lib/nginx/modules")
MODULE_NAMES = ("ndk_http_module.so", "ngx_http_lua_module.so")
TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
PACE_S = 0.008  # nginx paces a connection by this much of its bandwidth at a time; its clock ticks in whole ms
WITHOUT_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))
PLAIN_KEY = re.compile(r"[A-Za-z0-9_./-]+")  # needs no escaping, neither in XML nor in a URL

CONFIG = """
{modules}
{user}
daemon off; pid {work}/pid; error_log {work}/error.log; worker_processes 1; worker_rlimit_nofile 16384;
events {{ worker_connections 8192; }}
http {{
  access_log off; default_type application/octet-stream; sendfile on; open_file_cache max=40000 inactive=1h;
  keepalive_requests 1000000000; keepalive_timeout 1h; keepalive_time 24h;
  {temporary}
  lua_shared_dict requests 1m;
  init_by_lua_file {work}/load.lua;
  server {{
    listen 127.0.0.1:{port} backlog=4096; {tls} root {root};
    location = /__requests {{ content_by_lua_file {work}/requests.lua; }}
    location ~ ^/storage/v1/b/[^/]+/o/?$ {{ {listed} content_by_lua_file {work}/list_json.lua; }}
    location ~ ^/(?:download/)?storage/v1/b/([^/]+)/o/(.+)$ {{
      access_by_lua_file {work}/object_json.lua; alias {root}/$1/$2; {bandwidth}
    }}
    location ~ ^/{account}/[^/]+/?$ {{ {listed} content_by_lua_file {work}/list_azure.lua; }}
    location ~ ^/{account}/([^/]+)/(.+)$ {{
      access_by_lua_file {work}/object_azure.lua; alias {root}/$1/$2; {bandwidth}
    }}
    location ~ ^/[^/]+/?$ {{ {listed} content_by_lua_file {work}/list.lua; }}
    location / {{
      access_by_lua_block {{ ngx.shared.requests:incr("object", 1, 0) ngx.sleep({latency_s}) }}
      log_by_lua_block {{ ngx.shared.requests:incr("bytes", tonumber(ngx.var.body_bytes_sent), 0) }}
      {bandwidth}
    }}
  }}
}}
"""
LISTED = 'access_by_lua_block {{ ngx.shared.requests:incr("list", 1, 0) ngx.sleep({latency_s}) }}'
TLS = "listen 127.0.0.1:{port} ssl backlog=4096; ssl_certificate {certificate}; ssl_certificate_key {certificate};"
AZURE_ACCOUNT = "devstoreaccount1"


class StoreNotInstalledError(RuntimeError):
    """nginx or its Lua module is missing."""


@dataclass(frozen=True)
class SlowStore:
    """A running store; ``https_url`` is its address by TLS, if it was given a certificate."""

    endpoint_url: str
    https_url: str = ""

    @property
    def gs_options(self) -> dict[str, str]:
        """Options for ``gs://``, as gcsfs names them."""
        return {"token": "anon", "endpoint_url": self.endpoint_url}

    @property
    def az_options(self) -> dict[str, str]:
        """Options for ``az://``, as adlfs names them; the key is a dummy."""
        blobs, key = f"{self.endpoint_url}/{AZURE_ACCOUNT}", "bm90aGluZw=="
        account = f"AccountName={AZURE_ACCOUNT};AccountKey={key}"
        return {"connection_string": f"DefaultEndpointsProtocol=http;{account};BlobEndpoint={blobs};"}

    @property
    def environment(self) -> dict[str, str]:
        """What points S3 clients to it; the keys are dummies, nobody checks them."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint_url,
            "AWS_ACCESS_KEY_ID": "nobody",
            "AWS_SECRET_ACCESS_KEY": "nothing",
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "no_proxy": "127.0.0.1",
        }

    def count_requests(self) -> dict[str, int]:
        """Requests for objects and for listings since the last reset; this one is not among them."""
        return {kind: count for kind, count in self._requests("GET").items() if kind != "bytes"}

    def count_bytes(self) -> int:
        """Bytes of the bodies of responses to S3's requests for objects since the last reset."""
        return self._requests("GET")["bytes"]

    def reset_requests(self) -> None:
        self._requests("DELETE")

    def _requests(self, method: str) -> dict[str, int]:
        request = urllib.request.Request(f"{self.endpoint_url}/__requests", method=method)
        with WITHOUT_PROXY.open(request, timeout=10) as answer:
            counts: dict[str, int] = json.load(answer)
        return counts


@contextmanager
def slow_store(
    folder: Path,
    *,
    latency_s: float = 0.020,
    connection_bytes_per_s: int | None = None,
    listed: Iterable[str] | None = None,
    certificate: Path | None = None,
) -> Iterator[SlowStore]:
    """Serve a folder until the block ends.

    Args:
        folder: its subfolders are the buckets. What lies there when the store starts is what it lists.
        latency_s: seconds before each answer.
        connection_bytes_per_s: bandwidth of one connection; ``None`` leaves it to the machine.
        listed: names (``bucket/key``) that are listed instead, sorted, and that cannot be read: a million of them are
            in memory within seconds.
        certificate: a file in PEM with the key and the certificates of 127.0.0.1, to serve it by TLS too.

    Raises:
        StoreNotInstalledError: without nginx or its Lua module.
    """
    nginx = nginx_path()
    with tempfile.TemporaryDirectory(prefix="slow-store-") as temporary:
        work, port = Path(temporary), free_port()
        (work / "index").write_text("".join(index_lines(folder) if listed is None else listed_lines(listed)))
        for name, script in SCRIPTS.items():
            (work / f"{name}.lua").write_text(script.replace("WORK", str(work)).replace("LATENCY", str(latency_s)))
        rate = connection_bytes_per_s
        tls_port = None if certificate is None else free_port()
        tls = "" if certificate is None else TLS.format(port=tls_port, certificate=certificate)
        pace = f"limit_rate {rate}; sendfile_max_chunk {int(rate * PACE_S)};" if rate else ""
        (work / "nginx.conf").write_text(
            CONFIG.format(
                modules="\n".join(f"load_module {MODULES / name};" for name in MODULE_NAMES),
                user="user root;" if os.geteuid() == 0 else "",  # by default it gives up root
                temporary=" ".join(f"{name}_temp_path {work}/{name};" for name in TEMPORARY),
                work=work,
                port=port,
                root=folder.resolve(),
                tls=tls,
                account=AZURE_ACCOUNT,
                listed=LISTED.format(latency_s=latency_s),
                latency_s=latency_s,
                bandwidth=pace,
            )
        )
        command = (nginx, "-p", str(work), "-e", str(work / "error.log"), "-c", str(work / "nginx.conf"))
        with subprocess.Popen(command) as running:
            try:
                wait_for(port, running, work / "error.log")
                https_url = "" if tls_port is None else f"https://127.0.0.1:{tls_port}"
                yield SlowStore(f"http://127.0.0.1:{port}", https_url)
            finally:
                running.terminate()


def nginx_path() -> str:
    """Where nginx is."""
    found = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if found is None or not all((MODULES / name).exists() for name in MODULE_NAMES):
        raise StoreNotInstalledError(
            f"This benchmark's store is nginx with Lua, and {'its Lua module' if found else 'nginx'} is not here: "
            "apt-get install nginx libnginx-mod-http-lua"
        )
    return found


def index_lines(folder: Path) -> Iterator[str]:
    """One line an object, sorted by key within its bucket: bucket, key, size, the ETag as nginx sends it, time."""
    for bucket in sorted(folder.iterdir()):
        files = {str(path.relative_to(bucket)): path.stat() for path in bucket.rglob("*") if path.is_file()}
        for key, stat in sorted(files.items()):
            if PLAIN_KEY.fullmatch(key) is None:
                raise ValueError(f"{key!r}: this store knows names of letters, digits and _ . / - only.")
            modified = datetime.fromtimestamp(int(stat.st_mtime), timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.000Z")
            etag = f"{int(stat.st_mtime):x}-{stat.st_size:x}"
            yield f"{bucket.name} {key} {stat.st_size} {etag} {modified}\n"


def listed_lines(names: Iterable[str]) -> Iterator[str]:
    """Such lines of objects that are listed only: each has its own size and ETag, as long as S3's."""
    for number, name in enumerate(names):
        bucket, _, key = name.partition("/")
        if PLAIN_KEY.fullmatch(name) is None:
            raise ValueError(f"{name!r}: this store knows names of letters, digits and _ . / - only.")
        etag = f"{number * 0x9E3779B97F4A7C15F39CC0605CEDC835 % (1 << 128):032x}"
        yield f"{bucket} {key} {100_000 + number % 9_973} {etag} 2026-01-02T03:04:{number % 60:02d}.000Z\n"


def takes_connections(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def wait_for(port: int, running: subprocess.Popen[bytes], log: Path) -> None:
    """Until it takes connections."""
    deadline = time.monotonic() + START_S
    while not takes_connections(port):
        if running.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"nginx does not answer on port {port}: {log.read_text()}")
        time.sleep(0.02)


def main() -> int:
    parser = argparse.ArgumentParser(description="Run a command with an S3 server that answers late.")
    parser.add_argument("--latency-ms", type=float, default=20.0, help="before each answer (default: %(default)g)")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the folders in it are the buckets")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND", help="and its arguments")
    options = parser.parse_args()
    with slow_store(options.folder, latency_s=options.latency_ms / 1e3) as store:
        return subprocess.run(options.command, env={**os.environ, **store.environment}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
