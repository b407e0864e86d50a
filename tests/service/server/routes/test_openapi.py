"""The OpenAPI description is true."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the service's libraries are not installed")

from starlette.routing import Route
from starlette.testclient import TestClient

from tests.support.service_clients import ask
from torchdata_remote.service.server.routes.openapi import describe

CONFIGURATION = Path(__file__).with_name("schemathesis.toml")
LEFT_OUT = {"/", "/page/{part}", "/openapi.json"}  # for people, and itself


def run_schemathesis(address: str, folder: Path, *arguments: str) -> None:
    """All of its checks, on a service with a dataset."""
    if importlib.util.find_spec("schemathesis") is None:
        pytest.skip("schemathesis is not installed")
    ask(address, "POST", "/datasets", json.dumps({"name": "pets"}), {"Content-Type": "application/json"})
    for path in ("cat/1.txt", "2.txt"):
        assert ask(address, "PUT", f"/datasets/pets/files/{path}", b"hello")[0] == 200
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(CONFIGURATION), "run"]
    checks = ["--checks", "all", "--continue-on-failure", f"http://{address}/openapi.json"]
    done = subprocess.run([*command, *checks, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-2_000:]
    assert "No issues found" in done.stdout or re.search(r"\d+ passed", done.stdout), done.stdout[-2_000:]


def test_schemathesis_finds_no_violation(served: str, tmp_path: Path) -> None:
    """What the description allows is answered as it says, and what it does not allow is refused."""
    run_schemathesis(served, tmp_path, "--max-examples", "15", "--seed", "1")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_schemathesis_finds_no_violation_in_many_requests(served: str, tmp_path: Path) -> None:
    """The same, with other requests each time."""
    run_schemathesis(served, tmp_path, "--max-examples", "300")


def test_the_document_describes_all_routes(local: TestClient) -> None:
    """With their methods, and nothing else."""
    routes = {
        (re.sub(r":path\}", "}", route.path), method)
        for route in local.app._app._app.routes  # type: ignore[attr-defined]
        if isinstance(route, Route) and route.methods is not None
        for method in route.methods - {"HEAD"}
    }
    described = {
        (path, method.upper())
        for path, operations in describe()["paths"].items()
        for method in operations
        if method != "parameters"
    }
    assert {(path, method) for path, method in routes if path not in LEFT_OUT} == described
    assert local.get("/openapi.json").json() == json.loads(json.dumps(describe()))
