"""The examples run and reach their results."""

from __future__ import annotations

import functools
import io
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.support.paths import ROOT
from torchdata_remote import stream_shards


@functools.cache
def quickstart() -> dict[str, Any]:
    """The functions of the script."""
    return runpy.run_path(str(ROOT / "examples" / "quickstart.py"))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--picture", "missing/picture.png"], "must be a file in a folder that exists, got 'missing/picture.png'"),
        (["--picture", "picture.xyz"], "must end in one of .*png"),
        (["--picture", "."], "must end in one of"),
        (["--epochs", "0"], "--epochs must be at least 1"),
        (["--num-workers", "-1"], "--num-workers at least 0"),
    ],
)
def test_quickstart_checks_its_options_before_it_starts_a_server(
    options: list[str], told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not after the training, when the picture is saved."""
    monkeypatch.setattr(sys, "argv", ["quickstart.py", *options])
    with pytest.raises(SystemExit):
        quickstart()["main"]()
    printed = capsys.readouterr()
    assert re.search(told, printed.err)
    assert "S3 server" not in printed.out


def test_shard_on_cluster_scales_pictures_down(tmp_path: Path) -> None:
    """On local processes it needs no other service, and prints a summary."""
    command = [sys.executable, str(ROOT / "examples" / "shard_on_cluster.py"), "--on", "processes"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.match(r"120 samples, [\d,]+ bytes in 5 shards: ", done.stdout)
    colours = set()
    for picture, label in stream_shards(f"{tmp_path}/shard_on_cluster/shards").to_tuple("jpg", "cls"):
        with Image.open(io.BytesIO(picture)) as image:
            assert max(image.size) == 48
            pixel = image.resize((1, 1)).tobytes()
        colours.add((int(label), pixel.index(max(pixel))))
    assert colours == {(0, 2), (1, 1), (2, 0)}  # blue, green and red
