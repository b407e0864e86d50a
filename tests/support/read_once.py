"""Reading from a store as the engine does, for tests of stores."""

from __future__ import annotations

from torchdata_remote.core.concurrency_limit import ConcurrencyLimit
from torchdata_remote.core.options import RetryPolicy
from torchdata_remote.fetch.range_download import CHANGED_ANSWERS, RangeRequest, RangeSource
from torchdata_remote.fetch.range_reader import read_range


def read_once(
    store: RangeSource, path: str, start: int, end: int | None, etag: str | None = None, size: int | None = None
) -> bytes:
    """Read a range with all checks; retry transient faults as often as is needed to notice a changed object."""
    pieces = read_range(
        store,
        RangeRequest(f"test://{path}", path, start, end, size, etag),
        RetryPolicy(max_attempts=CHANGED_ANSWERS, first_wait_s=0),
        in_flight=ConcurrencyLimit(1, check=lambda: None),
        on_found=lambda found: None,
        sleep=lambda seconds: None,
    )
    return b"".join(pieces)
