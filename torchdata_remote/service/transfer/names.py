"""Reserved file names of transfers, and identifiers of their files."""

from __future__ import annotations

import hashlib
import re

from ...storage import PARTIAL_SUFFIX, is_internal_name

STATE_NAME = ".torchdata_remote-pull.json"
LOCK_NAME = ".torchdata_remote-pull.lock"
_PARTIAL = re.compile(rf"\.pull-[0-9a-f]{{32}}(\.ranges)?{re.escape(PARTIAL_SUFFIX)}")


def is_reserved(name: str) -> bool:
    """Whether a base name is reserved for a transfer's own files, or for another writer's incomplete ones."""
    return is_internal_name(name)


def is_partial(name: str) -> bool:
    """Whether a base name is that of an incomplete file of ``pull``.

    >>> is_partial(partial_name("a.bin", "00"))
    True
    """
    return _PARTIAL.fullmatch(name) is not None


def partial_name(path: str, sha256: str) -> str:
    """Return the base name of the incomplete file of one version."""
    return f".pull-{_digest(path, sha256)}{PARTIAL_SUFFIX}"


def ranges_name(path: str, sha256: str) -> str:
    """Return the base name of the file that lists its complete ranges."""
    return f".pull-{_digest(path, sha256)}.ranges{PARTIAL_SUFFIX}"


def upload_id(path: str, sha256: str, num_bytes: int) -> str:
    """Return the identifier of an upload: equal for equal versions, so that a repeated push resumes it."""
    return _digest(path, sha256, str(num_bytes))


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def folders_of(path: str) -> list[str]:
    """Return all folders above a path.

    >>> folders_of("a/b/c.jpg")
    ['a', 'a/b']
    """
    names = path.split("/")[:-1]
    return ["/".join(names[: number + 1]) for number in range(len(names))]
