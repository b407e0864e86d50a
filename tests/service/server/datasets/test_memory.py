"""The memory of a service under requests that are made to use it up."""

from __future__ import annotations

import contextlib
import http.client
import io
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from PIL import Image

pytest.importorskip("starlette", reason="the service's libraries are not installed")

from tests.servers.service import Service
from tests.support.service_clients import ask

NUM_DATASETS, NUM_PICTURES = 6, 3
MAX_SHEET_GROWTH = 600 << 20  # one picture at a time takes 220 MB; each sheet its own, 1.3 GB


def most_bytes(process_id: int) -> int:
    """The most memory that a process has had."""
    lines = Path(f"/proc/{process_id}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="no /proc")
def test_sheets_of_large_pictures_at_once_take_the_memory_of_one(tmp_path: Path) -> None:
    """Six requests, each for three PNGs of 27 million pixels, drawn in turn; larger ones are crossed cells."""
    with io.BytesIO() as file:
        Image.new("RGBA", (6000, 4500), (200, 30, 30, 255)).save(file, "PNG")
        large = file.getvalue()
    with io.BytesIO() as file:
        Image.new("RGBA", (8000, 8000), (30, 160, 40, 255)).save(file, "PNG")
        too_large = file.getvalue()
    for number in range(NUM_DATASETS):
        (tmp_path / f"d{number}").mkdir()
        for picture in range(NUM_PICTURES):
            (tmp_path / f"d{number}" / f"{picture}.png").write_bytes(large)
        (tmp_path / f"d{number}" / "z.png").write_bytes(too_large)
    service = Service(tmp_path)
    try:
        before = most_bytes(service.process.pid)
        with ThreadPoolExecutor(NUM_DATASETS) as pool:
            answers = list(
                pool.map(
                    lambda number: ask(service.address, "GET", f"/datasets/d{number}/sheet.png"), range(NUM_DATASETS)
                )
            )
        growth = most_bytes(service.process.pid) - before
    finally:
        service.stop()
    assert growth < MAX_SHEET_GROWTH
    num_drawn = 0
    for status, body, _ in answers:
        assert status == 200
        colours = Image.open(io.BytesIO(body)).convert("RGB").getcolors(1 << 20)
        assert colours is not None
        counts = {colour: count for count, colour in colours}
        num_drawn += counts.get((200, 30, 30), 0) // 10_000
        assert (30, 160, 40) not in counts
    assert num_drawn >= 3  # all of them, on a machine that decodes them in 15 s


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="no /proc")
@pytest.mark.parametrize(
    "target", ["/datasets/{}", "/datasets/{}/files/x", "/datasets/d/files/{}", "/datasets/d/files?after={}"]
)
def test_names_in_refused_requests_take_no_memory(tmp_path: Path, target: str) -> None:
    """Thousands of different long ones, which need no dataset. Kept, they would take 60 MB."""
    (tmp_path / "d").mkdir()
    service = Service(tmp_path)

    def send(numbers: range) -> None:
        with contextlib.closing(http.client.HTTPConnection(service.address, timeout=60)) as connection:
            for number in numbers:
                name = f"{number:08}" * 1000
                connection.request("GET" if "?" in target else "DELETE", target.format(name))
                answer = connection.getresponse()
                answer.read()
                assert answer.status in (400, 404), answer.status

    try:
        send(range(1000))
        before = most_bytes(service.process.pid)
        send(range(1000, 8500))
        assert most_bytes(service.process.pid) - before < 10 << 20
    finally:
        service.stop()
