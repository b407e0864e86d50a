"""What commands say of shards, as JSON, and places in memory to damage."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import fsspec
import pytest

from torchdata_remote.cli import main


class Said:
    """Runs commands in this process.

    Args:
        capsys: captures what they print.
    """

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str, options: Mapping[str, Any] | None = None, status: int = 0) -> Any:
        """The document that a command prints with ``--json``."""
        self._capsys.readouterr()
        assert main([*arguments, "--json", "--storage-options", json.dumps(dict(options or {}))]) == status
        return json.loads(self._capsys.readouterr().out)

    def error(self, *arguments: str) -> str:
        """What a command that fails says, without the name of the program."""
        self._capsys.readouterr()
        assert main(arguments) == 1
        captured = self._capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith("torchdata-remote: ")
        return captured.err.removeprefix("torchdata-remote: ")


def path(url: str) -> str:
    return url.removeprefix("memory:/")


def get(url: str) -> bytes:
    data: bytes = fsspec.filesystem("memory").cat_file(path(url))
    return data


def put(url: str, data: bytes) -> str:
    fsspec.filesystem("memory").pipe(path(url), data)
    return url


def remove(url: str) -> None:
    fsspec.filesystem("memory").rm(path(url), recursive=True)
