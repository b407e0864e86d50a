"""Read a view of shards, or some of its samples, as a sequential binary file: a tar without its end."""

from __future__ import annotations

from typing import NamedTuple

from ..core.shard_view import split_view_url
from ..core.urls import redact
from ..errors import UrlError
from .object_stream import ObjectStream
from .scheduler import PartScheduler
from .view_plan import Ints, sample_starts


class ViewStream(ObjectStream):
    """Reads the bytes of selected samples in order. Positions are those of the whole view, also in a part of it.

    Args:
        scheduler: downloads it.
        url: of the view.
        number: of the view among the objects of its pipe; ``None`` if their order cannot be repeated.
        start: the first byte to read.
        samples: number of the first sample, and of the one after the last; ``None`` for all.

    Raises:
        UrlError: if the view has no such samples, or its URL was changed.
    """

    __slots__ = ("selected",)

    def __init__(
        self, scheduler: PartScheduler, url: str, number: int | None, start: int, samples: tuple[int, int] | None
    ) -> None:
        self._released, self._is_closed = True, False  # nothing to release if the URL is refused
        self.selected = selected_in(url, samples)
        super().__init__(scheduler, url, number, max(start, self.selected.first_byte), self.selected.last_byte)


class SelectedSamples(NamedTuple):
    """What a reader compares with the samples that it finds.

    Args:
        starts: the first byte in the view of each sample, then the end of the last one; shape ``(num_samples + 1,)``.
        key_sums: of the samples' keys; shape ``(num_samples,)``, or ``None``.
    """

    starts: Ints
    key_sums: Ints | None

    @property
    def first_byte(self) -> int:
        """Of the first sample."""
        return int(self.starts[0])

    @property
    def last_byte(self) -> int:
        """The byte after the last sample."""
        return int(self.starts[-1])


def selected_in(url: str, samples: tuple[int, int] | None) -> SelectedSamples:
    """Return where the samples of a view begin, and the checksums of their keys.

    Args:
        url: of the view.
        samples: number of the first sample, and of the one after the last; ``None`` for all.

    Raises:
        UrlError: if the view has no such samples, or its URL was changed.
    """
    _, view = split_view_url(url)
    assert view is not None  # else it would be an object
    first, last = samples or (0, len(view.counts))
    if samples is not None and not first < last <= len(view.counts):
        shown = redact(url)
        raise UrlError(f"{shown}: no samples {first} to {last} in a view of {len(view.counts):,} samples.", url=shown)
    key_sums = None if view.key_sums is None else view.key_sums[first:last]
    return SelectedSamples(sample_starts(view)[first : last + 1], key_sums)
