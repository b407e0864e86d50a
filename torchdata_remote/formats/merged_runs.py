"""Merge the samples of shards that have the same keys in the same order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from operator import length_hint
from typing import NamedTuple

from ..errors import JoinError
from .grouping import SampleRun
from .sample import KEY, URL, Sample, extensions

_ADVICE = "Pass align='keys', which finds samples by their keys in any order and counts those that a set does not have."


class MergedSet(NamedTuple):
    """One of the sets of a merge.

    Args:
        name: of the set.
        url: of its shard, redacted.
        runs: its samples, as ``sample_runs`` yields them.
        members: extensions to select; ``None`` for all.
    """

    name: str
    url: str
    runs: Iterator[SampleRun]
    members: Collection[str] | None = None


def merged_runs(sets: Sequence[MergedSet]) -> Iterator[SampleRun]:
    """Merge the samples of one shard of each set. Length hints of the runs are exact.

    Args:
        sets: errors and samples name the shard of the first one.

    Raises:
        JoinError: if the keys of two samples differ, a set has more samples, two sets have an extension, or a sample
            has none of the selected members.
    """
    current = [_next_run(one) for one in sets]
    while any(current):
        runs = [run for run in current if run is not None]
        if len(runs) < len(sets):
            longer = next(one for one, run in zip(sets, current, strict=True) if run is not None)
            shorter = next(one for one, run in zip(sets, current, strict=True) if run is None)
            what = f"the set {longer.name!r} has more samples than {shorter.url} of {shorter.name!r}. {_ADVICE}"
            raise _error(longer, what)
        yield _MergedRun(sets, runs)
        current = [run if length_hint(run) else _next_run(one) for run, one in zip(runs, sets, strict=True)]


def _next_run(one: MergedSet) -> SampleRun | None:
    return next((run for run in one.runs if length_hint(run)), None)


class _MergedRun(Iterator[Sample]):
    """Samples that all sets have read, merged when they are asked for, so that the positions of the sets stay exact."""

    __slots__ = ("_first", "_num_left", "_others", "_sets")

    def __init__(self, sets: Sequence[MergedSet], runs: Sequence[SampleRun]) -> None:
        self._sets, self._num_left = sets, min(map(length_hint, runs))
        self._first, *self._others = [_taking(run, one) for run, one in zip(runs, sets, strict=True)]

    def __next__(self) -> Sample:
        if not self._num_left:
            raise StopIteration
        self._num_left -= 1
        sample = self._first()
        key = sample[KEY]
        for take in self._others:
            more = take()
            if more.pop(KEY) != key:
                raise self._other_key(key)
            del more[URL]
            num_members = len(sample) + len(more)
            sample.update(more)
            if len(sample) != num_members:
                raise self._extension_twice(take, more)
        return sample

    def __length_hint__(self) -> int:
        return self._num_left

    def _other_key(self, key: str) -> JoinError:
        names, urls = ", ".join(repr(one.name) for one in self._sets), [one.url for one in self._sets]
        what = f"the sample {key!r:.200} has a different key at the same place of {', '.join(urls[1:])}. {_ADVICE}"
        return _error(self._sets[0], f"the sets {names} have other samples, or another order: {what}")

    def _extension_twice(self, take: Callable[[], Sample], more: Sample) -> JoinError:
        number = self._others.index(take) + 1
        before = ", ".join(repr(one.name) for one in self._sets[:number])
        return _error(
            self._sets[number],
            f"the set {self._sets[number].name!r} has one of the members {', '.join(map(repr, more))}, which {before} "
            "has too. Select the members of each set: members={'image': ('jpg',), 'caption': ('txt',)}, with the names "
            "of your sets.",
        )


def _error(one: MergedSet, what: str) -> JoinError:
    return JoinError(f"{one.url}: {what}", url=one.url)


def _taking(run: SampleRun, one: MergedSet) -> Callable[[], Sample]:
    if one.members is None:
        return run.__next__
    names = {KEY, URL, *one.members}

    def take() -> Sample:
        sample = next(run)
        found = {name: value for name, value in sample.items() if name in names}
        if len(found) <= 2:  # key and URL
            raise _error(
                one,
                f"the sample {sample[KEY]!r:.200} of the set {one.name!r} has none of the members in members=, only "
                f"{', '.join(map(repr, extensions(sample)))}. Pass align='keys' with how='inner' to leave these out, "
                "or with how='left' to read them without these members.",
            )
        return found

    return take
