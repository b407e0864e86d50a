"""``torchdata-remote push`` and ``pull``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.service import running_service
from tests.support.terminals import shown_on, terminal
from torchdata_remote.cli import main

TOKEN = "correct-horse-battery"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("service")
    (folder / "token").write_text(TOKEN + "\n")
    with running_service(folder / "root", token_file=folder / "token") as address:
        yield address


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """With a file, a folder with a file in it, and beside it the token."""
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "s" / "cat").mkdir(parents=True)
    (tmp_path / "s" / "cat" / "1").write_bytes(b"meow")
    (tmp_path / "s" / "readme").write_bytes(b"pets")
    return tmp_path / "s"


def test_push_then_pull_copies_files_and_reports_counts(
    service: str, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line reports the transferred files; the second time, the unchanged ones."""
    url, target, token = f"datasets://{service}/pets", str(tmp_path / "t"), ["--token-file", str(tmp_path / "token")]
    assert main(["push", str(source), url, *token]) == 0
    assert capsys.readouterr().out.startswith(f"{url}: 2 files, 8 bytes sent in ")
    assert main(["push", str(source), url, *token]) == 0
    assert capsys.readouterr().out.endswith(", 2 unchanged\n")
    assert main(["pull", url, target, *token, "--max-in-flight", "2"]) == 0
    assert capsys.readouterr().out.startswith(f"{target}: 2 files, 8 bytes fetched in ")
    assert (tmp_path / "t" / "cat" / "1").read_bytes() == b"meow"

    (source / "readme").unlink()
    assert main(["push", str(source), url, *token]) == 0
    assert capsys.readouterr().out.endswith(", 1 unchanged, 1 others left alone (--delete removes them)\n")
    assert main(["push", str(source), url, *token, "--delete"]) == 0
    assert capsys.readouterr().out.endswith(", 1 unchanged, 1 removed\n")
    (tmp_path / "t" / "mine").write_bytes(b"")
    assert main(["pull", url, target, "--storage-options", f'{{"token": "{TOKEN}"}}', "--delete"]) == 0
    assert capsys.readouterr().out.endswith(", 1 unchanged, 2 removed\n")


def test_push_shows_a_progress_bar_on_a_terminal(
    service: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes, of all bytes, and files; nothing elsewhere."""
    monkeypatch.setenv("TORCHDATA_REMOTE_TOKEN", TOKEN)
    with terminal(monkeypatch) as screen:
        assert main(["push", str(source), f"datasets://{service}/seen"]) == 0
        last = shown_on(screen).rstrip().rpartition("\r")[2]
    assert "push: 100%" in last
    assert "8.00/8.00" in last
    assert "2/2 files" in last


def test_push_and_pull_failures_exit_with_1_and_a_message(
    service: str, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit status 1 and a message for a fault of the service or the folder, 2 for a wrong command line."""
    url = f"datasets://{service}/refused"
    assert main(["push", str(source), url]) == 1
    assert "torchdata-remote: " in capsys.readouterr().err
    assert main(["pull", url, str(tmp_path / "t"), "--token-file", str(tmp_path / "none")]) == 1
    assert "the token cannot be read" in capsys.readouterr().err
    (tmp_path / "empty").write_text("\n")
    assert main(["pull", url, str(tmp_path / "t"), "--token-file", str(tmp_path / "empty")]) == 1
    assert "is empty" in capsys.readouterr().err
    assert main(["push", str(source), "s3://bucket/refused"]) == 1
    assert "datasets://host:port" in capsys.readouterr().err
    for wrong in (["push", str(source)], ["pull", url, "t", "--max-in-flight", "0"]):
        assert main(wrong) == 2
