"""What Prometheus reads."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the service's libraries are not installed")

from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from tests.support.service_clients import client_of

NAME = "torchdata_remote_service"


def samples(client: TestClient) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Each sample's name and labels, and its value."""
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name.removeprefix(NAME + "_"), tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def count(client: TestClient, method: str, route: str, status: int) -> float:
    labels = (("method", method), ("route", route), ("status", str(status)))
    return samples(client).get(("requests_total", labels), 0.0)


def test_requests_are_counted(local: TestClient, dataset: str) -> None:
    """By method, route and status: routes are patterns, so that names do not make new series."""
    file = "/datasets/{name}/files/{path}"
    for number in range(3):
        local.put(f"/datasets/{dataset}/files/{number}", content=b"12345")
    local.get(f"/datasets/{dataset}/files/0")
    local.get(f"/dataset/{dataset}/files/none")
    assert count(local, "PUT", file, 200) == 3
    assert count(local, "GET", file, 200) == 1
    assert count(local, "GET", file, 404) == 1
    found = samples(local)
    assert found["request_seconds_count", (("method", "PUT"), ("route", file.replace("{path}", "{path}")))] == 3
    assert not any(dataset in str(key) for key in found)


def test_bytes_are_counted(local: TestClient, dataset: str) -> None:
    """Those of bodies, in both directions."""
    before = samples(local)
    local.put(f"/datasets/{dataset}/files/a", content=b"x" * 100_000)
    local.get(f"/datasets/{dataset}/files/a")
    after = samples(local)
    assert after["received_bytes_total", ()] - before["received_bytes_total", ()] == 100_000
    assert after["sent_bytes_total", ()] - before["sent_bytes_total", ()] >= 100_000
    assert after["requests_in_flight", ()] == 1  # this one
    assert after["free_bytes", ()] > 0


def test_unknown_methods_and_paths_create_no_series(local: TestClient) -> None:
    """They are counted together."""
    before = len(samples(local))
    for number in range(20):
        local.request(f"METHOD{number}", "/datasets")
        local.get(f"/nothing/{number}")
        local.get("/datasets", headers={"Host": f"evil{number}"})
    assert len(samples(local)) < before + 80


def test_metrics_are_there_when_the_root_is_gone(tmp_path: Path) -> None:
    """Then they are wanted most: free space is NaN."""
    with client_of(tmp_path / "root") as client:
        shutil.rmtree(tmp_path / "root")
        assert math.isnan(samples(client)["free_bytes", ()])
