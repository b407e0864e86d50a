"""Members to samples: which belong together, and which cannot be part of one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b

from .errors import ShardReadError
from .place import Place
from .sample import KEY, URL, Sample, is_meta, naming_fault, split_key

_MAX_EXTENSIONS = 1_000
_LONG_KEY = 200


def samples_of(
    runs: Iterable[tuple[Sequence[str], Iterable[bytes | memoryview]]],
    *,
    url: str,
    inside: str | None = None,
    prefix: str = "",
    on_skip: Callable[[str], object] = lambda kind: None,
    of: Place | None = None,
) -> Iterator[Sample]:
    """Samples of members that lie next to each other and share a key.

    Args:
        runs: names and data of members, in the archive's order.
        url: of the shard, as samples and errors may show it.
        inside: what errors show instead, for an archive inside the shard.
        prefix: put before each key.
        on_skip: called with ``"meta"`` for each member named like ``__this__``.
        of: is told which members of the run at hand have been looked at, and when the last sample is handed out.

    Raises:
        ShardReadError: for a member without key or extension, an extension twice in a sample, a key that comes back,
            a path that leaves its folder, or an archive without a single sample.
    """
    place, at = inside or url, of or Place()
    extensions: dict[str, str] = {}  # as they are written -> in lower case
    seen: set[str | bytes] = set()  # keys; of long ones, which would fill memory, their hashes
    sample: Sample = {}
    current = None  # its key, before the prefix
    for names, values in runs:
        lines = "\n" + "\n".join(names)
        known = {} if _need_care(lines) else extensions
        at.run_names = unseen = iter(names)
        for name, value in zip(unseen, values, strict=True):
            key, _, ending = name.partition(".")
            extension = known.get(ending)
            if extension is None:  # new, or one of the run's names needs a closer look
                if is_meta(name):
                    on_skip("meta")
                    continue
                key, extension = _checked(name, place)
                if "/" not in ending and len(extensions) < _MAX_EXTENSIONS:
                    extensions[ending] = extension
            if key != current:
                if sample:
                    yield sample
                mark = key if len(key) <= _LONG_KEY else blake2b(key.encode("utf-8", "surrogatepass")).digest()
                if mark in seen:
                    raise _came_back(name, key, place)
                seen.add(mark)
                current = key
                sample = {KEY: prefix + key, URL: url, extension: value}
            elif extension in sample:
                raise _twice(name, key, extension, place)
            else:
                sample[extension] = value
        del values  # which may keep a part in memory
    if not sample:
        raise ShardReadError(
            f"{place}: an archive without a single sample. An object of zeros, as a crashed disk leaves it, is one: "
            "write the shard again, or remove it.",
            url=url,
        )
    at.ended = True
    yield sample


def _need_care(lines: str) -> bool:
    """Whether one of the paths, each on a line of its own, may be ``.``, ``..``, absolute, hidden or ``__meta__``."""
    return (  # written out, which is three times as fast as any() for a single path
        "/." in lines or "\n." in lines or "\n/" in lines or "\0" in lines or "/__" in lines or "\n__" in lines
    )


def _checked(name: str, place: str) -> tuple[str, str]:
    """Key and extension of a name, which is looked at with care."""
    path = name[2:] if name.startswith("./") else name
    fault = naming_fault(path)
    if fault is not None:
        raise ShardReadError(
            f"{place}: member {name!r:.200} cannot be part of a sample: {fault}. A sample's members are named "
            "key.extension, such as train/000017.jpg.",
            url=place,
        )
    return split_key(path)


def _came_back(name: str, key: str, place: str) -> ShardReadError:
    return ShardReadError(
        f"{place}: member {name!r:.200}: the sample {key!r:.200} was already read. Its members must lie next to each "
        "other: write the shard again, sorted by name.",
        url=place,
    )


def _twice(name: str, key: str, extension: str, place: str) -> ShardReadError:
    return ShardReadError(
        f"{place}: member {name!r:.200}: the sample {key!r:.200} has {extension!r:.200} twice (extensions are compared "
        "in lower case). Write the shard again with other names.",
        url=place,
    )
