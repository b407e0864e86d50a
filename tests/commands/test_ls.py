"""``torchdata-remote ls``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import fsspec
import pytest

from torchdata_remote.cli import main
from torchdata_remote.testing import write_small_shards


def test_ls_prints_size_samples_and_url_of_each_object(memory_folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A heading, a line for each object with aligned columns, and a total."""
    write_small_shards(memory_folder, num_shards=2, samples_per_shard=3)
    files = fsspec.filesystem("memory").find(memory_folder.removeprefix("memory:/"), detail=True)
    sizes = {path.rpartition("/")[2]: info["size"] for path, info in files.items()}
    assert main(["ls", memory_folder]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "bytes  samples  url",
        f"7,168           {memory_folder}/000000.tar",
        f"   32           {memory_folder}/000000.tar.idx",
        f"{sizes['000000.tar.keys']:>5,}           {memory_folder}/000000.tar.keys",
        f"7,168           {memory_folder}/000001.tar",
        f"   32           {memory_folder}/000001.tar.idx",
        f"{sizes['000001.tar.keys']:>5,}           {memory_folder}/000001.tar.keys",
        f"{sizes['index.json']:>5,}           {memory_folder}/index.json",
        f"{sum(sizes.values()):,} bytes in 7 objects",
    ]


def test_ls_json_is_a_document_per_line(memory_folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With the same facts, numbers without separators, and null for what is unknown."""
    write_small_shards(memory_folder, num_shards=1, samples_per_shard=3)
    assert main(["ls", memory_folder, "--json"]) == 0
    shard, index, _, manifest = map(json.loads, capsys.readouterr().out.splitlines())
    assert list(shard) == ["url", "num_bytes", "num_samples", "etag"]
    assert (shard["url"], shard["num_bytes"], shard["num_samples"]) == (f"{memory_folder}/000000.tar", 7168, None)
    assert (index["url"], index["num_samples"]) == (f"{memory_folder}/000000.tar.idx", None)
    assert manifest["url"] == f"{memory_folder}/index.json"


def test_ls_of_a_manifest_lists_its_shards(memory_folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    """And a pattern leaves some out."""
    write_small_shards(memory_folder, num_shards=3, samples_per_shard=2)
    assert main(["ls", f"{memory_folder}/index.json", "--pattern", "*[02].tar"]) == 0
    _, *lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1:] for line in lines[:2]] == [["2", f"{memory_folder}/{n:06d}.tar"] for n in (0, 2)]
    assert lines[2].endswith("bytes in 2 objects, 4 samples")


def test_ls_recursive_enters_folders_and_long_shows_etags(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Folders below are listed with ``--recursive``, etags shown with ``--long``."""
    (tmp_path / "below").mkdir()
    (tmp_path / "a.txt").write_bytes(b"abc")
    (tmp_path / "below" / "b.txt").write_bytes(b"")
    assert main(["ls", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "3 bytes in 1 objects"
    assert main(["ls", str(tmp_path), "--recursive", "--long"]) == 0
    heading, first, second, total = capsys.readouterr().out.splitlines()
    assert heading.split() == ["bytes", "samples", "etag", "url"]
    assert first.split()[0] == "3"
    assert first.split()[-1] == f"file://{tmp_path}/a.txt"
    assert len(first.split()) == 3, "size, etag, URL"
    assert second.split()[-1] == f"file://{tmp_path}/below/b.txt"
    assert total == "3 bytes in 2 objects"


def test_ls_of_nothing_fails_with_the_url(memory_folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 1, and the URL on stderr."""
    assert main(["ls", memory_folder]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert memory_folder in captured.err


def test_ls_escapes_unprintable_names(tmp_path: Path) -> None:
    """Terminals get no commands, and one that cannot express a character an escape."""
    for name in (b"new\nline", b"\x1b[31mred", "é漢".encode(), b"not-utf8-\xff"):
        (tmp_path / name.decode("utf-8", "surrogateescape")).write_bytes(b"")
    command = [sys.executable, "-m", "torchdata_remote.cli", "ls", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, check=True, env={"PYTHONIOENCODING": "ascii"})
    names = [line.rpartition(b"/")[2] for line in done.stdout.splitlines()[1:-1]]
    assert sorted(names) == sorted([rb"new\nline", rb"\x1b[31mred", rb"\xe9\u6f22", rb"not-utf8-\udcff"])


def test_ls_into_a_closed_pipe_is_silent(tmp_path: Path) -> None:
    """A pipe that is closed early is no error: nothing on stderr."""
    for number in range(3000):
        (tmp_path / f"{number:0200d}").write_bytes(b"")
    command = f"{sys.executable} -m torchdata_remote.cli ls {tmp_path} | head -1"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 1
