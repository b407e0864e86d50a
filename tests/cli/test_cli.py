"""``torchdata-remote`` in a shell."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from importlib.metadata import entry_points
from pathlib import Path

import fsspec
import pytest

from tests.servers.s3 import S3Server
from tests.support.archive_bytes import pack_tar
from tests.support.paths import ROOT
from torchdata_remote import cli
from torchdata_remote.formats.manifest import MANIFEST_NAME, load_manifest
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
        MANIFEST_NAME,
    ]


def test_manifest_is_replaced_only_with_overwrite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 1; stderr names the existing file and ``--overwrite``, which replaces it; stdout is empty."""
    folder = shards_of_others(tmp_path / "train")
    assert cli.main(["manifest", folder]) == 0
    right = (tmp_path / "train" / MANIFEST_NAME).read_bytes()
    capsys.readouterr()
    assert cli.main(["manifest", folder]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("torchdata-remote: ")
    assert "index.json exists already" in captured.err
    assert "--overwrite" in captured.err
    (tmp_path / "train" / MANIFEST_NAME).write_bytes(b"damaged")
    assert cli.main(["manifest", "--overwrite", folder]) == 0
    assert (tmp_path / "train" / MANIFEST_NAME).read_bytes() == right


def test_manifest_of_a_damaged_shard_fails_with_its_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In one message on stderr without a traceback; no manifest is written."""
    folder = shards_of_others(tmp_path / "train")
    (tmp_path / "train" / "1.tar").write_bytes(SHARD[:1000])
    assert cli.main(["manifest", folder]) == 1
    captured = capsys.readouterr()
    assert "1.tar" in captured.err
    assert "Traceback" not in captured.err
    assert not (tmp_path / "train" / MANIFEST_NAME).exists()


@pytest.mark.parametrize("folder", ["/nonexistent/train", "memory://nothing-here", "nosuchscheme://a", "s3://"])
def test_manifest_of_an_unreadable_folder_fails_with_its_name(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Missing, empty or no URL at all: exit status 1, and stderr names it."""
    assert cli.main(["manifest", folder]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("torchdata-remote: ")
    assert folder.rstrip("/") in captured.err


def test_manifest_reads_only_shards_that_match_the_pattern(
    memory_folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only shards that match are read."""
    for name in ("train-0.tar", "val-0.tar", "notes.txt"):
        with fsspec.open(f"{memory_folder}/{name}", "wb") as file:
            file.write(SHARD if name.endswith(".tar") else b"no shard")
    assert cli.main(["manifest", "--pattern", "train-*.tar", memory_folder]) == 0
    data = fsspec.filesystem("memory").cat_file(f"{memory_folder}/{MANIFEST_NAME}".removeprefix("memory:/"))
    assert [shard.url for shard in load_manifest(data, f"{memory_folder}/{MANIFEST_NAME}")] == [
        f"{memory_folder}/train-0.tar"
    ]


def test_storage_options_reach_the_store_and_no_secret_is_printed(
    moto: S3Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """JSON in fsspec's vocabulary reaches the store; without it the bucket cannot be read, and no secret is shown."""
    bucket = moto.new_bucket()
    write_small_shards(f"s3://{bucket}", num_shards=2, samples_per_shard=3, storage_options=moto.storage_options)
    client = moto.client()
    for name in (MANIFEST_NAME, *(f"00000{number}.tar.{ending}" for number in range(2) for ending in ("idx", "keys"))):
        client.delete_object(Bucket=bucket, Key=name)
    options = json.dumps(moto.storage_options)
    assert cli.main(["manifest", "--storage-options", options, f"s3://{bucket}"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("         6 samples in 2 shards of ")
    assert cli.main(["manifest", "--storage-options", options, f"s3://{bucket}"]) == 1
    captured = capsys.readouterr()
    assert "exists already" in captured.err
    assert moto.secret not in captured.err + captured.out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "command"),
        (["manifest"], "folder"),
        (["nothing"], "manifest"),
        (["manifest", "--no-such-option", "memory://a"], "--no-such-option"),
        (["manifest", "--storage-options", "{", "memory://a"], "--storage-options"),
        (["manifest", "--storage-options", "[1]", "memory://a"], "--storage-options"),
        (["manifest", "--storage-options", "3", "memory://a"], "--storage-options"),
    ],
)
def test_wrong_command_line_exits_with_2(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 2, as of any command, and the mistake on stderr."""
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert says in captured.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--help"], ["manifest", "indexes"]),
        (["manifest", "--help"], ["--pattern", "--overwrite", "--storage-options"]),
    ],
)
def test_help_lists_commands_and_options(
    arguments: list[str], says: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit status 0; the command and each of its options are listed."""
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 0
    printed = capsys.readouterr().out
    assert all(word in printed for word in says)


@pytest.mark.parametrize("command", ["shard", "manifest", "ls", "inspect", "verify", "show"])
def test_help_of_each_command_ends_with_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The help ends with an example that is a command line of the command."""
    with pytest.raises(SystemExit) as caught:
        cli.main([command, "--help"])
    assert caught.value.code == 0
    printed = " ".join(capsys.readouterr().out.split())
    example = printed.rpartition("example: torchdata-remote ")[2]
    assert example.startswith(f"{command} ")
    assert "--storage-options" in printed


def test_interrupt_and_closed_pipe_exit_silently_as_in_a_shell(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They end the command with the status that shells have for them."""
    for error, status in ((KeyboardInterrupt(), 130), (BrokenPipeError(), 141)):

        def fail(*_: object, error: BaseException = error, **__: object) -> None:
            raise error

        monkeypatch.setattr("torchdata_remote.cli._ls.list_objects", fail)
        assert cli.main(["ls", "memory://a"]) == status
        captured = capsys.readouterr()
        assert (captured.out, captured.err) == ("", "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize(
    "command",
    [["ls"], ["ls", "--help"]],
)
def test_output_that_cannot_be_written_is_an_error(command: list[str], tmp_path: Path) -> None:
    """One line, and nothing from the interpreter when it ends."""
    done = _with_output(">/dev/full", [*command, shards_of_others(tmp_path / "train")])
    assert (done.returncode, done.stderr) == (1, "torchdata-remote: standard output: No space left on device.\n")


@pytest.mark.parametrize("command", [["ls"], ["--help"]])
def test_output_that_is_closed_is_an_error(command: list[str], tmp_path: Path) -> None:
    """Before anything is read."""
    done = _with_output(">&-", [*command, str(tmp_path / "missing")])
    assert done.returncode == 1
    assert done.stderr == "torchdata-remote: standard output is closed: redirect it, such as to /dev/null.\n"


def _with_output(redirection: str, command: list[str]) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "torchdata_remote", *command]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        f"{shlex.join(words)} {redirection}",
        shell=True,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )


def test_installed_command_has_the_documented_name_and_exit_status(tmp_path: Path) -> None:
    """It is installed with the package, by the name that errors mention; its status is the process' exit status."""
    scripts = entry_points(group="console_scripts")
    names = {script.name for script in scripts if script.value == "torchdata_remote.cli:main"}
    if not names:
        pytest.skip("the package was installed before it had a command: pip install -e . once more")
    assert names == {"torchdata-remote"}
    command = shutil.which("torchdata-remote", path=sysconfig.get_path("scripts"))
    assert command is not None
    folder = shards_of_others(tmp_path / "train")
    first, second = (subprocess.run([command, "manifest", folder], capture_output=True, text=True) for _ in range(2))
    assert (first.returncode, first.stderr) == (0, "")
    assert "6 samples in 2 shards" in first.stdout
    assert (second.returncode, second.stdout) == (1, "")
    assert "exists already" in second.stderr
    assert (tmp_path / "train" / MANIFEST_NAME).exists()


def test_python_m_runs_the_command_line(tmp_path: Path) -> None:
    """Where no scripts are installed, ``python -m torchdata_remote.cli`` is the same."""
    folder = shards_of_others(tmp_path / "train")
    command = [sys.executable, "-m", "torchdata_remote.cli", "manifest", folder]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "6 samples in 2 shards" in done.stdout
