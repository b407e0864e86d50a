"""Read JSON files with credentials of s3, in the two forms that concurrent-dataloader reads."""

from __future__ import annotations

import json
import os
from typing import NamedTuple

FALLBACK_NAMES = ("fallback_key", "fallback_secret", "fallback_token")
_REQUIRED_SHORT = {"access_key": "fallback_key", "secret": "fallback_secret"}
_REQUIRED = {"aws_access_key_id": "fallback_key", "aws_secret_access_key": "fallback_secret"}
_TOKEN = {"aws_session_token": "fallback_token"}
_BUCKET = "bucket_name"
_DOWNLOADS = {
    f"{name}_file_download_url": name
    for name in ("train_index", "train_classes", "val_index", "val_classes", "test_index")
}


class CredentialFile(NamedTuple):
    """Content of a credential file: storage options, bucket, and URLs by the name of what they download."""

    credentials: dict[str, str]
    bucket_name: str | None
    downloads: dict[str, str]

    def __repr__(self) -> str:
        return f"CredentialFile({', '.join(self.credentials)})"


def read_credential_file(path: str | os.PathLike[str]) -> CredentialFile:
    """Read and validate a credential file. Errors never contain its values.

    Raises:
        OSError: if it cannot be read.
        ValueError: if it is not a JSON object, or a field is missing, unknown or not a string.
    """
    with open(path, "rb") as file:
        document, why = _parse(file.read())
    where = f"{os.fspath(path)}: not a file of credentials"
    if not isinstance(document, dict):
        raise ValueError(f"{where}: {why}. Expected {_expected(_REQUIRED_SHORT)} or {_expected(_REQUIRED)}.")
    is_short = not document.keys().isdisjoint(_REQUIRED_SHORT)
    required = _REQUIRED_SHORT if is_short else _REQUIRED
    others = set() if is_short else {*_TOKEN, _BUCKET, *_DOWNLOADS}
    wrong = {
        "missing": [name for name in required if not document.get(name)],
        "unknown": sorted(document.keys() - required.keys() - others),
        "no text in": sorted(name for name, value in document.items() if not isinstance(value, str | None)),
    }
    if any(wrong.values()):
        problems = "; ".join(f"{problem} {', '.join(map(repr, names))}" for problem, names in wrong.items() if names)
        raise ValueError(f"{where}: {problems}. Expected {_expected(required)}" + _optional(others) + ".")
    fields = {name: value for name, value in document.items() if value}
    return CredentialFile(
        {option: fields[name] for name, option in {**required, **_TOKEN}.items() if name in fields},
        fields.get(_BUCKET),
        {what: fields[name] for name, what in _DOWNLOADS.items() if name in fields},
    )


def _parse(data: bytes) -> tuple[object, str]:
    """Return the document, or ``None`` and the reason. Errors of ``json`` contain the text, so they are not chained."""
    try:
        document = json.loads(data)
    except json.JSONDecodeError as error:
        return None, f"no JSON: {error.msg} in line {error.lineno}, column {error.colno}"
    except (ValueError, RecursionError):  # not text, a huge number, or deeply nested brackets
        return None, "no JSON"
    return document, f"it holds a {type(document).__name__}"


def _expected(fields: dict[str, str]) -> str:
    return "{" + ", ".join(f'"{name}": "..."' for name in fields) + "}"


def _optional(others: set[str]) -> str:
    return f", and optionally {', '.join(sorted(others))}" if others else ""
