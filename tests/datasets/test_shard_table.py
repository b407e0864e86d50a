"""The tables of a dataset of shards."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote.core.checksums import Checksums
from torchdata_remote.core.shared_memory import SharedMemory
from torchdata_remote.core.urls import RemoteUrl
from torchdata_remote.datasets._shard_table import ShardOffsets, ShardTable

SHARDS = st.lists(
    st.builds(
        RemoteUrl,
        st.text("abé/.", min_size=1).map("s3://b/{}".format),
        st.none() | st.integers(0, 1 << 50),
        st.none() | st.text("0123456789abcdef", min_size=1),
        st.just(Checksums(1 << 16, (1, 2))),
        st.integers(0, 1 << 40),
        st.just("d41d8cd98f00b204"),
        st.none() | st.integers(0, (1 << 32) - 1),
        st.none() | st.integers(0, (1 << 32) - 1),
    ),
    max_size=6,
)


@given(SHARDS)
def test_a_table_holds_what_reading_samples_needs(shards: list[RemoteUrl]) -> None:
    """URL, size, etag, number of samples and the checksums of the files beside it, also from a pickle."""

    def known(url: RemoteUrl) -> tuple[object, ...]:
        return str(url), url.size, url.etag, url.num_samples, url.index_crc32, url.keys_crc32

    table = ShardTable(shards)
    for one in (table, pickle.loads(pickle.dumps(table))):
        assert list(map(known, one)) == list(map(known, shards))
        assert list(map(known, one[::-2])) == list(map(known, shards[::-2]))
        assert one.counts.tolist() == [shard.num_samples for shard in shards]


COUNTS = np.array([2, 0, 3])
OFFSETS = [np.array([0, 512, 1024], np.uint64), np.array([0], np.uint64), np.array([0, 1, 2, 1 << 63], np.uint64)]


def test_what_one_process_has_read_another_one_finds() -> None:
    """As soon as it was written completely."""
    ours = ShardOffsets(COUNTS)
    theirs = ShardOffsets(COUNTS, ours.share())
    for shard in (2, 0, 1):
        assert shard not in theirs
        ours[shard] = OFFSETS[shard]
        assert shard in theirs
    for shard in range(3):
        assert theirs[shard].tolist() == ours[shard].tolist() == OFFSETS[shard].tolist()


def test_offsets_that_cannot_be_shared_stay_in_their_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full host, and where memory cannot be shared at all."""
    ours = ShardOffsets(COUNTS)
    theirs = ShardOffsets(COUNTS, ours.share())
    with monkeypatch.context() as patch:
        patch.setattr(SharedMemory, "write", lambda *args: False)
        ours[0] = OFFSETS[0]
        patch.setattr(SharedMemory, "create", lambda num_bytes: None)
        alone = ShardOffsets(COUNTS)
        alone[2] = OFFSETS[2]
    assert 0 in ours
    assert 0 not in theirs
    assert (alone[2].tolist(), 0 in alone) == (OFFSETS[2].tolist(), False)


def test_offsets_are_read_again_where_a_pickle_from_a_file_is_loaded() -> None:
    """The pickle holds none; a copy in the same process shares them."""
    ours = ShardOffsets(COUNTS)
    ours[0] = OFFSETS[0]
    assert copy.deepcopy(ours) is ours
    again = pickle.loads(pickle.dumps(ours))
    assert 0 not in again
    again[0] = OFFSETS[0]
    assert again[0].tolist() == OFFSETS[0].tolist()


def test_a_dataset_of_one_process_takes_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither made nor loaded from a pickle; once it is shared, what was read before is there for others."""
    with monkeypatch.context() as patch:
        patch.setattr(SharedMemory, "create", lambda num_bytes: pytest.fail("created"))
        ours = ShardOffsets(COUNTS)
        ours[2] = OFFSETS[2]
        assert 0 not in pickle.loads(pickle.dumps(ours))
    theirs = ShardOffsets(COUNTS, ours.share())
    assert [shard in theirs for shard in range(3)] == [False, False, True]
    assert theirs[2].tolist() == OFFSETS[2].tolist()
