"""Record batches of Arrow, of files (Feather) and of streams: whole messages, and their decoding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from .columns import Resolved
from .footer import Blocks, Footer
from .index import BATCH_BYTES, MAX_BATCH_ROWS, Fetch, Range, TableIndex, merged
from .library import reading, require_text
from .views import without_views

if TYPE_CHECKING:
    import pyarrow as pa

_END = b"\xff\xff\xff\xff\0\0\0\0"


class ArrowIndex(TableIndex):
    """The record batches of an Arrow file or stream."""

    def __init__(self, footer: Footer, url: str) -> None:
        import pyarrow as pa

        super().__init__(footer, url)
        assert footer.batches is not None
        assert footer.dictionaries is not None
        self._batches, self._dictionaries = footer.batches, footer.dictionaries
        self.counts = footer.batches.counts.tolist()
        with reading(url, "the schema"):
            self._stored = pa.ipc.read_schema(pa.py_buffer(footer.data))
            require_text(self._stored)
            self.schema = without_views(self._stored)

    def _messages(self, group: int) -> list[Range]:
        """Return the dictionaries and the batch. Those of a stream may be replaced, so none after the batch counts."""
        start = int(self._batches.starts[group])
        dictionaries = _ranges(self._dictionaries)
        before = [one for one in dictionaries if one[0] < start]
        return [*(before if self.footer.is_stream else dictionaries), (start, int(self._batches.stops[group]))]

    def ranges(self, group: int, columns: Resolved) -> list[Range]:
        with reading(self.url, f"record batch {group}"):
            return merged(self._messages(group), self.footer.num_bytes)

    def batches(
        self, group: int, columns: Resolved, pieces: Sequence[memoryview], fetch: Fetch
    ) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        with reading(self.url, f"record batch {group}"):
            starts = [start for start, _ in self.ranges(group, columns)]
            messages = []
            for start, stop in self._messages(group):
                at = max(index for index, begin in enumerate(starts) if begin <= start)
                messages.append(pieces[at][start - starts[at] : stop - starts[at]])
            data = b"".join([self.footer.data, *messages, _END])
            used = {path[0] for path in columns.paths}
            included = [index for index, name in enumerate(self._stored.names) if name in used]
            options = pa.ipc.IpcReadOptions(use_threads=False, included_fields=included or None)
            (batch,) = pa.ipc.open_stream(pa.BufferReader(data), options=options)
            # Offsets in the message are not checked elsewhere, and reading by a damaged one ends the process
            batch.validate(full=True)
            if batch.num_rows != self.counts[group]:
                raise ValueError(f"{batch.num_rows:,} of {self.counts[group]:,} rows")
            if self._stored != self.schema:
                batch = batch.cast(without_views(batch.schema))
            rows = max(1, min(MAX_BATCH_ROWS, BATCH_BYTES * batch.num_rows // max(1, batch.nbytes)))
            for first in range(0, batch.num_rows, rows):
                yield batch.slice(first, rows)


def _ranges(blocks: Blocks) -> list[Range]:
    return list(zip(blocks.starts.tolist(), blocks.stops.tolist(), strict=True))
