"""The verdict of a run of ``bench``: the stage that took most of the time, and what to change."""

from __future__ import annotations

import pytest

from torchdata_remote.core.recording import Stats
from torchdata_remote.core.stats import StageStats
from torchdata_remote.inspection.trace import verdict

IDLE = StageStats()


@pytest.mark.parametrize(
    ("waits", "share", "expected"),
    [
        ({"list": StageStats(wait_s=6)}, 60,
         "waits for the listing: use a manifest, an index, or fewer and larger objects"),
        ({"fetch": StageStats(wait_s=8.2, busy_s=70, requests=100, retries=5)}, 82,
         "waits for the store: raise max_in_flight (8)"),
        ({"fetch": StageStats(wait_s=8.2, busy_s=12, requests=100)}, 82,
         "waits for the store: only 1.2 of 8 requests run at once; raise max_buffer_bytes, or add objects"),
        ({"fetch": StageStats(wait_s=8.2, busy_s=12, requests=100, retries=6)}, 82,
         "waits for the store: it failed 6 of 100 requests; lower max_in_flight (8)"),
        ({"read": StageStats(wait_s=7)}, 70, "goes into parsing shards: add workers"),
        ({"decode": StageStats(wait_s=7)}, 70,
         "goes into decoding: add workers, or decode smaller images (rgb(min_size=...))"),
        ({"read": StageStats(wait_s=4)}, 60, "goes into counting samples: the pipeline is not the limit"),
    ],
)  # fmt: skip
def test_the_verdict_names_share_stage_and_remedy(waits: dict[str, StageStats], share: int, expected: str) -> None:
    """Of the stage that took most of the time."""
    stages = [waits.get(name, IDLE) for name in ("list", "fetch", "read", "decode")]
    assert verdict(Stats(10.0, *stages), max_in_flight=8) == f"{share} % of the time {expected}"
