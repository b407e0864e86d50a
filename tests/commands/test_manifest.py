"""``torchdata-remote manifest``."""

from __future__ import annotations

import json
import os
from pathlib import Path

import fsspec
import pytest

from tests.servers.s3 import S3Server
from tests.support.archive_bytes import pack_tar
from torchdata_remote import cli
from torchdata_remote.testing import write_small_shards

SHARD = pack_tar([(f"{number}.txt", b"text") for number in range(3)])


def shards_of_others(folder: Path, num_shards: int = 2) -> str:
    """A folder of tars without a manifest."""
    folder.mkdir(exist_ok=True)
    for number in range(num_shards):
        (folder / f"{number}.tar").write_bytes(SHARD)
    return str(folder)


def test_manifest_prints_a_line_per_shard_and_a_total(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each shard as soon as it was read, and a total; exit status 0, nothing on stderr."""
    folder = shards_of_others(tmp_path / "train")
    assert cli.main(["manifest", folder]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    *lines, last = captured.out.splitlines()
    assert [line.split() for line in lines] == [["3", "samples", f"file://{folder}/{i}.tar"] for i in range(2)]
    assert last.split(maxsplit=1) == ["6", f"samples in 2 shards of {2 * len(SHARD):,} bytes: manifest written"]
    assert sorted(os.listdir(folder)) == [
        *(f"{number}.tar{ending}" for number in range(2) for ending in ("", ".idx", ".keys")),
        "index.json",
    ]


def test_manifest_is_replaced_only_with_overwrite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 1; stderr names the existing file and ``--overwrite``, which replaces it; stdout is empty."""
    folder = shards_of_others(tmp_path / "train")
    assert cli.main(["manifest", folder]) == 0
    right = (tmp_path / "train" / "index.json").read_bytes()
    capsys.readouterr()
    assert cli.main(["manifest", folder]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("torchdata-remote: ")
    assert "index.json exists already" in captured.err
    assert "--overwrite" in captured.err
    (tmp_path / "train" / "index.json").write_bytes(b"damaged")
    assert cli.main(["manifest", "--overwrite", folder]) == 0
    assert (tmp_path / "train" / "index.json").read_bytes() == right


def test_manifest_reads_only_shards_that_match_the_pattern(
    memory_folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only shards that match are read."""
    for name in ("train-0.tar", "val-0.tar", "notes.txt"):
        with fsspec.open(f"{memory_folder}/{name}", "wb") as file:
            file.write(SHARD if name.endswith(".tar") else b"no shard")
    assert cli.main(["manifest", "--pattern", "train-*.tar", memory_folder]) == 0
    manifest = json.loads(fsspec.filesystem("memory").cat_file(f"{memory_folder}/index.json".removeprefix("memory:/")))
    assert [shard["url"] for shard in manifest["shardlist"]] == ["train-0.tar"]


def test_storage_options_reach_the_store_and_no_secret_is_printed(
    moto: S3Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """JSON in fsspec's vocabulary reaches the store; without it the bucket cannot be read, and no secret is shown."""
    bucket = moto.new_bucket()
    write_small_shards(f"s3://{bucket}", num_shards=2, samples_per_shard=3, storage_options=moto.storage_options)
    client = moto.client()
    for name in ("index.json", *(f"00000{number}.tar.{ending}" for number in range(2) for ending in ("idx", "keys"))):
        client.delete_object(Bucket=bucket, Key=name)
    options = json.dumps(moto.storage_options)
    assert cli.main(["manifest", "--storage-options", options, f"s3://{bucket}"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("         6 samples in 2 shards of ")
    assert cli.main(["manifest", "--storage-options", options, f"s3://{bucket}"]) == 1
    captured = capsys.readouterr()
    assert "exists already" in captured.err
    assert moto.secret not in captured.err + captured.out
