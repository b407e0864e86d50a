"""Group members into samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import chain
from typing import Any

from ..errors import BadMemberError, ShardReadError
from .error_policy import raise_error
from .position import ReadPosition
from .sample import KEY, URL, Sample, ignored_kind, naming_fault, split_key

MemberBatch = tuple[Sequence[str], Iterable[Any]]
SampleRun = Iterator[Sample]

# Characters; of longer keys, which would fill the memory, hashes are remembered
_LONG_KEY = 200
_FIRST = 2  # after key and URL
_ADVICE = "Pass on_bad_member=skip_with_warning to leave such members out, to the reader and to select()."


def samples_of(batches: Iterable[MemberBatch], **options: Any) -> Iterator[Sample]:
    """Yield samples: groups of adjacent members that share a key. Options and errors are those of :func:`sample_runs`.

    Args:
        batches: names and data of members, in the order of the archive.
        options: as of :func:`sample_runs`.
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
    position = position or ReadPosition()
    grouping = _Grouping(url, inside or url, prefix, on_skip, on_bad_member, position)
    yield from grouping.runs(batches)
    position.ended = True
    if grouping.sample:
        yield iter((grouping.sample,))
    else:
        on_empty(ShardReadError(f"{inside or url}: an archive without a single sample.", url=url))


@dataclass
class _Grouping:
    """The sample that is being put together, and what is known of those before it."""

    url: str
    shown: str
    prefix: str
    on_skip: Callable[[str], object]
    on_bad_member: Callable[[BadMemberError], object]
    position: ReadPosition
    # Keys, without the prefix, and of long ones their hashes
    seen: set[str | bytes] = field(default_factory=set)
    # The sample, its key, and the endings of its members' names
    sample: Sample = field(default_factory=dict)
    key: str | None = None
    begun: list[str] = field(default_factory=list)
    # Of the sample before it: endings from the first dot on, and the same in lower case, without that dot
    endings: list[str] = field(default_factory=list)
    extensions: list[str] = field(default_factory=list)

    def runs(self, batches: Iterable[MemberBatch]) -> Iterator[SampleRun]:
        for names, values in batches:
            keys = self._pattern_keys(names) if type(values) is list else None
            if keys is None or type(values) is not list:
                yield from self._singly(names, values)
            elif run := self._together(keys, values):
                yield run
            del values  # or they would keep a part in memory

    def _pattern_keys(self, names: Sequence[str]) -> list[str] | None:
        """Return the keys of the samples that begin in a batch, if each has the extensions of the one before it.

        Each name is compared with what that demands, by a few operations on all names together. ``None`` if the
        members have to be looked at singly.
        """
        endings, num_begun, width = self.endings, len(self.begun), len(self.endings)
        rest = [f"{self.key}{ending}" for ending in endings[num_begun:]]
        start = len(rest)
        if not width or self.begun != endings[:num_begun] or names[:start] != rest:
            return None
        firsts, ending = names[start::width], endings[0]
        if not firsts:
            return []
        lines = "\n".join(firsts)
        keys = f"{lines}\n".split(f"{ending}\n")
        is_whole = not keys.pop() and len(keys) == len(firsts) == lines.count("\n") + 1
        # The dot of the ending is the first one
        if not is_whole or lines.count(".") != len(keys) * ending.count(".") or _need_care(lines):
            return None
        for number in range(1, width):
            others, ending = names[start + number :: width], endings[number]
            if others and "\n".join(others) != f"{ending}\n".join(keys[: len(others)]) + ending:
                return None
        unique = set(keys)
        if max(map(len, keys)) > _LONG_KEY or len(unique) != len(keys) or not self.seen.isdisjoint(unique):
            return None
        self.seen |= unique
        return keys

    def _together(self, keys: list[str], values: list[Any]) -> SampleRun | None:
        """Make all samples of a batch; the last one stays, because the next batch may continue it."""
        extensions, url, width, position = self.extensions, self.url, len(self.extensions), self.position
        start = width - len(self.begun)
        self.sample.update(zip(extensions[len(self.begun) :], values))  # noqa: B905  # others follow
        made = [self.sample]
        if keys:
            values = values[start:] if start else values
            prefixed = [self.prefix + key for key in keys] if self.prefix else keys
            begun: list[Sample] = [{KEY: key, URL: url} for key in prefixed]
            for number, extension in enumerate(extensions):
                for sample, value in zip(begun, values[number::width]):  # noqa: B905  # the last may lack some
                    sample[extension] = value
            made += begun
            self.key = keys[-1]
        self.sample = made.pop()
        self.begun = self.endings[: len(self.sample) - _FIRST]
        if not made:
            return None
        run = iter(made)
        position.batch_starts, position.batch_rest = position.batch_starts[start::width], run
        return run

    def _singly(self, names: Sequence[str], values: Iterable[Any]) -> Iterator[SampleRun]:
        """Look at each member of a batch."""
        needs_care = _need_care("\n".join(names))
        self.position.batch_rest = unseen = iter(names)
        for name, value in zip(unseen, values, strict=True):
            key, _, extension = name.partition(".")
            if needs_care or not extension or "/" in extension or extension.startswith("__"):
                found = self._checked(name)
                if found is None:
                    continue
                key, extension = found
            else:
                extension = extension.lower()
            if key != self.key:
                if self.sample:
                    if self.endings != self.begun:
                        self.endings, self.extensions = self.begun, list(self.sample)[_FIRST:]
                    yield iter((self.sample,))
                self._remember(key, name)
                self.key, self.begun, self.sample = key, [], {KEY: self.prefix + key, URL: self.url}
            elif extension in self.sample:
                before = key + self.begun[list(self.sample).index(extension) - _FIRST].strip()
                self.on_bad_member(_twice(name, key, extension, before, self.shown))
                continue
            self.sample[extension] = value
            # One that matches no name, if what is before the ending is not the key
            self.begun.append(name[len(key) :] if name.startswith(key) else "\n")

    def _checked(self, name: str) -> tuple[str, str] | None:
        """Return key and extension of a member; ``None`` if it is not part of a sample."""
        if (kind := ignored_kind(name)) is not None:
            self.on_skip(kind)
            return None
        path = name.removeprefix("./")
        if (reason := naming_fault(path)) is not None:
            self.on_bad_member(_misnamed(name, reason, self.shown))
            return None
        return split_key(path)

    def _remember(self, key: str, name: str) -> None:
        """Require that the shard had no sample with this key."""
        mark = key if len(key) <= _LONG_KEY else blake2b(key.encode("utf-8", "surrogatepass")).digest()
        if mark in self.seen:
            raise ShardReadError(
                f"{self.shown}: member {name!r:.200}: the sample {key!r:.200} was already read. Its members must lie "
                "next to each other: write the shard again, sorted by name.",
                url=self.shown,
            )
        self.seen.add(mark)


def _need_care(lines: str) -> bool:
    """Return whether a path, each a line, may be ``.``, ``..``, absolute, hidden or ``__meta__``."""
    # A single character is found at the speed of memchr
    return (
        lines.startswith((".", "/", "__"))
        or "\n." in lines
        or "\0" in lines
        or ("/" in lines and ("/." in lines or "\n/" in lines))
        or ("__" in lines and ("/__" in lines or "\n__" in lines))
    )


def _misnamed(name: str, reason: str, shown: str) -> BadMemberError:
    return BadMemberError(
        f"{shown}: member {name!r:.200} cannot be part of a sample: {reason}. A sample's members are named "
        f"key.extension, such as train/000017.jpg. {_ADVICE}",
        url=shown,
        member=name,
        reason=reason,
    )


def _twice(name: str, key: str, extension: str, before: str, shown: str) -> BadMemberError:
    return BadMemberError(
        f"{shown}: member {name!r:.200}: the sample {key!r:.200} has {extension!r:.200} twice, before as "
        f"{before!r:.200} (extensions are compared in lower case). Write the shard again with other names. {_ADVICE}",
        url=shown,
        member=name,
        reason="the sample has its extension already",
    )
