"""JSON files with credentials of s3, in the two forms that concurrent-dataloader reads."""

from __future__ import annotations

import json
import os
from typing import NamedTuple

FALLBACK_NAMES = ("fallback_key", "fallback_secret", "fallback_token")
_NEEDED_SHORT = {"access_key": "fallback_key", "secret": "fallback_secret"}
_NEEDED = {"aws_access_key_id": "fallback_key", "aws_secret_access_key": "fallback_secret"}
_TOKEN = {"aws_session_token": "fallback_token"}
_BUCKET = "bucket_name"
_DOWNLOADS = {
    f"{name}_file_download_url": name
    for name in ("train_index", "train_classes", "val_index", "val_classes", "test_index")
}


class CredentialFile(NamedTuple):
    """What such a file says: storage options, bucket, URLs by what they are of."""

    credentials: dict[str, str]
    bucket_name: str | None
    downloads: dict[str, str]

    def __repr__(self) -> str:
        return f"CredentialFile({', '.join(self.credentials)})"


def read_credential_file(path: str | os.PathLike[str]) -> CredentialFile:
    """Read and check one; no value of it gets into an error.

    Raises:
        OSError: if it cannot be read.
        ValueError: if it is no JSON object, or a field is missing, unknown or no text.
    """
    with open(path, "rb") as file:
        document, why = _parse(file.read())
    where = f"{os.fspath(path)}: not a file of credentials"
    if not isinstance(document, dict):
        raise ValueError(f"{where}: {why}. Expected {_expected(_NEEDED_SHORT)} or {_expected(_NEEDED)}.")
    is_short = not document.keys().isdisjoint(_NEEDED_SHORT)
    needed = _NEEDED_SHORT if is_short else _NEEDED
    others = set() if is_short else {*_TOKEN, _BUCKET, *_DOWNLOADS}
    wrong = {
        "missing": [name for name in needed if not document.get(name)],
        "unknown": sorted(document.keys() - needed.keys() - others),
        "no text in": sorted(name for name, value in document.items() if not isinstance(value, str | None)),
    }
    if any(wrong.values()):
        told = "; ".join(f"{problem} {', '.join(map(repr, names))}" for problem, names in wrong.items() if names)
        raise ValueError(f"{where}: {told}. Expected {_expected(needed)}" + _and_perhaps(others) + ".")
    given = {name: value for name, value in document.items() if value}
    return CredentialFile(
        {option: given[name] for name, option in {**needed, **_TOKEN}.items() if name in given},
        given.get(_BUCKET),
        {what: given[name] for name, what in _DOWNLOADS.items() if name in given},
    )


def _parse(data: bytes) -> tuple[object, str]:
    """The document, or ``None`` and why there is none. The errors of ``json`` hold the text, so they end here."""
    try:
        document = json.loads(data)
    except json.JSONDecodeError as error:
        return None, f"no JSON: {error.msg} in line {error.lineno}, column {error.colno}"
    except (ValueError, RecursionError):  # no text, a number without end, or brackets without end
        return None, "no JSON"
    return document, f"it holds a {type(document).__name__}"


def _expected(fields: dict[str, str]) -> str:
    return "{" + ", ".join(f'"{name}": "..."' for name in fields) + "}"


def _and_perhaps(others: set[str]) -> str:
    return f", and perhaps {', '.join(sorted(others))}" if others else ""
