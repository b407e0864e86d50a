"""Samples: dicts of the members under one key, with the names of WebDataset.

``{"__key__": "train/000017", "__url__": "s3://b/t-000000.tar", "jpg": b"...", "cls": b"3"}``
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from ..core import arguments as check
from ..core.urls import redact
from ..errors import SampleError, ShardWriteError
from .limits import MAX_NAME_LENGTH

Sample = dict[str, Any]
KEY = "__key__"
URL = "__url__"

# Keys and extensions that are valid at first sight: no dot but within an extension, nothing hidden or reserved
_PLAIN_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_/-]*(?<!/)")
_PLAIN_EXTENSION = re.compile(r"[a-z0-9]([a-z0-9_.-]*[a-z0-9])?")
# Of a key and of an extension each
_PLAIN_LENGTH = MAX_NAME_LENGTH // 2 - 1
_OF_MACOS = re.compile(r"(?:^|/)(?:\._[^/]*\Z|\.DS_Store\Z|__MACOSX/)")


def split_key(path: str) -> tuple[str, str]:
    """Split a path into key and extension: the key ends at the first dot of the base name, the rest is in lower case.

    Either is empty if the path has none.

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


def is_of_macos(path: str) -> bool:
    """Return whether macOS wrote a file beside those of the user, which readers and listings leave out.

    >>> is_of_macos("cat/._1.jpg"), is_of_macos("cat/.DS_Store"), is_of_macos("__MACOSX/1.jpg"), is_of_macos("1.jpg")
    (True, True, True, False)
    """
    return _OF_MACOS.search(path) is not None


def paths_of_macos(paths: Iterable[str], start: int) -> frozenset[str]:
    """Return those of :func:`is_of_macos` among the paths of a page of a listing, from their ``start`` on."""
    text = "\n".join(paths)
    if not any(name in text for name in ("._", ".DS_Store", "__MACOSX/")):  # most pages
        return frozenset()
    return frozenset(path for path in paths if is_of_macos(path[start:]))


def ignored_kind(path: str) -> str | None:
    """Return as what readers skip and count a member of this name; ``None`` for others.

    ``"meta"`` as readers of WebDataset do: ``__meta.json__``. ``"macos"``: see :func:`is_of_macos`.
    """
    base = path.rpartition("/")[2]
    if base.startswith("__") and base.endswith("__"):
        return "meta"
    return "macos" if is_of_macos(path) else None


def naming_fault(path: str) -> str | None:
    """Return why a path cannot be the name of a member, or ``None`` if it can.

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
    if ignored_kind(path) is not None:
        return "names that begin and end with two underscores, and files that macOS adds, are not members"
    key, extension = split_key(path)
    if not key:
        return "its base name starts with a dot, which leaves no key"
    if not extension:
        return "it has no extension"
    if extension.startswith("__"):
        return f"extensions that begin with two underscores are reserved, as {KEY} is"
    return None


def extensions(sample: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the extensions of a sample's members, sorted, as they are written; ``__key__`` and the like are none.

    >>> extensions({"__key__": "wren", "txt": b"small", "cls": 3})
    ('cls', 'txt')
    """
    return _sorted_extensions(tuple(sample))


@lru_cache(1024)
def _sorted_extensions(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(name for name in names if not name.startswith("__")))


def check_writable(sample: Mapping[str, Any]) -> str:
    """Return the key of a sample, if a shard would preserve its key and extensions.

    Raises:
        ShardWriteError: with the key or extension that would not be preserved, and the reason.
    """
    key = sample.get(KEY) if isinstance(sample, Mapping) else None
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


@lru_cache(1024)
def are_plain(names: tuple[object, ...]) -> bool:
    """Return whether all extensions are valid at first sight. Cached, because there are few different ones."""
    others = [name for name in names if type(name) is not str or not name.startswith("__")]
    return bool(others) and all(type(name) is str and _is_plain_extension(name) for name in others)


def is_plain_key(key: str) -> bool:
    """Return whether a key is valid at first sight."""
    # Most keys are numbers, which need no regular expression
    is_plain = (key.isalnum() and key.isascii()) or _PLAIN_KEY.fullmatch(key) is not None
    return is_plain and len(key) <= _PLAIN_LENGTH and "__MACOSX" not in key


def _is_plain_extension(extension: str) -> bool:
    return len(extension) <= _PLAIN_LENGTH and _PLAIN_EXTENSION.fullmatch(extension) is not None


def writing_fault(key: str, extension: str) -> str | None:
    """Return why a shard would not preserve a member with this key and extension, or ``None`` if it would.

    >>> writing_fault("a", "jpg")
    >>> writing_fault("a", "j" * 5_000)
    'it has 5,002 characters, of which readers take 4,096'
    """
    if is_plain_key(key) and _is_plain_extension(extension):
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


def require_sample(item: object, *, of: str) -> None:
    """Refuse an item that is not a sample.

    Args:
        item: of a chain.
        of: functional name of the pipe that takes samples.

    Raises:
        SampleError: says what it is, and where the pipe belongs.
    """
    if isinstance(item, Mapping):
        return
    what, advice = check.a_kind(item), "Put map() after it, which makes other items of samples."
    if isinstance(item, str | bytes) or (isinstance(item, tuple) and len(item) == 2 and hasattr(item[1], "read")):
        what = "a URL" if isinstance(item, str) else f"a stream of {item[0]}" if isinstance(item, tuple) else what
        advice = "Put a reader of samples before it: shard_tar_reader() or file_reader()."
    elif isinstance(item, tuple | list):
        advice = "Put it before to_tuple(), batch() and map(), which make other items of samples."
    raise SampleError(f"{of}: expected samples, dicts such as {{{KEY!r}: 'cat/1', 'jpg': ...}}, got {what}. {advice}")


def require_key(item: Any, *, of: str) -> Any:
    """Return the key of a sample.

    Args:
        item: of a chain.
        of: functional name of the pipe that needs the key.

    Raises:
        SampleError: if there is none; says where the pipe belongs.
    """
    require_sample(item, of=of)
    if KEY not in item:
        raise SampleError(
            f"{of}: expected samples with a {KEY!r}, got one with {sorted(map(str, item))}. Put it before "
            f"map(), or keep {KEY!r} in its function."
        )
    return item[KEY]


def describe(sample: Mapping[str, Any]) -> str:
    """Describe a sample in an error message: its key and shard."""
    return f"sample {sample.get(KEY)!r} of {sample_url(sample) or 'an unknown shard'}"


def describe_item(item: object) -> str:
    """Describe an item of a chain, which may be a sample."""
    return describe(item) if isinstance(item, Mapping) and KEY in item else "a sample"


def sample_url(sample: Mapping[str, Any]) -> str:
    """Return the URL of a sample's shard, redacted for error messages."""
    return redact(sample.get(URL, ""))
