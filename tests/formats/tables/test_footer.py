from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from tests.support.tables import FORMATS, file_bytes, numbered
from torchdata_remote.formats.tables import Columns, index_of, read_footer


class InMemory:
    def __init__(self, data: bytes) -> None:
        self.data, self.num_read = data, 0

    def read(self, start: int, stop: int) -> bytes:
        self.num_read += stop - start
        return self.data[start:stop]

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return [self.read(*one) for one in ranges]


@pytest.mark.parametrize("form", FORMATS)
def test_row_groups_are_read_by_their_ranges_alone(form: str) -> None:
    """Each group is decoded from the bytes of its ranges, which are few; nothing else is asked for."""
    data = file_bytes(numbered(50_000), form, rows=20_000)
    source = InMemory(data)
    index = index_of(read_footer(source, len(data), "t"), "t")
    assert list(index.counts) == [20_000, 20_000, 10_000]
    assert source.num_read < len(data) * (0.99 if form == "parquet" else 1.2)
    columns = Columns(["n"], None, None).resolve(index.schema, "t")
    found = []
    for group in range(3):
        pieces = [memoryview(data)[start:stop] for start, stop in index.ranges(group, columns)]
        for batch in index.batches(group, columns, pieces, fetch=_refused):
            found += batch.column(batch.schema.names.index("n")).to_pylist()
    assert found == list(range(50_000))


def _refused(start: int, stop: int) -> bytes:
    raise AssertionError(f"bytes {start} to {stop} are not planned")


def test_dictionaries_of_a_stream_may_be_replaced() -> None:
    """Each record batch gets the dictionary before it."""
    batches = [
        pa.record_batch({"c": pa.array(values).dictionary_encode()}) for values in (["a", "b"], ["x", "y"], ["y", "b"])
    ]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    data = sink.getvalue().to_pybytes()
    index = index_of(read_footer(InMemory(data), len(data), "t"), "t")
    columns = Columns(None, None, None).resolve(index.schema, "t")
    found = []
    for group in range(3):
        pieces = [memoryview(data)[start:stop] for start, stop in index.ranges(group, columns)]
        found += [batch.column("c").to_pylist() for batch in index.batches(group, columns, pieces, _refused)]
    assert found == [["a", "b"], ["x", "y"], ["y", "b"]]


def test_only_chosen_columns_of_arrow_are_decoded() -> None:
    data = file_bytes(numbered(10), "arrow")
    index = index_of(read_footer(InMemory(data), len(data), "t"), "t")
    columns = Columns(["text"], None, None).resolve(index.schema, "t")
    pieces = [memoryview(data)[start:stop] for start, stop in index.ranges(0, columns)]
    (batch,) = index.batches(0, columns, pieces, _refused)
    assert batch.schema.names == ["text"]
