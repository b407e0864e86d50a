"""A range that arrives block by block, compared with its checksums through every fault."""

from __future__ import annotations

from collections.abc import Generator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchdata_remote.core.checksums import BlockSummer
from torchdata_remote.errors import ObjectChangedError, ShardCorruptError, TransientStorageError
from torchdata_remote.fetch.range_download import CHANGED_ANSWERS, ObjectVersion, RangeDownload, RangeRequest
from torchdata_remote.storage import Answer

FAULTS = st.sampled_from(["well", "flipped", "cut", "refused", "short", "other", "whole"])


class Faulty:
    """An object whose responses fail by a script, then succeed. Bodies have chunks of ``chunk_bytes``."""

    def __init__(self, data: bytes, faults: list[str], chunk_bytes: int, chance: int) -> None:
        self.data, self.faults, self.chunk_bytes, self.chance = data, faults, chunk_bytes, chance
        self.asked: list[tuple[int, int | None]] = []

    def read(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        self.asked.append((start, end))
        fault = self.faults.pop(0) if self.faults else "well"
        if fault == "refused":
            raise TransientStorageError("503")
        last = len(self.data) if end is None else end
        first = 0 if fault == "whole" else start
        last = len(self.data) if fault == "whole" else last
        body, etag = bytearray(self.data[first:last]), '"1"'
        if fault == "flipped" and body:
            body[self.chance % len(body)] ^= 1
        if fault == "other":
            body, etag = bytearray(len(body)), '"2"'
        if fault == "short":
            body = body[:-1]
            last -= 1
        cut = self.chance % (len(body) + 1) if fault == "cut" else len(body)
        return Answer(first, last, len(self.data), etag, self.chunks(bytes(body[:cut])))

    def chunks(self, body: bytes) -> Generator[memoryview, None, None]:
        for start in range(0, len(body), self.chunk_bytes):
            yield memoryview(body)[start : start + self.chunk_bytes]


@given(
    data=st.binary(min_size=1, max_size=120),
    block_bytes=st.integers(1, 40),
    first_block=st.integers(0, 10),
    num_blocks=st.integers(1, 4),
    faults=st.lists(FAULTS, max_size=8),
    chunk_bytes=st.integers(1, 50),
    chance=st.integers(0, 200),
)
@settings(max_examples=400)
def test_only_verified_bytes_are_yielded(
    data: bytes,
    block_bytes: int,
    first_block: int,
    num_blocks: int,
    faults: list[str],
    chunk_bytes: int,
    chance: int,
) -> None:
    """Through any faults, block by block; repeated damage is an error."""
    summer = BlockSummer(block_bytes)
    summer.update(data)
    start = min(first_block * block_bytes, (len(data) - 1) // block_bytes * block_bytes)
    end = min(start + num_blocks * block_bytes, len(data))
    source = Faulty(data, list(faults), chunk_bytes, chance)
    wanted = RangeRequest("s3://b/a", "a", start, end, len(data), '"1"', summer.checksums())
    found: list[ObjectVersion] = []
    reading = RangeDownload(source, wanted, 30.0, found.append, lambda: 0.0)
    got, corrupt = b"", False
    while not reading.complete() and not corrupt:
        try:
            for piece in reading.attempt():
                got += piece
        except TransientStorageError:
            continue
        except ShardCorruptError:
            corrupt = True
        except ObjectChangedError:
            answers = [fault for fault in faults if fault != "refused"]  # which is none
            assert ",".join(["other"] * CHANGED_ANSWERS) in ",".join(answers)
            return
        assert data[start:end].startswith(got)
    assert (got == data[start:end]) != corrupt
    assert not corrupt or faults.count("flipped") >= 2
    assert found == [ObjectVersion(len(data), '"1"', end)]
    whole_blocks = {*range(start, end, block_bytes), end}
    assert len(got) == end - start or start + len(got) in whole_blocks


def test_a_damaged_block_is_requested_again() -> None:
    """After a damaged block the next request begins with it, and not with what was right before."""
    data = bytes(range(100))
    summer = BlockSummer(10)
    summer.update(data)
    source = Faulty(data, ["flipped"], 7, chance=34)
    reading = RangeDownload(
        source,
        RangeRequest("s3://b/a", "a", 0, 100, 100, None, summer.checksums()),
        30.0,
        lambda found: None,
        lambda: 0.0,
    )
    with pytest.raises(TransientStorageError, match=r"s3://b/a: the block at byte 30 does not match its checksum"):
        list(reading.attempt())
    list(reading.attempt())
    assert source.asked == [(0, 100), (30, 100)]
    assert reading.complete()
