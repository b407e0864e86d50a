"""``torchdata-remote verify``."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.archive_bytes import make_header, make_member
from torchdata_remote.cli import main
from torchdata_remote.testing import write_small_shards


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_small_shards(f"file://{tmp_path}/train", num_shards=3, samples_per_shard=4)
    return tmp_path / "train"


def flip(path: Path, byte: int) -> None:
    data = bytearray(path.read_bytes())
    data[byte] ^= 1
    path.write_bytes(data)


def test_verify_of_intact_shards_exits_with_0(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 0, and one line."""
    assert main(["verify", str(folder)]) == 0
    captured = capsys.readouterr()
    num_bytes = sum(path.stat().st_size for path in folder.glob("*.tar"))
    assert captured.out == f"12 samples in 3 shards, {num_bytes:,} bytes read: no faults\n"
    assert captured.err == ""


def test_verify_prints_a_line_per_fault_and_exits_with_1(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the object's URL; then a summary; exit status 1."""
    (folder / "000000.tar.idx").unlink()
    flip(folder / "000001.tar", 700)
    (folder / "extra.tar").write_bytes(b"")
    assert main(["verify", str(folder / "index.json")]) == 1
    captured = capsys.readouterr()
    assert captured.err == ""
    *lines, last = captured.out.splitlines()
    extra, *shards = (line.removeprefix(f"file://{folder}/") for line in lines)
    assert extra == "extra.tar  the manifest does not name it, so readers of the manifest leave it out"
    assert [re.sub("[0-9a-f]{32}", "MD5", line) for line in shards] == [
        "000000.tar.idx  the shard has no index. Write it: torchdata-remote manifest --overwrite FOLDER",
        "000001.tar  has the MD5 MD5, the manifest has MD5",
        "000001.tar  1 of 1 blocks of 4,194,304 bytes do not match their CRC-32: those at byte 0",
    ]
    assert last.endswith("bytes read: 4 faults")
    assert last.startswith("12 samples in 3 shards, ")


def test_members_that_cannot_be_part_of_a_sample_are_counted_by_each_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They stop ``manifest``, unless they are to be left out; links are counted, too."""
    members = make_member(b"a.txt", b"a") + make_member(b"README", b"text") + make_header(b"l.txt", kind=b"2")
    (tmp_path / "0.tar").write_bytes(members + bytes(1024))
    assert main(["manifest", str(tmp_path)]) == 1
    assert "README" in capsys.readouterr().err
    assert main(["manifest", str(tmp_path), "--on-bad-member", "skip"]) == 0
    assert re.search(r"^ +1 members left out: .", capsys.readouterr().out, re.MULTILINE)
    assert main(["verify", str(tmp_path)]) == 0
    bad, links, total = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"1 members cannot be part of a sample: .* \(on_bad_member=\)", bad)
    assert links == "1 links, which readers leave out (tar --hard-dereference --dereference)"
    assert total.startswith("1 samples in 1 shards, ")
    assert main(["inspect", f"{tmp_path}/0.tar"]) == 0
    printed = capsys.readouterr().out
    assert "\n  not part of samples: link 1\n" in printed
    assert "\n  left out: 1 members that cannot be part of a sample: " in printed
    assert main(["manifest", str(tmp_path), "--on-bad-member", "keep"]) == 2
    assert "--on-bad-member" in capsys.readouterr().err
