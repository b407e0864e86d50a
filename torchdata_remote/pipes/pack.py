"""``pack``: token sequences of any length in rows of one length."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any, ClassVar, Literal

import torch

from ..core.arguments import check
from ..core.arguments.amounts import whole, whole_or_none
from ..core.iter_datapipe import IterDataPipe, functional_datapipe
from ..core.world import counted
from ..errors import SampleError
from ..fetch.listing.source_argument import pipe_of
from ..formats.sample import describe_item
from .base.chain import Snapshot
from .base.members import url_of_item
from .base.token_bins import OpenRows, require_rows
from .base.token_rows import RowMaker, TokenReader, Tokens, require_cut, token_id
from .base.window import END, Window, WindowedPipe


class _Last(str, Enum):
    PAD = "pad"
    SHORT = "short"
    DROP = "drop"


class _TooLong(str, Enum):
    SPLIT = "split"
    ERROR = "error"


@functional_datapipe("pack")
class Pack(WindowedPipe[dict[str, torch.Tensor]]):
    """Pack token sequences into rows of one length (functional name: ``pack``).

    With ``split=True`` documents follow each other, and the end of a row cuts one in two: no room is left but in the
    last row of a pass. With ``split=False`` documents stay whole: each goes into the open row where it leaves the least
    room (best fit), and a row is handed out when it is full, or when its first document was read ``max_wait`` documents
    ago, filled up. Each token of the source is handed out once, but those that ``last="drop"`` leaves out.

    The state has the position of the source before the oldest document that is not handed out wholly, and a few
    numbers. A resumed pass reads one document again, or ``max_wait`` documents with ``split=False``. Chain it after
    ``shuffle_samples``, and the tokenizer by ``parallel_map`` before it.

    Ranks get different numbers of rows, even after ``equalize_ranks``: as their numbers of tokens differ. For equal
    numbers chain ``repeat_epochs().pack(...).take(n)``. There is no ``len``.

    Args:
        source_datapipe: token ids, 1-D tensors, arrays or lists of integers; or samples with such a member. An empty
            document is left out, or is a separator only.
        length: of rows, in tokens.
        member: name of the member of samples that has the tokens; ``None`` if items are tokens.
        separator: token that is appended to each document, such as that of the end of a text; ``None`` for none.
        split: whether documents are cut at the end of a row.
        max_wait: with ``split=False``, the number of documents that are read at most before a row is handed out. Rows
            that are longer, or documents that are shorter, need more of them to be filled well.
        too_long: with ``split=False``, for a document that is longer than a row: ``"split"`` cuts it into rows and a
            rest, ``"error"`` raises.
        last: for the rows that are not full at the end of a pass: ``"pad"`` fills them up, ``"short"`` hands them out
            as they are, ``"drop"`` leaves them out, with a warning that counts the tokens. With ``split=False``,
            ``"short"`` fills up no row.
        padding: token with which rows are filled up.
        cu_seqlens: whether rows have ``cu_seqlens``. torch's ``default_collate`` cannot stack those of several rows.

    Yields:
        dict: ``input_ids``, the tokens; ``position_ids``, the position in the document, from 0 again after a cut;
        ``document_ids``, the number of the document in this row, -1 for padding: tensors, int64, shape ``(length,)``.
        With ``cu_seqlens=True`` also ``cu_seqlens``, the cumulative lengths of the documents from 0 on, int32, shape
        ``(documents + 1,)``; padding counts as a document, so the last one is the length.

    Raises:
        SampleError: for items that are no token ids; for a document that is too long.
        MissingMemberError: if a sample has no such member.

    Example:
        >>> for row in Pack(IterableWrapper([[1, 2, 3], [4, 5]]), 4):
        ...     print(row["input_ids"].tolist(), row["position_ids"].tolist(), row["document_ids"].tolist())
        [1, 2, 3, 4] [0, 1, 2, 0] [0, 0, 0, 1]
        [5, 0, 0, 0] [0, 0, 1, 2] [0, -1, -1, -1]
    """

    state_fields = ("at", "read", "cut", "rows")
    state_counts = ("read", "cut")
    beginning: ClassVar[dict[str, Any]] = {"at": None, "read": 0, "cut": 0, "rows": []}

    def __init__(
        self,
        source_datapipe: IterDataPipe[Any],
        length: int,
        *,
        member: str | None = None,
        separator: int | None = None,
        split: bool = True,
        max_wait: int = 512,
        too_long: Literal["split", "error"] = "split",
        last: Literal["pad", "short", "drop"] = "pad",
        padding: int = 0,
        cu_seqlens: bool = False,
    ) -> None:
        super().__init__(pipe_of(source_datapipe, of="pack", holds="token ids"))
        self.length = whole("length", length, of="tokens")
        self.split = check.flag("split", split)
        self.max_wait = whole("max_wait", max_wait, of="documents")
        self.last = check.choice("last", last, _Last)
        self.too_long = check.choice("too_long", too_long, _TooLong)
        self.member = check.text_or_none("member", member, example="input_ids")
        self.separator = token_id("separator", whole_or_none("separator", separator, at_least=None))
        self._reader = TokenReader(self.member, self.separator)
        self._maker = RowMaker(
            self.length,
            token_id("padding", whole("padding", padding, at_least=None)) or 0,
            cu_seqlens=check.flag("cu_seqlens", cu_seqlens),
        )

    def load_state_dict(self, state: Any) -> None:
        super().load_state_dict(state)
        require_rows(state["rows"], state["read"])

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        state, window = self._begin()
        yield from self._cut(state, window) if self.split else self._fitted(state, window)

    def _cut(self, state: Any, window: Window) -> Iterator[dict[str, torch.Tensor]]:
        """Yield rows of documents that follow each other."""
        length, place = self.length, self._place
        start, num_tokens = state["cut"], 0  # of the document; of the row
        held: list[Tokens] = []
        while (item := window.read()) is not END:
            document = self._reader.tokens(item)
            require_cut(start, document)
            window.release(window.num_read - 1)
            del item
            while num_tokens + len(document) - start >= length:
                end = start + length - num_tokens
                row = self._maker.row([*held, document[start:end]], fill=False)
                start, num_tokens, held = end, 0, []
                place.snapshot = partial(_state_of, window.position(), 0, start, [])
                yield row
            if start < len(document):
                held.append(document[start:])
                num_tokens += len(document) - start
            start = 0
        yield from self._ends([held] if held else [], window)

    def _fitted(self, state: Any, window: Window) -> Iterator[dict[str, torch.Tensor]]:
        """Yield rows of whole documents."""
        length, place, rows, start = self.length, self._place, OpenRows(self.length), state["cut"]
        self._restore(rows, state, window)
        while True:
            while (oldest := rows.oldest()) is not None and window.num_read - oldest >= self.max_wait:
                row = self._maker.row(rows.close_oldest().documents, fill=self.last is not _Last.SHORT)
                place.snapshot = _state_after(window, rows, window.num_read, 0)
                yield row
            if (item := window.read()) is END:
                break
            number, document = window.num_read - 1, self._reader.tokens(item)
            if len(document) > length and self.too_long is _TooLong.ERROR:
                raise self._too_long(item, len(document))
            require_cut(start, document)
            del item
            while len(document) - start >= length:
                row = self._maker.row([document[start : start + length]], fill=False)
                start += length
                place.snapshot = _state_after(window, rows, number, start)
                yield row
            rest, start = document[start:], 0
            full = rows.place(number, rest) if len(rest) else None
            if rows.oldest() is None:
                window.release(window.num_read)
            if full is not None:
                row = self._maker.row(full.documents, fill=False)
                place.snapshot = _state_after(window, rows, window.num_read, 0)
                yield row
        yield from self._open_at_end(rows, window)

    def _restore(self, rows: OpenRows, state: Any, window: Window) -> None:
        """Read the documents of the open rows again."""
        held = {number for numbers in state["rows"] for number in numbers}
        documents: dict[int, Tokens] = {}
        for number, item in enumerate(window.read_again(state["read"])):
            if number in held:
                tokens = self._reader.tokens(item)
                documents[number] = tokens[len(tokens) // self.length * self.length :]
        for numbers in state["rows"]:
            rows.restore(numbers, [documents[number] for number in numbers])

    def _open_at_end(self, rows: OpenRows, window: Window) -> Iterator[dict[str, torch.Tensor]]:
        if self.last is _Last.DROP:
            yield from self._ends([rows.close_oldest().documents for _ in rows.numbers()], window)
            return
        while rows.oldest() is not None:
            row = self._maker.row(rows.close_oldest().documents, fill=self.last is _Last.PAD)
            self._place.snapshot = _state_after(window, rows, window.num_read, 0)
            yield row

    def _ends(self, rows: Sequence[Sequence[Tokens]], window: Window) -> Iterator[dict[str, torch.Tensor]]:
        """Yield the row that is not full, or warn of the tokens that are dropped."""
        if self.last is _Last.DROP:
            if rows:
                dropped = counted(sum(len(document) for documents in rows for document in documents), "token")
                warnings.warn(
                    f'pack(last="drop") left out {dropped} in {counted(len(rows), "row")} that the end of a pass did '
                    'not fill, in one reader. last="pad" hands them out.',
                    RuntimeWarning,
                    stacklevel=2,
                )
            return
        for documents in rows:
            window.release(window.num_read)
            self._place.snapshot = partial(_state_of, window.position(), 0, 0, [])
            yield self._maker.row(documents, fill=self.last is _Last.PAD)

    def _too_long(self, item: Any, num_tokens: int) -> SampleError:
        return SampleError(
            f"pack: {describe_item(item)} has {num_tokens:,} tokens, and rows have {self.length:,}: pass "
            'too_long="split", or filter it before.',
            url=url_of_item(item),
        )

    def order_options(self) -> Mapping[str, Any]:
        common = {"length": self.length, "member": self.member, "separator": self.separator}
        if self.split:
            return common
        return {**common, "split": False, "max_wait": self.max_wait}


def _state_after(window: Window, rows: OpenRows, num_placed: int, cut: int) -> Snapshot:
    """Return the state now: so many documents are in rows, and so many tokens of the next one were handed out."""
    oldest = rows.oldest()
    window.release(num_placed if oldest is None else oldest)
    return partial(_state_of, window.position(), num_placed - window.oldest, cut, rows.numbers(), window.oldest)


def _state_of(at: Snapshot, num_read: int, cut: int, rows: Sequence[Sequence[int]], oldest: int = 0) -> Any:
    held = [[number - oldest for number in numbers] for numbers in rows]
    return {"at": at(), "read": num_read, "cut": cut, "rows": held}
