"""``torchdata-remote index``."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import fsspec
import pytest

from tests.servers.s3 import S3Server
from torchdata_remote import RemoteFiles
from torchdata_remote.cli import main

NAMES = ["train/cat/1.jpg", "train/cat/2.txt", "train/dog/1.jpg", "val/cat/1.jpg"]


def fill(folder: Path) -> str:
    for name in NAMES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"1")
    return str(folder)


def test_index_of_a_local_folder_holds_sorted_paths(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Sorted as listed, counted, gzip'd if so named; a pattern leaves some out."""
    data = fill(tmp_path / "data")
    assert main(["index", data, "-o", f"{tmp_path}/i.json"]) == 0
    assert json.loads((tmp_path / "i.json").read_bytes()) == NAMES
    assert capsys.readouterr().out == f"         4 objects: {tmp_path}/i.json written\n"
    assert main(["index", data, "--output", f"{tmp_path}/i.json.gz", "--pattern", "*.jpg"]) == 0
    assert json.loads(gzip.decompress((tmp_path / "i.json.gz").read_bytes())) == [NAMES[0], *NAMES[2:]]


def test_index_of_a_bucket_holds_keys(moto: S3Server, capsys: pytest.CaptureFixture[str]) -> None:
    """Also below a folder of the bucket; the index may be in the bucket or elsewhere."""
    bucket, options = moto.new_bucket(), json.dumps(moto.storage_options)
    for name in NAMES:
        moto.client().put_object(Bucket=bucket, Key=f"scratch/{name}", Body=b"1")
    keys = [f"scratch/{name}" for name in NAMES if name.startswith("train/")]
    url = f"s3://{bucket}/scratch/train"
    for index in (f"s3://{bucket}/lists/train.json.gz", f"memory://{bucket}/train.json"):
        assert main(["index", url, "-o", index, "--storage-options", options]) == 0
        assert "3 objects" in capsys.readouterr().out
        found = RemoteFiles(url, index=index, storage_options=moto.storage_options)
        assert [found[number][0] for number in range(len(found))] == [f"s3://{bucket}/{key}" for key in keys]
    assert json.loads(fsspec.filesystem("memory").cat_file(f"/{bucket}/train.json")) == keys


def test_index_inside_its_folder_does_not_list_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It does not name itself, the second time neither, when ``--overwrite`` is needed."""
    data = fill(tmp_path / "data")
    assert main(["index", data, "-o", f"{data}/index.json"]) == 0
    assert main(["index", data, "-o", f"{data}/index.json"]) == 1
    captured = capsys.readouterr()
    assert "exists already" in captured.err
    assert "overwrite=True" in captured.err
    assert main(["index", data, "-o", f"{data}/index.json", "--overwrite"]) == 0
    assert json.loads((tmp_path / "data" / "index.json").read_bytes()) == NAMES


def test_index_of_nothing_fails_and_writes_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And leaves nothing behind."""
    data = fill(tmp_path / "data")
    assert main(["index", data, "-o", f"{tmp_path}/i.json", "--pattern", "*.png"]) == 1
    captured = capsys.readouterr()
    assert (captured.out, "no objects found" in captured.err) == ("", True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]


def test_index_output_to_http_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """http is read-only."""
    assert main(["index", fill(tmp_path / "data"), "-o", "http://127.0.0.1:1/i.json"]) == 1
    assert "cannot be listed or written" in capsys.readouterr().err
