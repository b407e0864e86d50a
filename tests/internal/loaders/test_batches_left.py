"""The batch size with which ranks have equally many batches left."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote.core.frameworks.loader_length import num_batches
from torchdata_remote.loaders.unequal_ranks import fitting_batch_size

LENGTHS = st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=3), min_size=1, max_size=4)


@given(lengths=LENGTHS, batch_size=st.integers(1, 20), drop_last=st.booleans())
def test_with_the_fitting_batch_size_ranks_have_equal_numbers_of_batches(
    lengths: list[list[int]], batch_size: int, drop_last: bool
) -> None:
    """At least one."""
    size = fitting_batch_size(lengths, batch_size, drop_last=drop_last)
    if size is not None:
        assert len(counts := {num_batches(rank, size, drop_last=drop_last) for rank in lengths}) == 1
        assert counts != {0}
