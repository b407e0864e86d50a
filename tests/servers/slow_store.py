"""An S3-like store on this machine with a fixed answer time and a fixed bandwidth per connection: nginx and some Lua.

It serves a folder as ``/bucket/key``, answers ListObjectsV2 in pages of 1,000 keys as S3 does, and counts requests, so
that what a client sent is measured where it arrives. ETags and ranges are nginx's own. It only reads.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

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
    listen 127.0.0.1:{port} backlog=4096; root {root};
    location = /__requests {{ content_by_lua_file {work}/requests.lua; }}
    location ~ ^/[^/]+/?$ {{
      access_by_lua_block {{ ngx.shared.requests:incr("list", 1, 0) ngx.sleep({latency_s}) }}
      content_by_lua_file {work}/list.lua;
    }}
    location / {{
      access_by_lua_block {{ ngx.shared.requests:incr("object", 1, 0) ngx.sleep({latency_s}) }}
      {bandwidth}
    }}
  }}
}}
"""

LOAD = """
local buckets = {}
for line in io.lines("WORK/index") do
  local bucket, key, size, etag, modified = line:match("^(%S+) (%S+) (%S+) (%S+) (%S+)$")
  buckets[bucket] = buckets[bucket] or {}
  table.insert(buckets[bucket], {key = key, size = size, etag = etag, modified = modified})
end
package.loaded.buckets = buckets
"""

REQUESTS = """
if ngx.req.get_method() == "DELETE" then ngx.shared.requests:flush_all() end
local function count(kind) return ngx.shared.requests:get(kind) or 0 end
ngx.say(string.format('{"object": %d, "list": %d}', count("object"), count("list")))
"""

LIST = """
local name = ngx.var.uri:match("^/([^/]+)")
local bucket, args = package.loaded.buckets[name], ngx.req.get_uri_args()
ngx.header.content_type = "application/xml"
if not bucket then
  ngx.status = 404
  ngx.say("<Error><Code>NoSuchBucket</Code><Message>There is no such bucket</Message></Error>")
  return
end
local function text(value) return type(value) == "string" and value or "" end
local prefix, delimiter, after = text(args.prefix), text(args.delimiter), text(args["start-after"])
local limit = math.min(tonumber(args["max-keys"]) or 1000, 1000)
local out, count, next_index = {}, 0, nil
local function first_index(from, is_before)  -- of the first key that is not before
  local low, high = from, #bucket + 1
  while low < high do
    local middle = math.floor((low + high) / 2)
    if is_before(bucket[middle].key) then low = middle + 1 else high = middle end
  end
  return low
end
local i = tonumber(args["continuation-token"])
  or first_index(1, function(key) return key < prefix or (after ~= "" and key <= after) end)
while i <= #bucket do
  local entry = bucket[i]
  if entry.key:sub(1, #prefix) ~= prefix then break end
  if count == limit then next_index = i break end
  count = count + 1
  local at = delimiter ~= "" and entry.key:find(delimiter, #prefix + 1, true)
  if at then
    local folder = entry.key:sub(1, at + #delimiter - 1)
    out[count] = "<CommonPrefixes><Prefix>" .. folder .. "</Prefix></CommonPrefixes>"
    i = first_index(i, function(key) return key:sub(1, #folder) <= folder end)
  else
    out[count] = "<Contents><Key>" .. entry.key .. "</Key><LastModified>" .. entry.modified
      .. "</LastModified><ETag>&quot;" .. entry.etag .. "&quot;</ETag><Size>"
      .. entry.size .. "</Size><StorageClass>STANDARD</StorageClass></Contents>"
    i = i + 1
  end
end
ngx.print(
  '<?xml version="1.0" encoding="UTF-8"?>',
  '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">',
  "<Name>", name, "</Name><Prefix>", prefix, "</Prefix><KeyCount>", count, "</KeyCount><MaxKeys>", limit, "</MaxKeys>",
  "<IsTruncated>", tostring(next_index ~= nil), "</IsTruncated>",
  next_index and "<NextContinuationToken>" .. next_index .. "</NextContinuationToken>" or "",
  table.concat(out), "</ListBucketResult>"
)
"""


class StoreNotInstalledError(RuntimeError):
    """nginx or its Lua module is missing."""


@dataclass(frozen=True)
class SlowStore:
    """A running store."""

    endpoint_url: str

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
        return self._requests("GET")

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
) -> Iterator[SlowStore]:
    """Serve a folder until the block ends.

    Args:
        folder: its subfolders are the buckets. What lies there when the store starts is what it lists.
        latency_s: seconds before each answer.
        connection_bytes_per_s: bandwidth of one connection; ``None`` leaves it to the machine.
        listed: names (``bucket/key``) that are listed instead, sorted, and that cannot be read: a million of them are
            in memory within seconds.

    Raises:
        StoreNotInstalledError: without nginx or its Lua module.
    """
    nginx = nginx_path()
    with tempfile.TemporaryDirectory(prefix="slow-store-") as temporary:
        work, port = Path(temporary), free_port()
        (work / "index").write_text("".join(index_lines(folder) if listed is None else listed_lines(listed)))
        for name, script in (("load", LOAD), ("requests", REQUESTS), ("list", LIST)):
            (work / f"{name}.lua").write_text(script.replace("WORK", str(work)))
        rate = connection_bytes_per_s
        pace = f"limit_rate {rate}; sendfile_max_chunk {int(rate * PACE_S)};" if rate else ""
        (work / "nginx.conf").write_text(
            CONFIG.format(
                modules="\n".join(f"load_module {MODULES / name};" for name in MODULE_NAMES),
                user="user root;" if os.geteuid() == 0 else "",  # by default it gives up root
                temporary=" ".join(f"{name}_temp_path {work}/{name};" for name in TEMPORARY),
                work=work,
                port=port,
                root=folder.resolve(),
                latency_s=latency_s,
                bandwidth=pace,
            )
        )
        command = (nginx, "-p", str(work), "-e", str(work / "error.log"), "-c", str(work / "nginx.conf"))
        with subprocess.Popen(command) as running:
            try:
                wait_for(port, running, work / "error.log")
                yield SlowStore(f"http://127.0.0.1:{port}")
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


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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
