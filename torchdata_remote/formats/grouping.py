"""Group members into samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import chain

from ..errors import BadMemberError, ShardReadError
from .error_policy import raise_error
from .position import ReadPosition
from .sample import KEY, URL, Sample, is_meta, naming_fault, split_key
from .sample_pattern import LONG_KEY, SamplePattern, need_care

MemberBatch = tuple[Sequence[str], Iterable[bytes | memoryview]]
SampleRun = Iterator[Sample]

_MAX_EXTENSIONS = 1_000
# Stands for the ending of a name whose first dot does not end its key
_OTHER = "\n"
_ADVICE = "Pass on_bad_member=skip_with_warning to leave such members out."


def samples_of(
    batches: Iterable[MemberBatch],
    *,
    url: str,
    inside: str | None = None,
    prefix: str = "",
    on_skip: Callable[[str], object] = lambda kind: None,
    on_bad_member: Callable[[BadMemberError], object] = raise_error,
    position: ReadPosition | None = None,
) -> Iterator[Sample]:
    """Yield samples: groups of adjacent members that share a key.

    Args:
        batches: names and data of members, in the order of the archive.
        url: of the shard, redacted, for samples and errors.
        inside: shown in errors instead of ``url``, for an archive inside the shard.
        prefix: prepended to each key.
        on_skip: called with ``"meta"`` for each member named like ``__this__``.
        on_bad_member: called with the error of a member that cannot be part of a sample, because of its name or because
            the sample has its extension already; if it returns, the member is skipped. It has no other effect, so
            reading from any sample on yields the same samples.
        position: updated with the members of the current batch that have been looked at, and with the last sample.

    Raises:
        BadMemberError: for a member without key or extension, a path that leaves its folder, or an extension twice in
            a sample, unless ``on_bad_member`` returns.
        ShardReadError: for a key that comes back, or an archive without a single sample.
    """
    options = {"inside": inside, "prefix": prefix, "on_skip": on_skip, "on_bad_member": on_bad_member}
    return chain.from_iterable(sample_runs(batches, url=url, position=position, **options))


def sample_runs(
    batches: Iterable[MemberBatch],
    *,
    url: str,
    inside: str | None = None,
    prefix: str = "",
    on_skip: Callable[[str], object] = lambda kind: None,
    on_bad_member: Callable[[BadMemberError], object] = raise_error,
    position: ReadPosition | None = None,
) -> Iterator[SampleRun]:
    """Like :func:`samples_of`, in runs: iterators over samples that are complete, whose length hints are exact.

    The samples of a batch whose data are a list are one run, if they are like those before; others are one run each. A
    run has to be consumed before the next one is asked for.
    """
    is_tracked = position is not None
    shown, position = inside or url, position or ReadPosition()
    # As they are written -> in lower case
    extensions: dict[str, str] = {}
    # Keys; of long ones, which would fill the memory, their hashes
    seen: set[str | bytes] = set()
    sample: Sample = {}
    # Key of the sample, without the prefix, and endings of its members, from the first dot on
    current = None
    endings: list[str] = []
    pattern = SamplePattern()
    for names, values in batches:
        keys = pattern.keys_in(names, current or "", endings) if type(values) is list else None
        if keys is not None and len(unique := set(keys)) == len(keys) and seen.isdisjoint(unique):
            seen |= unique
            sample.update(zip(pattern.extensions[len(endings) :], values))  # noqa: B905  # others follow
            start = len(pattern.endings) - len(endings)
            if not keys:
                endings = list(pattern.endings)
                continue
            prefixed = [prefix + key for key in keys] if prefix else keys
            done = [sample, *pattern.samples(prefixed, values[start:] if start else values, url)]
            sample, current = done.pop(), keys[-1]
            endings = list(pattern.endings[: len(sample) - 2])
            run = iter(done)
            if is_tracked:
                position.batch_starts = position.batch_starts[start :: len(pattern.endings)]
                position.batch_rest = run
            del values, done  # or they would keep a part in memory
            yield run
            continue
        known = {} if need_care("\n" + "\n".join(names)) else extensions
        position.batch_rest = unseen = iter(names)
        for name, value in zip(unseen, values, strict=True):
            key, _, ending = name.partition(".")
            extension = known.get(ending)
            # A new one, or a name of the batch needs the slow path
            if extension is None:
                if is_meta(name):
                    on_skip("meta")
                    continue
                path = name[2:] if name.startswith("./") else name
                reason = naming_fault(path)
                if reason is not None:
                    on_bad_member(_misnamed(name, reason, shown))
                    continue
                key, extension = split_key(path)
                if "/" not in ending and len(extensions) < _MAX_EXTENSIONS:
                    extensions[ending] = extension
                else:
                    ending = _OTHER
            if key != current:
                if sample:
                    if pattern.endings != tuple(endings):
                        pattern = _pattern_of(endings, sample)
                    yield iter((sample,))
                mark = key if len(key) <= LONG_KEY else blake2b(key.encode("utf-8", "surrogatepass")).digest()
                if mark in seen:
                    raise _came_back(name, key, shown)
                seen.add(mark)
                current, endings = key, [f".{ending}"]
                sample = {KEY: prefix + key, URL: url, extension: value}
            elif extension in sample:
                on_bad_member(_twice(name, key, extension, shown))
            else:
                sample[extension] = value
                endings.append(f".{ending}")
        del values  # or they would keep a part in memory
    if not sample:
        raise ShardReadError(
            f"{shown}: an archive without a single sample. An object of zeros, as a crashed disk leaves it, is one: "
            "write the shard again, or remove it.",
            url=url,
        )
    position.ended = True
    yield iter((sample,))


def _pattern_of(endings: list[str], sample: Sample) -> SamplePattern:
    if any("\n" in ending for ending in endings):
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


def _twice(name: str, key: str, extension: str, shown: str) -> BadMemberError:
    return BadMemberError(
        f"{shown}: member {name!r:.200}: the sample {key!r:.200} has {extension!r:.200} twice (extensions are compared "
        f"in lower case). Write the shard again with other names. {_ADVICE}",
        url=shown,
        member=name,
        reason="the sample has its extension already",
    )
