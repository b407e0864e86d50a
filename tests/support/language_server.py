"""A client of pyright's language server: opens a file and asks for completions, as an editor does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any


class LanguageServer:
    """The server on a folder with a ``pyrightconfig.json``.

    Args:
        folder: of the project that is edited.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._sent = folder, 0
        command = "from basedpyright.langserver import main; main()"
        self._process = subprocess.Popen(
            [sys.executable, "-c", command, "--", "--stdio"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._ask(
            "initialize",
            processId=None,
            rootUri=folder.as_uri(),
            workspaceFolders=[{"uri": folder.as_uri(), "name": folder.name}],
            capabilities={"textDocument": {"completion": {"completionItem": {"documentationFormat": ["plaintext"]}}}},
        )
        self._send("initialized", {})

    def complete(self, code: str) -> dict[str, dict[str, Any]]:
        """Complete at the end of the code: name -> item of the protocol."""
        uri = (self._folder / "edited.py").as_uri()
        document = {"uri": uri, "languageId": "python", "version": 1, "text": code}
        self._send("textDocument/didOpen", {"textDocument": document})
        *lines, last = code.split("\n")
        position = {"line": len(lines), "character": len(last)}
        found = self._ask("textDocument/completion", textDocument={"uri": uri}, position=position)
        return {item["label"]: item for item in found["items"]}

    def documentation(self, item: dict[str, Any]) -> str:
        """What the editor shows beside a completion."""
        shown = self._ask("completionItem/resolve", **item)["documentation"]
        return str(shown["value"])

    def close(self) -> None:
        """End the server."""
        self._process.kill()
        self._process.communicate()

    def _send(self, method: str, params: Any, **more: Any) -> None:
        self._write({"jsonrpc": "2.0", "method": method, "params": params, **more})

    def _write(self, message: dict[str, Any]) -> None:
        body = json.dumps(message).encode()
        assert self._process.stdin is not None
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self._process.stdin.flush()

    def _ask(self, method: str, **params: Any) -> Any:
        self._sent += 1
        self._send(method, params, id=self._sent)
        while True:
            message = self._read()
            if message.get("id") == self._sent and "method" not in message:
                assert "result" in message, message
                return message["result"]
            if "id" in message:  # the server asks for the editor's settings: none
                asked = message.get("params") or {}
                result = [None for _ in asked.get("items", [])] if "items" in asked else None
                self._write({"jsonrpc": "2.0", "id": message["id"], "result": result})

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        size = 0
        while header := self._process.stdout.readline().strip():
            name, _, value = header.partition(b":")
            size = int(value) if name.lower() == b"content-length" else size
        assert size, "the language server has ended"
        message: dict[str, Any] = json.loads(self._process.stdout.read(size))
        return message
