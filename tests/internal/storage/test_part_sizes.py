"""The sizes of an upload's parts, which no test can send: a terabyte."""

from __future__ import annotations

import pytest

from torchdata_remote.storage import multipart
from torchdata_remote.storage.multipart import MultipartWriter


class Recording(MultipartWriter[int]):
    """Keeps parts in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: dict[int, tuple[int, bytes]] = {}

    def _put(self, data: bytearray) -> None:
        raise AssertionError("not in parts")

    def _start_upload(self) -> str:
        return "upload"

    def _send_part(self, upload_id: str, number: int, start: int, data: bytearray) -> int:
        self.parts[number] = start, bytes(data)
        return number

    def _complete(self, upload_id: str) -> None:
        assert self._buffer, "the last part is never empty"
        self._submit_part()
        assert self._wait_for_parts() == sorted(self.parts)

    def _discard(self, upload_id: str) -> None:
        raise AssertionError("not given up")


def test_parts_grow_so_that_10_000_of_them_hold_1_tebibyte(monkeypatch: pytest.MonkeyPatch) -> None:
    """S3 and the dataset service accept 10,000 parts at most; the first 1,400 have the smallest size."""
    monkeypatch.setattr(multipart, "UPLOAD_PART_BYTES", 1)
    writer = Recording()
    writer.write(bytes(2_700))
    writer.commit()
    sizes = [len(writer.parts[number][1]) for number in sorted(writer.parts)]
    assert sum(sizes) == 2_700
    assert set(sizes[:1_400]) == {1}
    assert set(sizes[1_400:-1]) == {2}
    assert [writer.parts[number][0] for number in (1, 1_401, 1_402)] == [0, 1_400, 1_402]
    assert sum((16 << 20) * max(1, number // multipart.PARTS_PER_SIZE) for number in range(10_000)) >= 1 << 40
