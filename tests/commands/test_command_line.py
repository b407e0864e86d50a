"""The command line as a whole: its name, help, exit statuses, and what happens to its output."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import torchdata_remote
from tests.support.archive_bytes import pack_tar
from tests.support.kubernetes_documents import SMALLEST
from tests.support.paths import ROOT
from torchdata_remote.cli import main

MANUAL = (ROOT / "docs" / "cli.md").read_text()
COMMANDS = re.findall(r"^\| \[`(\w+)`\]\(#\1\) \|", MANUAL, re.MULTILINE)


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108000000003a7e9b550000000a49444154789c6360000000020001e521bc33"
    "0000000049454e44ae426082"
)


def in_process(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program]
    return subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=120, check=False
    )


def test_help_lists_each_command_with_the_beginning_of_its_own_help(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has an example, and files of options."""
    monkeypatch.setenv("COLUMNS", "400")  # a line for each
    assert main(["--help"]) == 0
    listed = dict(re.findall(r"^\W+(\w+) {2,}(\w.*?) *\W$", capsys.readouterr().out, re.MULTILINE))
    assert sorted(listed.keys() - {"version", "help"}) == sorted(COMMANDS)
    for command in COMMANDS:
        assert main([command, "--help"]) == 0
        described = capsys.readouterr().out
        assert listed[command] in described
        assert f"example: torchdata-remote {command} " in described
        assert "--conf -c" in described


def test_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"{torchdata_remote.__version__}\n"


# What each command is asked for without its arguments, or with all but the last one
REQUIRED = {
    "shard": (["a"], "TEMPLATE"),
    "index": (["a"], "--output"),
    "show": (["a"], "--grid"),
    "push": (["a"], "URL"),
    "pull": (["a"], "FOLDER"),
    "manifest": (["--overwrite"], "FOLDER"),
    "render": (["-o", "a"], "JOB"),
    **{command: (["--json"], "URL") for command in ["ls", "inspect", "verify", "bench", "cost"]},
}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nothing"], "manifest"),
        (["manifest", "--overwite", "memory://a"], "--overwrite"),
        (["manifest", "memory://a", "memory://b"], "memory://b"),
        *((["manifest", "--storage-options", text, "memory://a"], "--storage-options") for text in ("{", "[1]", "3")),
        *(([command, *given], asked) for command, (given, asked) in REQUIRED.items()),
    ],
)
def test_a_wrong_command_line_ends_with_2_and_the_mistake(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line."""
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.fullmatch(rf"torchdata-remote: .*{re.escape(says)}.*\n", captured.err, re.IGNORECASE)


def test_each_command_with_a_required_argument_is_asked_for_it() -> None:
    """``top`` and ``serve`` have none."""
    assert set(COMMANDS) - REQUIRED.keys() == {"serve", "top"}


def test_options_of_files_yield_to_later_files_and_to_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """TOML or JSON, for any command; arguments by position, too."""
    (tmp_path / "a.bin").write_bytes(b"data")
    first, second = tmp_path / "a.toml", tmp_path / "b.json"
    first.write_text(f"url = {json.dumps(str(tmp_path))}\njson = true\npattern = '*.jpg'\n")
    second.write_text('{"pattern": "*.bin"}')
    assert main(["ls", "-c", str(first)]) == 1
    assert "'*.jpg'" in capsys.readouterr().err
    assert main(["ls", "--conf", str(first), "-c", str(second)]) == 0
    assert json.loads(capsys.readouterr().out)["num_bytes"] == 4
    assert main(["ls", "-c", str(first), "--pattern", "*.bin", "--no-json"]) == 0
    assert capsys.readouterr().out.endswith("4 bytes in 1 objects\n")


def with_output(redirection: str, command: list[str]) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "torchdata_remote", *command]
    return subprocess.run(
        f"{shlex.join(words)} {redirection}",
        shell=True,
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("more", [[], ["--help"]])
def test_output_that_cannot_be_written_is_an_error_of_one_line(more: list[str], tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"")
    done = with_output(">/dev/full", ["ls", *more, str(tmp_path)])
    assert done.returncode == 1
    assert re.fullmatch(r"torchdata-remote: .*No space left on device\n", done.stderr)


@pytest.mark.parametrize("command", [["ls"], ["--help"]])
def test_output_that_is_closed_is_an_error_before_anything_is_read(command: list[str], tmp_path: Path) -> None:
    done = with_output(">&-", [*command, str(tmp_path / "missing")])
    assert done.returncode == 1
    assert done.stderr == "torchdata-remote: standard output is closed: redirect it, such as to /dev/null.\n"


def test_a_pipe_that_is_closed_early_is_no_error(tmp_path: Path) -> None:
    """Nothing on stderr, and the status that shells have for it."""
    for number in range(1000):
        (tmp_path / f"{number:0200d}").write_bytes(b"")
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "torchdata_remote", "ls", str(tmp_path)],
        env=environment(), stdout=writer, stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_ctrl_c_ends_a_command_that_waits_for_a_store_with_130_and_no_traceback() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/a.tar"
        command = [sys.executable, "-m", "torchdata_remote", "inspect", url]
        with (
            subprocess.Popen(
                command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            ) as process,
            silent.accept()[0],
        ):
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 130


@pytest.mark.parametrize("module", ["cyclopts", "torchdata_remote."])
def test_ctrl_c_during_imports_ends_without_a_traceback(module: str, tmp_path: Path) -> None:
    program = f"""
import sys
from importlib.abc import MetaPathFinder

class CtrlC(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.startswith({module!r}):
            raise KeyboardInterrupt

if {module!r} == "cyclopts":
    sys.meta_path.insert(0, CtrlC())
from torchdata_remote.cli import main
sys.meta_path.insert(0, CtrlC())
sys.exit(main(["ls", "."]))
"""
    done = in_process(program, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_the_installed_command_has_the_documented_name_and_exit_status(tmp_path: Path) -> None:
    """Its status is the process' exit status; where no scripts are installed, ``python -m`` is the same."""
    scripts = entry_points(group="console_scripts")
    names = {script.name for script in scripts if script.value == "torchdata_remote.cli:main"}
    if not names:
        pytest.skip("the package was installed before it had a command: pip install -e . once more")
    assert names == {"torchdata-remote"}
    command = shutil.which("torchdata-remote", path=sysconfig.get_path("scripts"))
    assert command is not None
    (tmp_path / "0.tar").write_bytes(pack_tar([("0.txt", b"text")]))
    lines = ([command], [sys.executable, "-m", "torchdata_remote.cli"])
    first, second = (
        subprocess.run([*line, "manifest", str(tmp_path)], capture_output=True, text=True, env=environment())
        for line in lines
    )
    assert (first.returncode, first.stderr) == (0, "")
    assert "1 samples in 1 shards" in first.stdout
    assert (second.returncode, second.stdout) == (1, "")
    assert "exists already" in second.stderr


def test_commands_run_without_torch_and_other_slow_libraries(tmp_path: Path) -> None:
    """All but ``bench``, which reads as a training does; Pillow is imported where a picture is drawn."""
    (tmp_path / "0.tar").write_bytes(pack_tar([("0.png", PNG), ("0.cls", b"0")]))
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "0.png").write_bytes(PNG)
    (tmp_path / "job.yaml").write_text(json.dumps(SMALLEST))  # JSON is YAML
    without_pillow = [
        "--help", *(f"{command} --help" for command in COMMANDS), "ls .", "index . -o index.json.gz", "manifest .",
        "shard photos shards/{shard:06d}.tar", "render job.yaml", "inspect 0.tar", "verify .", "cost photos",
    ]  # fmt: skip
    program = f"""
import contextlib, io, json, sys
from torchdata_remote.cli import main

slow = {{
    "PIL", "aiobotocore", "aiohttp", "asyncio", "botocore", "fsspec", "matplotlib", "s3fs", "starlette", "torch",
    "granian", "torchdata_remote.pipes", "torchdata_remote.testing",
}}
of_others = {{"numpy", "obstore", "pyarrow"}}
found = []
for line in {without_pillow!r} + ["show . --grid sheet.png"]:
    if line.startswith("show . "):
        slow.remove("PIL")
    if not line.endswith("--help"):
        of_others = set()
    with contextlib.redirect_stdout(io.StringIO()):
        assert main(line.split()) == 0, line
    found += [f"{{line}} imports {{name}}" for name in sorted((slow | of_others) & set(sys.modules))]
print(json.dumps(found))
"""
    done = in_process(program, tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []
