"""``torchdata-remote inspect``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.servers.s3 import S3Server
from tests.support.archive_bytes import pack_tar
from torchdata_remote import ShardWriter
from torchdata_remote.cli import main
from torchdata_remote.testing import write_small_shards


def printed_by(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def test_inspect_prints_counts_sizes_labels_and_first_samples(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Members and sizes in a table; as many first samples as ``--samples``."""
    with ShardWriter(f"{tmp_path}/{{shard}}.tar") as writer:
        for number in range(4):
            writer.write({"__key__": f"d/{number}", "cls": number % 3, "jpg": bytes(1000 * number)})
    assert main(["inspect", f"{tmp_path}/0.tar", "--samples", "2"]) == 0
    out = printed_by(capsys)
    assert "4 samples, 8 members" in out
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.strip()}
    assert rows["jpg"] == ["4", "0", "1,500", "3,000"]
    assert rows["cls"] == ["4", "1", "1", "1"]
    assert "3 labels (cls), from 2 to 1 samples each" in out
    assert "0: 2, 1: 1, 2: 1" in out
    assert "d/1: cls 1, jpg 1,000" in out
    assert "d/2:" not in out


@pytest.mark.parametrize("manifest", ["with", "without"])
def test_inspect_of_a_folder_summarizes_the_manifest_and_the_first_shard(
    tmp_path: Path, manifest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The manifest is summarized, or reported as missing; then the first shard is inspected."""
    folder = f"file://{tmp_path}/train"
    write_small_shards(folder, num_shards=3, samples_per_shard=4)
    if manifest == "without":
        (tmp_path / "train" / "index.json").unlink()
    assert main(["inspect", folder]) == 0
    out = printed_by(capsys)
    if manifest == "with":
        assert out.startswith(f"{folder}/index.json\n  3 shards, 12 samples, ")
        assert "samples a shard: 4 to 4, median 4" in out
    else:
        assert out.startswith("no manifest")
        assert "3 shards, " in out
    assert f"{folder}/000000.tar\n" in out
    assert "000001.tar" not in out


def test_inspect_json_has_the_same_facts(memory_folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The same for programs."""
    write_small_shards(memory_folder, num_shards=2, samples_per_shard=4)
    assert main(["inspect", memory_folder, "--json", "--samples", "1"]) == 0
    document = json.loads(printed_by(capsys))
    assert document["url"] == memory_folder
    assert document["set"]["num_samples"] == 8
    assert document["set"]["shard_samples"] == {"min": 4, "median": 4, "max": 4}
    assert document["shard"]["num_samples"] == 4
    assert document["shard"]["extensions"]["cls"]["num_members"] == 4
    assert document["shard"]["first"] == [{"key": "0/000000", "bytes": {"cls": 1, "txt": 9}}]
    assert document["shard"]["labels"] == {"0": 1, "1": 1, "2": 1, "3": 1}


def test_inspect_escapes_terminal_sequences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Keys, extensions and labels of strangers are escaped, in JSON too."""
    (tmp_path / "0.tar").write_bytes(pack_tar([("\x1b[2J.\x1b[1m", b""), ("\x1b[2J.cls", b"\x1b[31m")]))
    for form in ([], ["--json"]):
        assert main(["inspect", str(tmp_path / "0.tar"), *form]) == 0
        out = printed_by(capsys)
        assert "\x1b" not in out
        assert "x1b[31m" in out or "u001b[31m" in out


def test_inspect_of_a_truncated_shard_fails_with_the_byte(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An error with the byte, and exit status 1."""
    (tmp_path / "0.tar").write_bytes(pack_tar([("a.txt", b"a" * 600), ("b.txt", b"b" * 600)])[:2100])
    assert main(["inspect", str(tmp_path / "0.tar")]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"torchdata-remote: file://{tmp_path}/0.tar: at byte 1,536: ")


def test_inspect_of_an_empty_folder_fails_with_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 1; it is named."""
    assert main(["inspect", str(tmp_path)]) == 1
    assert str(tmp_path) in capsys.readouterr().err


def test_inspect_reads_s3_and_prints_no_secret(moto: S3Server, capsys: pytest.CaptureFixture[str]) -> None:
    """With options for the store, of which no secret is shown."""
    bucket = moto.new_bucket()
    write_small_shards(f"s3://{bucket}/a", num_shards=2, samples_per_shard=4, storage_options=moto.storage_options)
    assert main(["inspect", f"s3://{bucket}/a/", "--storage-options", json.dumps(moto.storage_options)]) == 0
    out = printed_by(capsys)
    assert "4 samples, 8 members" in out
    assert moto.secret not in out
