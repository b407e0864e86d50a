"""Paths of files in a data set, and the names that transfers keep for themselves."""

from __future__ import annotations

import hashlib
import re

from ...storage.registry import PARTIAL_SUFFIX, is_internal_name

STATE_NAME = ".torchdata_remote-pull.json"
LOCK_NAME = ".torchdata_remote-pull.lock"
_PARTIAL = re.compile(rf"\.pull-[0-9a-f]{{32}}(\.ranges)?{re.escape(PARTIAL_SUFFIX)}")


def is_reserved(name: str) -> bool:
    """Whether a file of this base name is a transfer's own, or another writer's that is not complete."""
    return is_internal_name(name)


def is_partial(name: str) -> bool:
    """Whether ``pull`` gives such names to files that are not complete.

    >>> is_partial(partial_name("a.bin", "00"))
    True
    """
    return _PARTIAL.fullmatch(name) is not None


def partial_name(path: str, sha256: str) -> str:
    """Under which name a version of a file grows."""
    return f".pull-{_digest(path, sha256)}{PARTIAL_SUFFIX}"


def ranges_name(path: str, sha256: str) -> str:
    """Of the file that tells which of its ranges are there."""
    return f".pull-{_digest(path, sha256)}.ranges{PARTIAL_SUFFIX}"


def upload_id(path: str, sha256: str, num_bytes: int) -> str:
    """The same for the same version of a file, so that a push asked again goes on."""
    return _digest(path, sha256, str(num_bytes))


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def folders_of(path: str) -> list[str]:
    """All folders that a path lies in.

    >>> folders_of("a/b/c.jpg")
    ['a', 'a/b']
    """
    names = path.split("/")[:-1]
    return ["/".join(names[: number + 1]) for number in range(len(names))]
