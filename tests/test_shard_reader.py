"""What every reader of shards does, shown by a format of one line: a sample for each letter."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest
from torch.utils.data.datapipes.iter import IterableWrapper

from torchdata_remote import raise_error
from torchdata_remote.errors import MissingEndError, ShardReadError
from torchdata_remote.policies import OnBadShard, ShardGuard
from torchdata_remote.sample import Sample
from torchdata_remote.shard_reader import ShardReader


class Letters(ShardReader):
    """``!`` is damage, ``?`` asks for a missing end to be accepted."""

    def __init__(self, *shards: bytes, on_bad_shard: OnBadShard = raise_error, interleave: int = 1) -> None:
        self.streams = [io.BytesIO(shard) for shard in shards]
        pairs = [(f"https://host/{i}.letters?secret", stream) for i, stream in enumerate(self.streams)]
        source = IterableWrapper(pairs, deepcopy=False)
        super().__init__(source, on_bad_shard=on_bad_shard, interleave=interleave, storage_options=None)

    def samples_in(self, url: str, stream: Any, guard: ShardGuard) -> Iterator[Sample]:
        for letter in stream.read().decode():
            if letter == "!":
                raise ShardReadError(f"{url}: damage", url=url)
            if letter == "?" and not guard.accepts(MissingEndError(f"{url}: no end", url=url)):
                raise ShardReadError(f"{url}: not accepted", url=url)
            self.skipped.count_member("letter")
            yield {"__key__": letter, "__url__": url}


def keys(pipe: Letters) -> str:
    return "".join(sample["__key__"] for sample in pipe)


def test_a_base_without_a_format_cannot_be_made() -> None:
    """Whoever forgets ``samples_in`` is told so."""
    with pytest.raises(TypeError, match="samples_in"):
        ShardReader(IterableWrapper([]), on_bad_shard=raise_error, interleave=1, storage_options=None)  # type: ignore[abstract]


def test_samples_in_order_and_by_turns() -> None:
    """One shard after the other, or a sample of each by turns."""
    assert keys(Letters(b"abc", b"d", b"ef")) == "abcdef"
    assert keys(Letters(b"abc", b"d", b"ef", interleave=2)) == "adbecf"


@pytest.mark.parametrize("interleave", [0, -1])
def test_interleave_is_a_number_of_shards(interleave: int) -> None:
    """Fewer than one shard cannot be read."""
    with pytest.raises(ValueError, match=f"at least 1; got {interleave}"):
        Letters(b"a", interleave=interleave)


@pytest.mark.parametrize("interleave", [1, 2])
def test_every_stream_that_was_taken_is_closed(interleave: int) -> None:
    """At the end, at an error, and where whoever iterates stops early."""
    whole = Letters(b"ab", b"c", interleave=interleave)
    keys(whole)
    assert all(stream.closed for stream in whole.streams)
    bad = Letters(b"ab", b"!", interleave=interleave)
    with pytest.raises(ShardReadError, match="damage"):
        keys(bad)
    assert all(stream.closed for stream in bad.streams)
    given_up = Letters(b"ab", b"cd", interleave=interleave)
    samples = iter(given_up)
    for _ in range(interleave):
        next(samples)
    del samples
    assert [stream.closed for stream in given_up.streams] == [True, interleave == 2]


def test_the_policy_decides_and_skipped_tells_of_the_latest_pass() -> None:
    """A policy that returns leaves the rest of that shard out; URLs are shown without their query."""
    asked: list[ShardReadError] = []
    pipe = Letters(b"a!b", b"c", on_bad_shard=asked.append)
    assert keys(pipe) == "ac"
    assert [error.url for error in asked] == ["https://host/0.letters"]
    assert pipe.skipped.shards == {"https://host/0.letters": "https://host/0.letters: damage"}
    assert pipe.skipped.members == {"letter": 2}
    first = pipe.skipped
    assert keys(Letters(b"a?", on_bad_shard=lambda error: True)) == "a?"
    with pytest.raises(ValueError, match="closed"):  # the streams were those of the first pass
        keys(pipe)
    assert pipe.skipped is not first
    assert not pipe.skipped.members
