"""The repositories of the test Hub: commits in memory, each with all its files."""

from __future__ import annotations

import hashlib
import threading
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

LFS_ENDINGS = (".tar", ".bin", ".parquet", ".jpg", ".zip")
LFS_BYTES = 10_000


class File:
    """A file of a commit, with the names that the Hub has for its content."""

    def __init__(self, path: str, data: bytes) -> None:
        self.path, self.data = path, data
        self.is_lfs = path.endswith(LFS_ENDINGS) or len(data) >= LFS_BYTES
        self.sha256 = hashlib.sha256(data).hexdigest()
        self.pointer = (
            f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\nsize {len(data)}\n".encode()
        )
        stored = self.pointer if self.is_lfs else data
        self.oid = hashlib.sha1(b"blob %d\0" % len(stored) + stored, usedforsecurity=False).hexdigest()

    @property
    def etag(self) -> str:
        """Of ``resolve``: SHA-256 of what is in LFS, git's object otherwise."""
        return f'"{self.sha256 if self.is_lfs else self.oid}"'

    def info(self) -> dict[str, Any]:
        """As listings have it."""
        found: dict[str, Any] = {"type": "file", "oid": self.oid, "size": len(self.data), "path": self.path}
        if self.is_lfs:
            found["lfs"] = {"oid": self.sha256, "size": len(self.data), "pointerSize": len(self.pointer)}
        return found


class Repository:
    """Commits and branches. Each change is a new commit of ``main``.

    Args:
        kind: ``models``, ``datasets`` or ``spaces``.
        name: ``OWNER/NAME``.
        blobs: to which the files of all commits are added, by SHA-256.
    """

    def __init__(self, kind: str, name: str, blobs: dict[str, File]) -> None:
        self.kind, self.name, self._blobs = kind, name, blobs
        self.is_private = self.is_gated = False
        self.accepted: set[str] = set()  # tokens whose accounts have accepted the terms
        self._lock = threading.RLock()
        self._commits: dict[str, dict[str, File]] = {}
        self.branches: dict[str, str] = {}
        self.commit({})

    def commit(self, files: Mapping[str, bytes], *, deleted: Iterable[str] = (), branch: str = "main") -> str:
        """Add, replace and delete files, and return the commit."""
        sha = hashlib.sha1(uuid.uuid4().bytes, usedforsecurity=False).hexdigest()
        added = [File(path, data) for path, data in files.items()]
        self._blobs.update({file.sha256: file for file in added})
        with self._lock:
            kept = self._commits.get(self.branches.get(branch, self.branches.get("main", "")), {})
            found = {**kept, **{file.path: file for file in added}}
            self._commits[sha] = {path: file for path, file in found.items() if path not in deleted}
            self.branches[branch] = sha
        return sha

    def find_commit(self, revision: str) -> str | None:
        """Return the commit of a branch or commit."""
        with self._lock:
            return self.branches.get(revision) or (revision if revision in self._commits else None)

    def files(self, revision: str = "main") -> dict[str, File]:
        """Return the files of a revision, by path."""
        with self._lock:
            return self._commits[self.branches.get(revision, revision)]

    def tree(self, commit: str, folder: str, *, recursive: bool) -> list[dict[str, Any]] | None:
        """List a folder as the Hub does: folders before files, in no order over all; ``None`` if it does not exist."""
        files = self.files(commit)
        if folder in files:
            return [files[folder].info()]
        prefix = f"{folder}/" if folder else ""
        below = [path for path in files if path.startswith(prefix)]
        if folder and not below:
            return None
        folders = sorted({path[: at + len(prefix)] for path in below for at in _slashes(path[len(prefix) :])})
        if not recursive:
            folders = [path for path in folders if "/" not in path[len(prefix) :]]
            below = [path for path in below if "/" not in path[len(prefix) :]]
        listed = [_folder_info(path) for path in folders]
        return listed + [files[path].info() for path in sorted(below, key=lambda path: (-path.count("/"), path))]


def _slashes(path: str) -> list[int]:
    return [at for at, character in enumerate(path) if character == "/"]


def _folder_info(path: str) -> dict[str, Any]:
    oid = hashlib.sha1(path.encode(), usedforsecurity=False).hexdigest()
    return {"type": "directory", "oid": oid, "size": 0, "path": path}
