"""S3 servers for tests: moto, and Ceph's RADOS gateway if it is installed."""

from __future__ import annotations

import base64
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import botocore.session

from tests.support.ports import free_port

START_S = 90.0
KMS_KEY = "testkey-1"  # that Ceph has, for SSE-KMS
CEPH_START_S, CEPH_ATTEMPTS = 60.0, 4


@dataclass(frozen=True)
class S3Server:
    """A running server."""

    name: str
    endpoint_url: str
    key: str
    secret: str

    @property
    def storage_options(self) -> dict[str, Any]:
        return {"endpoint_url": self.endpoint_url, "key": self.key, "secret": self.secret}

    @property
    def environment(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.endpoint_url,
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
        }

    def client(self) -> Any:
        """A botocore client that tests share, independent of the package under test."""
        return _client_of(self)

    def new_bucket(self) -> str:
        """Create a bucket with a new name; Ceph accepts no location constraint."""
        name = f"test-{uuid.uuid4().hex[:12]}"
        self.client().create_bucket(Bucket=name)
        return name


@functools.lru_cache(maxsize=8)  # servers of one test come and go
def _client_of(server: S3Server) -> Any:
    """Creating a client takes 0.02 s, and 0.2 s more with a session of its own, which reads the description of S3."""
    return _session().create_client(
        "s3",
        region_name="us-east-1",
        endpoint_url=server.endpoint_url,
        aws_access_key_id=server.key,
        aws_secret_access_key=server.secret,
    )


@functools.cache
def _session() -> Any:
    return botocore.session.Session()


def wait_until(ready: Callable[[], bool], what: str, timeout_s: float = START_S) -> None:
    """Poll a server that does not report when it is ready."""
    deadline = time.monotonic() + timeout_s
    while not ready():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not answer within {timeout_s:.0f} s")
        time.sleep(0.1)


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


@contextmanager
def process(*command: str, log: Path, environment: dict[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process while the block runs."""
    with (
        log.open("wb") as output,
        subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment) as running,
    ):
        try:
            yield running
        finally:
            running.terminate()
            try:
                running.wait(10)
            except subprocess.TimeoutExpired:
                running.kill()


# moto looks whether an object exists and writes it in two steps: one request at a time does, as in a store
MOTO = """
import threading
from moto.s3.responses import S3Response
from moto.server import main

lock, put_object = threading.Lock(), S3Response.put_object

def put_one(self):
    with lock:
        return put_object(self)

S3Response.put_object = put_one
main()
"""


@contextmanager
def moto_server(folder: Path) -> Iterator[S3Server]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with process(sys.executable, "-c", MOTO, "-H", "127.0.0.1", "-p", str(port), log=folder / "moto.log") as running:
        wait_until(lambda: running.poll() is not None or answers(url), "moto's server")
        assert running.poll() is None, (folder / "moto.log").read_text()
        yield S3Server("moto", url, "test-key", "test-secret")


def ceph_is_installed() -> bool:
    return all(shutil.which(name) for name in ("radosgw", "ceph-mon", "ceph-osd", "ceph", "radosgw-admin"))


@contextmanager
def ceph_server(folder: Path) -> Iterator[S3Server]:
    """One monitor, one OSD that keeps its data in memory, one RADOS gateway. Ready after about 15 s."""
    with ExitStack() as daemons:
        for attempt in range(1, CEPH_ATTEMPTS + 1):
            (folder / f"{attempt}").mkdir()
            try:
                server = start_ceph(folder / f"{attempt}", daemons)
                break
            except (AssertionError, TimeoutError, subprocess.TimeoutExpired):
                daemons.close()  # a port may be in use by now, or the machine too busy
                if attempt == CEPH_ATTEMPTS:
                    raise
        yield server


def start_ceph(folder: Path, daemons: ExitStack) -> S3Server:
    """Start the daemons, which run until ``daemons`` is closed."""
    mon_port, rgw_port = free_port(), free_port()
    cluster = str(uuid.uuid4())
    settings = {
        "fsid": cluster,
        "mon host": f"v1:127.0.0.1:{mon_port}",
        "mon initial members": "a",
        "mon data": folder / "mon",
        "mon data avail crit": 1,
        "mon allow pool size one": "true",
        "mon max pg per osd": 1000,
        "auth cluster required": "none",
        "auth service required": "none",
        "auth client required": "none",
        "osd data": folder / "osd",
        "osd objectstore": "memstore",
        "memstore device bytes": 2 << 30,
        "osd pool default size": 1,
        "osd pool default min size": 1,
        "osd pool default pg num": 8,
        "osd crush chooseleaf type": 0,
        "run dir": folder,
        "admin socket": folder / "$name.asok",
        "pid file": folder / "$name.pid",
        "log file": folder / "$name.log",
    }
    config = folder / "ceph.conf"
    lines = ["[global]", *(f"{name} = {value}" for name, value in settings.items())]
    lines += ["[client.rgw]", f"rgw frontends = beast endpoint=127.0.0.1:{rgw_port}"]
    lines += ["rgw crypt require ssl = false", "rgw crypt s3 kms backend = testing"]
    lines += [f"rgw crypt s3 kms encryption keys = {KMS_KEY}={base64.b64encode(bytes(32)).decode()}", ""]
    config.write_text("\n".join(lines))
    (folder / "mon").mkdir()
    (folder / "osd").mkdir()

    def run(*command: str) -> str:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    with_config = ("-c", str(config))
    monmap = str(folder / "monmap")
    run("monmaptool", "--create", "--addv", "a", f"[v1:127.0.0.1:{mon_port}]", "--fsid", cluster, monmap)
    run("ceph-mon", *with_config, "--mkfs", "-i", "a", "--monmap", monmap)

    running: dict[str, subprocess.Popen[bytes]] = {}

    def daemon(name: str, *command: str) -> None:
        running[name] = daemons.enter_context(process(*command, "-f", *with_config, log=folder / f"{name}.out"))

    daemon("mon", "ceph-mon", "-i", "a")
    osd = str(uuid.uuid4())
    run("ceph", *with_config, "osd", "create", osd)
    run("ceph-osd", *with_config, "-i", "0", "--mkfs", "--osd-uuid", osd)
    daemon("osd", "ceph-osd", "-i", "0")
    run("ceph", *with_config, "osd", "crush", "add", "osd.0", "1.0", "host=node", "root=default")
    daemon("rgw", "radosgw", "-n", "client.rgw")
    url = f"http://127.0.0.1:{rgw_port}"
    wait_until(lambda: answers(url) or any(one.poll() is not None for one in running.values()), "Ceph", CEPH_START_S)
    ended = {name: (folder / f"{name}.out").read_text() for name, one in running.items() if one.poll() is not None}
    assert not ended, ended
    made = run(
        *("radosgw-admin", *with_config, "-n", "client.rgw", "user", "create"),
        *("--uid=test", "--display-name=test", "--access-key=ceph-key", "--secret-key=ceph-secret"),
    )
    keys = json.loads(made)["keys"][0]
    return S3Server("ceph", url, keys["access_key"], keys["secret_key"])


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder with a short path, for Unix sockets."""
    folder = Path(tempfile.mkdtemp(prefix="tdr-", dir="/tmp" if os.path.isdir("/tmp") else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
