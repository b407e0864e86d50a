"""Check that the samples of a view of shards are those that were selected, and say in errors where they are stored."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from copy import copy
from operator import length_hint
from typing import Any

from ..core.shard_view import key_sum
from ..core.urls import redact
from ..errors import BadMemberError, ShardReadError
from ..formats.grouping import SampleRun
from ..formats.position import ReadPosition
from ..formats.sample import KEY

_WRITE = "Write it again (torchdata-remote manifest --overwrite FOLDER), and select again."
_ADVICE = f"The index beside a shard (.tar.idx) belongs to another version of it. {_WRITE}"


def selected_runs(runs: Iterator[SampleRun], url: str, stream: Any, position: ReadPosition) -> Iterator[SampleRun]:
    """Yield the same runs of samples, and compare with the view their keys, and where the next run begins.

    Args:
        runs: of ``formats.grouping.sample_runs``, each of which is consumed before the next one is asked for.
        url: of the first shard, redacted, for errors.
        stream: with ``selected`` and ``place_of``, as a ``ViewStream`` has.
        position: updated by ``runs``.

    Raises:
        ShardReadError: if a selected sample has members of several keys, the key of the one before it, or another key
            than the file of keys had; and those of ``runs``, with the shard and byte of the selected sample where
            reading stopped.
    """
    # A list: numpy would release Python's lock for each search, and wait for the threads that fetch
    starts: list[int] = stream.selected.starts.tolist()
    key_sums = None if stream.selected.key_sums is None else stream.selected.key_sums.tolist()
    num_samples = len(starts) - 1
    number = bisect_right(starts, position.start.byte) - 1
    if number == num_samples:
        return
    try:
        for run in runs:
            if key_sums is not None:
                # A copy of an iterator over a list leaves that one where it is
                _require_keys(copy(run), url, stream, number, key_sums[number : number + length_hint(run)])
            number += length_hint(run)
            yield run
            byte = starts[-1] if position.ended else position.next_byte()
            # Not always where it was selected from: members that are part of no sample may be in front of it
            if bisect_right(starts, byte) - 1 != number:
                raise _other_samples(url, stream, starts, number, byte)
    except BadMemberError:
        raise
    except ShardReadError as error:
        if _WRITE not in str(error):
            shown, place = _place(stream, starts[min(number, num_samples - 1)])
            error.args = (
                f"{error} (Bytes of selected samples; this is at or behind byte {place:,} of {shown}. {_ADVICE})",
            )
        raise


def _other_samples(url: str, stream: Any, starts: list[int], number: int, byte: int) -> ShardReadError:
    """Error of samples that do not begin where the view has their first bytes.

    Args:
        url: of the first shard.
        stream: of the view.
        starts: first byte of each sample, and the end of the last one.
        number: of samples of the view that were read.
        byte: where the next one begins.
    """
    found = bisect_right(starts, byte) - 1
    several = found < number
    at = min(found, len(starts) - 2) if several else number
    shown, place = _place(stream, starts[at])
    what = "has members of several samples" if several else "continues the sample before it"
    if several and byte < starts[-1]:
        other, other_place = _place(stream, byte)
        what += f", and one begins at byte {other_place:,} of {other}"
    return ShardReadError(
        f"{url}: the selected sample {at:,}, from byte {place:,} of {shown} on, {what}. {_ADVICE}", url=url
    )


def _require_keys(samples: SampleRun, url: str, stream: Any, number: int, key_sums: list[int]) -> None:
    """Require that samples have the keys that were selected.

    Args:
        samples: of one run.
        url: of the first shard.
        stream: of the view.
        number: of the first sample in the view.
        key_sums: of the view's samples from there on; fewer if it ends before the run, which is found afterwards.
    """
    for at, (sample, expected) in enumerate(zip(samples, key_sums, strict=False), number):
        if key_sum(sample[KEY]) != expected:
            shown, place = _place(stream, stream.selected.starts[at])
            raise ShardReadError(
                f"{url}: the selected sample {at:,}, from byte {place:,} of {shown} on, has the key "
                f"{sample[KEY]!r:.200}, and another one was selected. The keys beside the shard (.tar.keys) are those "
                f"of another version of it. {_WRITE}",
                url=url,
            )


def _place(stream: Any, byte: Any) -> tuple[str, int]:
    shard, place = stream.place_of(int(byte))
    return redact(shard), place
