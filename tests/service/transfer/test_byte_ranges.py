"""Which bytes are missing, and how they are cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote.service.transfer.byte_ranges import missing, parts

spans = st.tuples(st.integers(0, 60), st.integers(1, 20)).map(lambda span: (span[0], span[0] + span[1]))


@given(existing=st.lists(spans, max_size=8), num_bytes=st.integers(0, 60), part_bytes=st.integers(1, 20))
def test_gaps_complement_the_ranges(existing: list[tuple[int, int]], num_bytes: int, part_bytes: int) -> None:
    """Each byte is in a range or in one part; no part is empty, too long, or across a multiple of the part size."""
    cut = list(parts(missing(existing, num_bytes), part_bytes))
    present = {byte for start, end in existing for byte in range(start, end)}
    wanted = [byte for start, end in cut for byte in range(start, end)]
    assert wanted == [byte for byte in range(num_bytes) if byte not in present]
    assert all(start < end and start // part_bytes == (end - 1) // part_bytes for start, end in cut)
