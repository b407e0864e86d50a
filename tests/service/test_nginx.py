"""The reverse proxy of the documentation: nginx in front of a service limits each address, and changes nothing else."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the service is not installed: pip install torchdata_remote[service]")

import torchdata_remote as tdr
from tests.servers.s3 import temporary_folder
from tests.support.paths import ROOT
from tests.support.ports import free_port
from tests.support.service_clients import Dataset, ask, begin, connect, rest
from tests.support.waiting import wait_for

pytestmark = pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
_MAIN = (
    "daemon off; pid {folder}/pid; error_log {folder}/log; events {{}} http {{ access_log off; {temporary} {block} }}"
)
_FOLDERS = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


@pytest.fixture(scope="module")
def front(served: str) -> Iterator[str]:
    """``host:port`` of nginx, with the configuration of the documentation."""
    page = (ROOT / "docs" / "tasks" / "service-promises.md").read_text()
    (block,) = re.findall(r"```nginx\n(.*?)```", page, re.DOTALL)
    address = f"127.0.0.1:{free_port()}"
    block = block.replace("127.0.0.1:8080", served).replace("listen 8443;", f"listen {address};", 1)
    with temporary_folder() as folder:
        temporary = " ".join(f"{kind}_temp_path {folder}/{kind};" for kind in _FOLDERS)
        (folder / "conf").write_text(_MAIN.format(folder=folder, temporary=temporary, block=block))
        running = subprocess.Popen(["nginx", "-e", f"{folder}/log", "-c", f"{folder}/conf"])
        try:
            wait_for(lambda: _is_open(address))
            yield address
        finally:
            running.terminate()
            running.wait(60)


def _is_open(address: str) -> bool:
    try:
        connect(address).close()
    except ConnectionRefusedError:
        return False
    return True


def test_push_pull_ranges_conditions_and_errors_pass_through_nginx(front: str, tmp_path: Path) -> None:
    files = {"large": bytes(range(256)) * 200_000, "cat/ä.txt": b"meow", "empty": b""}
    for path, data in files.items():
        (tmp_path / "source" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "source" / path).write_bytes(data)
    dataset = Dataset(front)
    tdr.push(tmp_path / "source", dataset.url)
    assert dataset.contents() == files
    assert tdr.pull(dataset.url, tmp_path / "pulled").num_files == len(files)
    assert (tmp_path / "pulled" / "large").read_bytes() == files["large"]
    assert dataset.get("large", {"Range": "bytes=5-8"}).body == files["large"][5:9]
    assert dataset.put("empty", b"x", {"If-None-Match": "*"}).status == 412
    assert dataset.get("none").error == "There is no file 'none' in the dataset."


def test_nginx_limits_the_connections_of_an_address(front: str) -> None:
    half = [begin(front, "PUT", "/datasets/none/files/a", "Content-Length: 10") for _ in range(200)]
    try:
        with begin(front, "GET", "/healthz", "Connection: close") as one_more:
            assert rest(one_more).startswith(b"HTTP/1.1 429 ")
    finally:
        for connection in half:
            connection.close()
    wait_for(lambda: ask(front, "GET", "/healthz").status == 200)
