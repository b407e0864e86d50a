"""Samples: dicts of members under one key, named as WebDataset names them.

``{"__key__": "train/000017", "__url__": "s3://b/t-000000.tar", "jpg": b"...", "cls": b"3"}``
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from ..core.urls import redact
from ..errors import ShardWriteError
from .limits import MAX_NAME_LENGTH

Sample = dict[str, Any]
KEY = "__key__"
URL = "__url__"

# Keys and extensions in which nothing needs a closer look: no dot but within an extension, nothing hidden or reserved
_PLAIN_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_/-]*(?<!/)")
_PLAIN_EXTENSION = re.compile(r"[a-z0-9]([a-z0-9_.-]*[a-z0-9])?")
_PLAIN_LENGTH = MAX_NAME_LENGTH // 2 - 1  # of either


def split_key(path: str) -> tuple[str, str]:
    """Key and extension of a path: the key ends at the first dot of the base name, the rest is in lower case.

    An empty key or an empty extension tells that the path has none.

    >>> split_key("train/000017.Seg.PNG")
    ('train/000017', 'seg.png')
    >>> split_key("train.d/README")
    ('train.d/README', '')
    """
    base = path.rfind("/") + 1
    dot = path.find(".", base)
    if dot < 0:
        return path, ""
    if dot == base:
        return "", path[dot + 1 :].lower()
    return path[:dot], path[dot + 1 :].lower()


def is_meta(path: str) -> bool:
    """Whether readers pass over a member of this name, as WebDataset's do: ``__meta.json__``."""
    base = path.rpartition("/")[2]
    return base.startswith("__") and base.endswith("__")


def naming_fault(path: str) -> str | None:
    """Why a path cannot name a member, or ``None``.

    >>> naming_fault("a/b.jpg")
    >>> naming_fault("a/../b.jpg")
    'it leaves its folder by ".."'
    """
    if "\0" in path:
        return "it holds a NUL character"
    if path.startswith("/"):
        return "it is absolute"
    if ".." in path.split("/"):
        return 'it leaves its folder by ".."'
    if is_meta(path):
        return "names that begin and end with two underscores are not members"
    key, extension = split_key(path)
    if not key:
        return "its base name starts with a dot, which leaves no key"
    if not extension:
        return "it has no extension"
    if extension.startswith("__"):
        return f"extensions that begin with two underscores are reserved, as {KEY} is"
    return None


def extensions(sample: Mapping[str, Any]) -> tuple[str, ...]:
    """The members' extensions in the order in which they are written: sorted; ``__key__`` and the like are none.

    >>> extensions({"__key__": "wren", "txt": b"small", "cls": 3})
    ('cls', 'txt')
    """
    return _sorted_extensions(tuple(sample))


@lru_cache(1024)
def _sorted_extensions(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(name for name in names if not name.startswith("__")))


def check_writable(sample: Mapping[str, Any]) -> str:
    """The sample's key, if key and extensions would come back unchanged from a shard.

    Raises:
        ShardWriteError: says which key or extension would not, and why.
    """
    key = sample.get(KEY) if type(sample) is dict or isinstance(sample, Mapping) else None
    if type(key) is str and _is_plain_key(key) and _are_plain(tuple(sample)):
        return key
    return _check_with_care(sample, key)


@lru_cache(1024)
def _are_plain(names: tuple[object, ...]) -> bool:
    """Whether no extension needs a closer look; the same few come again and again."""
    others = [name for name in names if type(name) is not str or not name.startswith("__")]
    return bool(others) and all(type(name) is str and _is_plain_extension(name) for name in others)


def _is_plain_key(key: str) -> bool:
    return len(key) <= _PLAIN_LENGTH and _PLAIN_KEY.fullmatch(key) is not None


def _is_plain_extension(extension: str) -> bool:
    return len(extension) <= _PLAIN_LENGTH and _PLAIN_EXTENSION.fullmatch(extension) is not None


def _check_with_care(sample: Mapping[str, Any], key: object) -> str:
    if not isinstance(key, str):
        raise ShardWriteError(
            f"Expected a sample: a dict with a str under {KEY!r}, got {type(sample).__name__}"
            + (f" with {sorted(map(str, sample))}." if isinstance(sample, Mapping) else ".")
        )
    names = [name for name in sample if not isinstance(name, str)]
    if names:
        raise ShardWriteError(f"Sample {key!r:.200} has a member named {names[0]!r:.200}, which is no str.")
    if not extensions(sample):
        raise ShardWriteError(f"Sample {key!r:.200} has no members, only {sorted(sample)}.")
    for extension in extensions(sample):
        fault = writing_fault(key, extension)
        if fault is not None:
            raise ShardWriteError(
                f"Sample {key!r:.200}, member {extension!r:.200}: {f'{key}.{extension}'!r:.200} cannot be written: "
                f"{fault}."
            )
    return key


def writing_fault(key: str, extension: str) -> str | None:
    """Why a member would not come back from a shard under this key and this extension, or ``None``.

    >>> writing_fault("a", "jpg")
    >>> writing_fault("a", "j" * 5_000)
    'it has 5,002 characters, of which readers take 4,096'
    """
    if _is_plain_key(key) and _is_plain_extension(extension):
        return None
    path = f"{key}.{extension}"
    fault = naming_fault(path)
    if fault is not None:
        return fault
    if not _is_text(path):
        return "it holds half of a surrogate pair, which is no text"
    if split_key(path) != (key, extension) or key.startswith("./"):
        found = split_key(path)
        return (
            f"it would be read back as key {found[0]!r:.200} and extension {found[1]!r:.200}; "
            "a key has no dot in its base name, an extension is in lower case and has no slash"
        )
    if len(path) > MAX_NAME_LENGTH:
        return f"it has {len(path):,} characters, of which readers take {MAX_NAME_LENGTH:,}"
    return None


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def describe(sample: Mapping[str, Any]) -> str:
    """Key and shard of a sample, for an error message."""
    return f"sample {sample.get(KEY)!r} of {sample_url(sample) or 'an unknown shard'}"


def sample_url(sample: Mapping[str, Any]) -> str:
    """Where a sample comes from, as errors may show it."""
    return redact(sample.get(URL, ""))
