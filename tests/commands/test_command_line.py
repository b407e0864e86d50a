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


def ended(arguments: list[str]) -> object:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    return caught.value.code


def in_process(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program]
    return subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=120, check=False
    )


def test_help_lists_each_command_with_the_beginning_of_its_own_help(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")  # a line for each
    assert ended(["--help"]) == 0
    listed = dict(re.findall(r"^ +(\w+) {2,}(\w.*)$", capsys.readouterr().out, re.MULTILINE))
    assert list(listed) == COMMANDS
    for command, summary in listed.items():
        assert ended([command, "--help"]) == 0
        described = " ".join(capsys.readouterr().out.split())
        assert f"{summary[0].upper()}{summary[1:]}" in described
        assert described.rpartition("example: torchdata-remote ")[2].startswith(f"{command} ")


def test_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(["--version"]) == 0
    assert capsys.readouterr().out == f"torchdata-remote {torchdata_remote.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "command"),
        (["nothing"], "manifest"),
        (["manifest", "--no-such-option", "memory://a"], "--no-such-option"),
        (["manifest", "--storage-options", "{", "memory://a"], "--storage-options"),
        (["manifest", "--storage-options", "[1]", "memory://a"], "--storage-options"),
        (["manifest", "--storage-options", "3", "memory://a"], "--storage-options"),
    ],
)
def test_a_wrong_command_line_ends_with_2_and_the_mistake(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert says in captured.err


# What is given, and what is asked for; a command without any is not here
REQUIRED: dict[str, list[tuple[list[str], str]]] = {
    "shard": [([], "source, template"), (["a"], "template"), (["--seed", "1"], "source, template")],
    "index": [([], "url, -o/--output"), (["a"], "-o/--output"), (["-o", "a"], "url")],
    "show": [([], "url, --grid"), (["a"], "--grid"), (["--grid", "a.png"], "url")],
    "push": [([], "folder, url"), (["a"], "url")],
    "pull": [([], "url, folder"), (["a"], "folder")],
    "manifest": [([], "folder"), (["--overwrite"], "folder")],
    "render": [([], "job"), (["-o", "a"], "job")],
    **{command: [([], "url"), (["--json"], "url")] for command in ["ls", "inspect", "verify", "bench", "cost"]},
}


@pytest.mark.parametrize(
    ("command", "given", "asked"), [(command, *row) for command, rows in REQUIRED.items() for row in rows]
)
def test_a_command_without_a_required_argument_ends_with_2_and_names_it(
    command: str, given: list[str], asked: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended([command, *given]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    says = f"torchdata-remote {command}: error: the following arguments are required: {asked}"
    assert captured.err.splitlines()[-1].lower() == says


def test_each_command_with_a_required_argument_is_asked_for_it() -> None:
    """Of the manual's synopsis and tables; ``top`` has a default for its only one."""
    assert set(COMMANDS) - REQUIRED.keys() == {"serve", "top"}
    synopses = dict(re.findall(r"^torchdata-remote (\w+) (.*)\[options\]$", MANUAL, re.MULTILINE))
    options = re.findall(r"^\| (?:`(-\w) \w+`, )?`(--\w+) \w+` \(required\)", MANUAL, re.MULTILINE)
    of_options = {"index": "/".join(options[0]), "show": options[1][1]}
    for command, [(given, asked), *_] in REQUIRED.items():
        words = [*synopses[command].lower().split(), *filter(None, [of_options.get(command)])]
        assert (given, asked) == ([], ", ".join(words))


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
    assert (done.returncode, done.stderr) == (1, "torchdata-remote: standard output: No space left on device.\n")


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


@pytest.mark.parametrize("module", ["argparse", "torchdata_remote."])
def test_ctrl_c_during_imports_ends_without_a_traceback(module: str, tmp_path: Path) -> None:
    program = f"""
import sys
from importlib.abc import MetaPathFinder

class CtrlC(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.startswith({module!r}):
            raise KeyboardInterrupt

if {module!r} == "argparse":
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
    """All but ``bench``, which reads as a training does; Pillow is imported by those that may draw pictures."""
    (tmp_path / "0.tar").write_bytes(pack_tar([("0.png", PNG), ("0.cls", b"0")]))
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "0.png").write_bytes(PNG)
    (tmp_path / "job.yaml").write_text(json.dumps(SMALLEST))  # JSON is YAML
    without_pillow = [
        "ls .", "index . -o index.json.gz", "manifest .", "shard photos shards/{shard:06d}.tar", "push --help",
        "pull --help", "render job.yaml",
    ]  # fmt: skip
    program = f"""
import contextlib, io, json, sys
from torchdata_remote.cli import main

slow = {{
    "PIL", "aiobotocore", "aiohttp", "asyncio", "botocore", "fsspec", "matplotlib", "s3fs", "starlette", "torch",
    "granian", "torchdata_remote.pipes", "torchdata_remote.testing",
}}
found = []
for line in [*{without_pillow!r}, "", "inspect 0.tar", "verify .", "show . --grid sheet.png"]:
    if not line:
        slow.remove("PIL")
        continue
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        assert main(line.split()) == 0, line
    found += [f"{{line}} imports {{name}}" for name in sorted(slow & set(sys.modules))]
print(json.dumps(found))
"""
    done = in_process(program, tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []
