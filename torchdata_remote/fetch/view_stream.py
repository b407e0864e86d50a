"""Read a view of shards, or some of its samples, as a sequential binary file: a tar without its end."""

from __future__ import annotations

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

    __slots__ = ("sample_starts",)

    def __init__(
        self, scheduler: PartScheduler, url: str, number: int | None, start: int, samples: tuple[int, int] | None
    ) -> None:
        self._released, self._is_closed = True, False  # nothing to release if the URL is refused
        self.sample_starts = samples_in(url, samples)
        super().__init__(scheduler, url, number, max(start, int(self.sample_starts[0])), int(self.sample_starts[-1]))


def samples_in(url: str, samples: tuple[int, int] | None) -> Ints:
    """Return the first byte in a view of each sample, then the end of the last one; shape ``(num_samples + 1,)``.

    Args:
        url: of the view.
        samples: number of the first sample, and of the one after the last; ``None`` for all.

    Raises:
        UrlError: if the view has no such samples, or its URL was changed.
    """
    _, view = split_view_url(url)
    assert view is not None  # else it would be an object
    if samples is None:
        return sample_starts(view)
    first, last = samples
    if not first < last <= len(view.counts):
        shown = redact(url)
        raise UrlError(f"{shown}: no samples {first} to {last} in a view of {len(view.counts):,} samples.", url=shown)
    return sample_starts(view)[first : last + 1]
