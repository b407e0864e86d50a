"""Group members into samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import chain
from typing import Any

from ..errors import BadMemberError, ShardReadError
from .error_policy import raise_error
from .position import ReadPosition
from .sample import KEY, URL, Sample, ignored_kind, naming_fault, split_key
from .sample_pattern import LONG_KEY, SamplePattern, need_care

MemberBatch = tuple[Sequence[str], Iterable[bytes | memoryview]]
SampleRun = Iterator[Sample]

_MAX_EXTENSIONS = 1_000
# Before the ending of a name whose first dot does not end its key
_OTHER = "\n"
_ADVICE = "Pass on_bad_member=skip_with_warning to leave such members out, to the reader and to select()."


def samples_of(batches: Iterable[tuple[Sequence[str], Iterable[Any]]], **options: Any) -> Iterator[Sample]:
    """Yield samples: groups of adjacent members that share a key.

    Args:
        batches: names and data of members, in the order of the archive.
        options: as of :func:`sample_runs`.

    Raises:
        ShardReadError: as :func:`sample_runs`.
    """
    return chain.from_iterable(sample_runs(batches, **options))


def sample_runs(
    batches: Iterable[MemberBatch],
    *,
    url: str,
    inside: str | None = None,
    prefix: str = "",
    on_skip: Callable[[str], object] = lambda kind: None,
    on_bad_member: Callable[[BadMemberError], object] = raise_error,
    on_empty: Callable[[ShardReadError], object] = raise_error,
    position: ReadPosition | None = None,
) -> Iterator[SampleRun]:
    """Like :func:`samples_of`, in runs: iterators over samples that are complete, whose length hints are exact.

    The samples of a batch whose data are a list are one run, if they are like those before; others are one run each. A
    run has to be consumed before the next one is asked for.

    Args:
        batches: names and data of members, in the order of the archive.
        url: of the shard, redacted, for samples and errors.
        inside: shown in errors instead of ``url``, for an archive inside the shard.
        prefix: prepended to each key.
        on_skip: called with ``"meta"`` for each member named like ``__this__``, with ``"macos"`` for one of macOS.
        on_bad_member: called with the error of a member that cannot be part of a sample, because of its name or because
            the sample has its extension already; if it returns, the member is skipped. It has no other effect, so
            reading from any sample on yields the same samples.
        on_empty: called with the error of an archive without a single sample; if it returns, there are none.
        position: updated with the members of the current batch that have been looked at, and with the last sample.

    Raises:
        BadMemberError: for a member without key or extension, a path that leaves its folder, or an extension twice in
            a sample, unless ``on_bad_member`` returns.
        ShardReadError: for a key that comes back, or an archive without a single sample.
    """
    return _Grouping(url, inside or url, prefix, on_skip, on_bad_member, on_empty, position).runs(batches)


class _Grouping:
    """The sample that is being put together, and what is known of those before it."""

    def __init__(
        self,
        url: str,
        shown: str,
        prefix: str,
        on_skip: Callable[[str], object],
        on_bad_member: Callable[[BadMemberError], object],
        on_empty: Callable[[ShardReadError], object],
        position: ReadPosition | None,
    ) -> None:
        self._url, self._shown, self._prefix = url, shown, prefix
        self._on_skip, self._on_bad_member, self._on_empty = on_skip, on_bad_member, on_empty
        self._is_tracked, self._position = position is not None, position or ReadPosition()
        # As they are written -> in lower case
        self._extensions: dict[str, str] = {}
        # Keys; of long ones, which would fill the memory, their hashes
        self._seen: set[str | bytes] = set()
        self._sample: Sample = {}
        # Its key, without the prefix, and endings of its members' names
        self._current: str | None = None
        self._endings: list[str] = []
        # Of the sample before it
        self._pattern = SamplePattern()

    def runs(self, batches: Iterable[MemberBatch]) -> Iterator[SampleRun]:
        for names, values in batches:
            keys = self._plain_keys(names) if type(values) is list else None
            if keys is None or type(values) is not list:
                yield from self._singly(names, values)
            elif run := self._together(keys, values):
                yield run
            del values  # or they would keep a part in memory
        self._position.ended = True
        if self._sample:
            yield iter((self._sample,))
        else:
            self._on_empty(ShardReadError(f"{self._shown}: an archive without a single sample.", url=self._url))

    def _plain_keys(self, names: Sequence[str]) -> list[str] | None:
        keys = self._pattern.keys_in(names, self._current or "", self._endings)
        if keys is None:
            return None
        unique = set(keys)
        if len(unique) != len(keys) or not self._seen.isdisjoint(unique):
            return None
        self._seen |= unique
        return keys

    def _together(self, keys: list[str], values: list[bytes | memoryview]) -> SampleRun | None:
        """Make all samples of a batch; the last one stays, because the next batch may continue it."""
        pattern, sample, num_begun = self._pattern, self._sample, len(self._endings)
        start, width = len(pattern.endings) - num_begun, len(pattern.endings)
        sample.update(zip(pattern.extensions[num_begun:], values))  # noqa: B905  # others follow
        if not keys:
            self._endings = list(pattern.endings)
            return None
        prefixed = [self._prefix + key for key in keys] if self._prefix else keys
        made = [sample, *pattern.samples(prefixed, values[start:] if start else values, self._url)]
        self._sample, self._current = made.pop(), keys[-1]
        self._endings = list(pattern.endings[: len(self._sample) - 2])
        run = iter(made)
        if self._is_tracked:
            position = self._position
            position.batch_starts, position.batch_rest = position.batch_starts[start::width], run
        return run

    def _singly(self, names: Sequence[str], values: Iterable[bytes | memoryview]) -> Iterator[SampleRun]:
        """Look at each member of a batch."""
        known = {} if need_care("\n" + "\n".join(names)) else self._extensions
        self._position.batch_rest = unseen = iter(names)
        sample, current, endings = self._sample, self._current, self._endings
        for name, value in zip(unseen, values, strict=True):
            key, _, ending = name.partition(".")
            extension = known.get(ending)
            # A new one, or a name of the batch needs the slow path
            if extension is None:
                found = self._checked(name)
                if found is None:
                    continue
                key, extension = found
                if ending not in self._extensions:
                    ending = _OTHER + name[-len(extension) :]
            if key != current:
                if sample:
                    if self._pattern.endings != tuple(endings):
                        self._pattern = _pattern_of(endings, sample)
                    yield iter((sample,))
                self._remember(key, name)
                current, endings = key, [f".{ending}"]
                sample = {KEY: self._prefix + key, URL: self._url, extension: value}
            elif extension in sample:
                before = endings[list(sample).index(extension) - 2].replace(_OTHER, "")
                self._on_bad_member(_twice(name, key, extension, before, self._shown))
            else:
                sample[extension] = value
                endings.append(f".{ending}")
        self._sample, self._current, self._endings = sample, current, endings

    def _checked(self, name: str) -> tuple[str, str] | None:
        """Return key and extension of a member; ``None`` if it is not part of a sample."""
        if (kind := ignored_kind(name)) is not None:
            self._on_skip(kind)
            return None
        path = name[2:] if name.startswith("./") else name
        reason = naming_fault(path)
        if reason is not None:
            self._on_bad_member(_misnamed(name, reason, self._shown))
            return None
        key, extension = split_key(path)
        ending = name.partition(".")[2]
        if "/" not in ending and len(self._extensions) < _MAX_EXTENSIONS:
            self._extensions[ending] = extension
        return key, extension

    def _remember(self, key: str, name: str) -> None:
        """Require that the shard had no sample with this key."""
        mark = key if len(key) <= LONG_KEY else blake2b(key.encode("utf-8", "surrogatepass")).digest()
        if mark in self._seen:
            raise _came_back(name, key, self._shown)
        self._seen.add(mark)


def _pattern_of(endings: list[str], sample: Sample) -> SamplePattern:
    if any(_OTHER in ending for ending in endings):
        return SamplePattern()
    return SamplePattern(tuple(endings), tuple(name for name in sample if name not in (KEY, URL)))


def _misnamed(name: str, reason: str, shown: str) -> BadMemberError:
    return BadMemberError(
        f"{shown}: member {name!r:.200} cannot be part of a sample: {reason}. A sample's members are named "
        f"key.extension, such as train/000017.jpg. {_ADVICE}",
        url=shown,
        member=name,
        reason=reason,
    )


def _came_back(name: str, key: str, shown: str) -> ShardReadError:
    return ShardReadError(
        f"{shown}: member {name!r:.200}: the sample {key!r:.200} was already read. Its members must lie next to each "
        "other: write the shard again, sorted by name.",
        url=shown,
    )


def _twice(name: str, key: str, extension: str, before: str, shown: str) -> BadMemberError:
    return BadMemberError(
        f"{shown}: member {name!r:.200}: the sample {key!r:.200} has {extension!r:.200} twice, before as "
        f"{key + before!r:.200} (extensions are compared in lower case). Write the shard again with other names. "
        f"{_ADVICE}",
        url=shown,
        member=name,
        reason="the sample has its extension already",
    )
