"""``torchdata-remote bench``."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from PIL import Image

from tests.servers.s3 import S3Server
from torchdata_remote.cli import main
from torchdata_remote.testing import write_small_shards


def test_shards(memory_folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    """All samples, a table, what is waited for longest; indexes and manifest beside shards are no samples."""
    write_small_shards(memory_folder, num_shards=3, samples_per_shard=4)
    assert main(["bench", memory_folder, "--seconds", "60"]) == 0
    first, *table, longest, latencies = capsys.readouterr().out.splitlines()
    assert first.startswith("12 samples in ")
    assert "which are all" in first
    assert [line.split()[0] for line in table] == ["stage", "list", "fetch", "read", "decode", "rest"]
    assert table[3].split()[1] == "12"
    assert re.match(r"waited for longest: (list|fetch|read|decode|rest) \(", longest)
    assert re.match(r"requests: median [\d.]+ ms, 95 % within [\d.]+ ms, slowest [\d.]+ ms", latencies)


@pytest.mark.parametrize("name", ["000001.tar", "index.json", "00000*.tar"])
def test_one_shard_manifest_or_glob(name: str, memory_folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Named, it is read as shards."""
    write_small_shards(memory_folder, num_shards=3, samples_per_shard=4)
    assert main(["bench", f"{memory_folder}/{name}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["read"]["items"] == (4 if name == "000001.tar" else 12)


def test_files_in_a_bucket(moto: S3Server, capsys: pytest.CaptureFixture[str]) -> None:
    """One line of JSON with what was done; --no-decode leaves the bytes alone."""
    bucket = moto.new_bucket()
    for number in range(20):
        moto.client().put_object(Bucket=bucket, Key=f"a/{number}.jpg", Body=b"no image")
    options = ["--storage-options", json.dumps(moto.storage_options)]
    assert main(["bench", f"s3://{bucket}/a/", "--json", "--no-decode", "--max-in-flight", "3", *options]) == 0
    did = json.loads(capsys.readouterr().out)
    assert did["fetch"]["items"] == did["fetch"]["requests"] == 20
    assert did["fetch"]["num_bytes"] == 160
    assert did["decode"]["items"] == 0
    assert main(["bench", f"s3://{bucket}/a/", *options]) == 1
    assert "cannot be decoded" in capsys.readouterr().err


def test_it_ends_in_time(memory_folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    """After the seconds given it does not go on."""
    write_small_shards(memory_folder, num_shards=2, samples_per_shard=4)
    assert main(["bench", memory_folder, "--seconds", "1e-9"]) == 0
    assert capsys.readouterr().out.startswith("1 samples in ")


def test_a_picture(memory_folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a name and in a folder that there is."""
    write_small_shards(memory_folder, num_shards=2, samples_per_shard=4)
    assert main(["bench", memory_folder, "--plot", str(tmp_path / "bench.png")]) == 0
    with Image.open(tmp_path / "bench.png") as picture:
        assert picture.format == "PNG"
        assert len(picture.convert("RGB").getcolors(1 << 20) or ()) > 10
    assert main(["bench", memory_folder, "--plot", str(tmp_path / "missing" / "bench.png")]) == 1
    assert "missing" in capsys.readouterr().err


@pytest.mark.parametrize("seconds", ["0", "-1", "inf", "nan", "soon"])
def test_seconds_are_seconds(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong command line ends with status 2."""
    with pytest.raises(SystemExit) as ended:
        main(["bench", "memory://x/", "--seconds", seconds])
    assert ended.value.code == 2
    assert "expected a number of seconds" in capsys.readouterr().err


def test_nothing_there(memory_folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 1, and what was looked for."""
    assert main(["bench", memory_folder]) == 1
    assert memory_folder in capsys.readouterr().err
