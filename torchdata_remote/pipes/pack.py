"""``pack``: token sequences of any length in rows of one length."""

from __future__ import annotations

import warnings
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Literal

import numpy as np
import torch

from ..core.arguments import check
from ..core.arguments.amounts import whole, whole_or_none
from ..core.iter_datapipe import IterDataPipe, functional_datapipe
from ..core.world import counted
from ..errors import SampleError, StateError
from ..fetch.listing.source_argument import pipe_of
from ..formats.sample import describe_item
from .datapipe import DataPipe
from .env import Env
from .members import member_missing, member_of, url_of_item
from .passes import END, Pass, PipePass, Window

Tokens = np.ndarray[Any, np.dtype[np.int64]]
Row = dict[str, torch.Tensor]

_LARGEST = (1 << 63) - 1
_PADDING_ID = -1  # among document_ids


def token_id(name: str, value: int | None) -> int | None:
    """Check that an int can be a token.

    Raises:
        ValueError: if it is no int64.
    """
    if value is not None and not -_LARGEST - 1 <= value <= _LARGEST:
        raise check.marked(ValueError(f"{name} must be a token, an int64, got {value:_}."))
    return value


class TokenReader:
    """Takes the tokens out of an item.

    Args:
        member: of samples that has them; ``None`` for items that are tokens.
        separator: that follows each document; ``None`` for none.
    """

    def __init__(self, member: str | None, separator: int | None) -> None:
        self._member = member
        self._separator = None if separator is None else np.array([separator], np.int64)

    def tokens(self, item: Any) -> Tokens:
        """Return the tokens of an item with the separator: int64, shape ``(tokens,)``.

        Raises:
            SampleError: if they are no integers in one dimension.
            MissingMemberError: if the sample has no such member.
        """
        found: Any = self._value(item)
        if isinstance(found, torch.Tensor):
            try:
                found = found.detach().cpu().numpy()
            except (TypeError, RuntimeError):  # no numpy type, or sparse, nested, without data
                raise self._error(f"a {found.layout} tensor of {found.dtype}", item) from None
        if isinstance(found, np.ma.MaskedArray) and np.ma.is_masked(found):
            raise self._error("an array with masked tokens, which compressed() leaves out,", item)
        array = found if isinstance(found, np.ndarray) else self._array(found, item)
        if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
            raise self._error(f"{check.a_kind(found)} of {array.dtype} and shape {array.shape}", item)
        if array.dtype == np.uint64 and array.size and array.max() > _LARGEST:
            raise self._error(f"{array.max()}, which is no int64,", item)
        array = array.astype(np.int64, copy=False)
        return array if self._separator is None else np.concatenate([array, self._separator])

    def _value(self, item: Any) -> Any:
        if self._member is not None:
            return member_of(item, self._member, of=f"pack(member={self._member!r})")
        if isinstance(item, Mapping):
            raise member_missing(item, "pack: expected token ids", "member")
        return item

    def _array(self, value: Any, item: Any) -> np.ndarray[Any, Any]:
        if isinstance(value, (list, tuple, range)) or hasattr(value, "__array__"):
            try:
                return np.asarray(value)
            except (ValueError, TypeError, OverflowError):  # lists of different lengths
                raise self._error(check.a_kind(value) + " of other things", item) from None
        raise self._error(check.a_kind(value), item)

    def _error(self, found: str, item: Any) -> SampleError:
        return SampleError(
            "pack: expected token ids, a tensor, array or list of integers in one dimension, got "
            f"{found} in {describe_item(item)}. Put the tokenizer before it: map() or parallel_map().",
            url=url_of_item(item),
        )


def require_cut(start: int, document: Tokens) -> None:
    """Check that a document has the tokens that were handed out before the state was saved.

    Raises:
        StateError: if it has fewer.
    """
    if start > len(document):
        raise StateError(
            f"pack: {start:,} tokens of a document were handed out before the state was saved, and it has "
            f"{len(document):,} now: the tokenizer, or what it reads, has changed."
        )


class RowMaker:
    """Makes rows of documents.

    Args:
        length: of rows, in tokens.
        padding: token with which rows are filled.
        cu_seqlens: whether rows have the boundaries of their documents as cumulative lengths, too.
    """

    def __init__(self, length: int, padding: int, *, cu_seqlens: bool) -> None:
        self._length, self._padding, self._has_cu_seqlens = length, padding, cu_seqlens
        self._positions = np.arange(length)

    def row(self, documents: Sequence[Tokens], *, fill: bool) -> Row:
        """Return a row of documents, or parts of them, filled up to the length if it is to be."""
        ends = np.cumsum([len(document) for document in documents])
        num_tokens = int(ends[-1])
        size = self._length if fill else num_tokens
        input_ids, position_ids, document_ids = (np.empty(size, np.int64) for _ in range(3))
        start = 0
        for number, document in enumerate(documents):
            end = start + len(document)
            input_ids[start:end] = document
            position_ids[start:end] = self._positions[: end - start]
            document_ids[start:end] = number
            start = end
        if num_tokens < size:
            input_ids[num_tokens:] = self._padding
            position_ids[num_tokens:] = self._positions[: size - num_tokens]
            document_ids[num_tokens:] = _PADDING_ID
            ends = np.append(ends, size)
        row = {"input_ids": input_ids, "position_ids": position_ids, "document_ids": document_ids}
        if self._has_cu_seqlens:
            row["cu_seqlens"] = np.concatenate([[0], ends]).astype(np.int32)
        return {name: torch.from_numpy(array) for name, array in row.items()}


class OpenRow:
    """A row that is not full.

    Args:
        room: for so many tokens.
    """

    def __init__(self, room: int) -> None:
        self.room = room
        self.numbers: list[int] = []  # of its documents
        self.documents: list[Tokens] = []

    def add(self, number: int, document: Tokens) -> None:
        """Add a document that has room."""
        self.numbers.append(number)
        self.documents.append(document)
        self.room -= len(document)


class OpenRows:
    """The rows that are not full. A document goes where the least room is left; of equals, to the oldest.

    Args:
        length: of rows, in tokens.
    """

    def __init__(self, length: int) -> None:
        self._length = length
        self._rows: dict[int, OpenRow] = {}  # in the order in which they were opened
        self._by_room: list[tuple[int, int]] = []  # room and key, sorted
        self._num_opened = 0

    def restore(self, numbers: Sequence[int], documents: Sequence[Tokens]) -> None:
        """Open a row with these documents, as it was when the state was saved."""
        row = OpenRow(self._length)
        for number, document in zip(numbers, documents, strict=True):
            row.add(number, document)
        if row.room <= 0:
            raise StateError(
                f"pack: documents of a row have {self._length - row.room:,} tokens now, and had less than "
                f"{self._length:,} when the state was saved: the tokenizer, or what it reads, has changed."
            )
        self._put(self._opened(), row)

    def place(self, number: int, document: Tokens) -> OpenRow | None:
        """Put a document into a row, and return that if it is full now."""
        index = bisect_left(self._by_room, (len(document), -1))
        if index < len(self._by_room):
            _, key = self._by_room.pop(index)
            row = self._rows[key]
        else:
            key, row = self._opened(), OpenRow(self._length)
        row.add(number, document)
        if row.room == 0:
            self._rows.pop(key, None)
            return row
        self._put(key, row)
        return None

    def oldest(self) -> int | None:
        """Number of the oldest document that is held."""
        first = next(iter(self._rows.values()), None)
        return None if first is None else first.numbers[0]

    def close_oldest(self) -> OpenRow:
        """Remove the row with the oldest document."""
        key = next(iter(self._rows))
        row = self._rows.pop(key)
        self._by_room.pop(bisect_left(self._by_room, (row.room, key)))
        return row

    def numbers(self) -> list[tuple[int, ...]]:
        """Numbers of the documents in each row."""
        return [tuple(row.numbers) for row in self._rows.values()]

    def _opened(self) -> int:
        self._num_opened += 1
        return self._num_opened

    def _put(self, key: int, row: OpenRow) -> None:
        self._rows[key] = row
        insort(self._by_room, (row.room, key))


class _Last(str, Enum):
    PAD = "pad"
    SHORT = "short"
    DROP = "drop"


class _TooLong(str, Enum):
    SPLIT = "split"
    ERROR = "error"


@functional_datapipe("pack")
class Pack(DataPipe[dict[str, torch.Tensor]]):
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

    changes_count = True

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
        super().__init__()
        self.source_datapipe = pipe_of(source_datapipe, of="pack", holds="token ids")
        self.length = whole("length", length, of="tokens")
        self.split = check.flag("split", split)
        self.max_wait = whole("max_wait", max_wait, of="documents")
        self.last = check.choice("last", last, _Last)
        self.too_long = check.choice("too_long", too_long, _TooLong)
        self.member = check.text_or_none("member", member, example="input_ids")
        self.separator = token_id("separator", whole_or_none("separator", separator, at_least=None))
        self.reader = TokenReader(self.member, self.separator)
        self.maker = RowMaker(
            self.length,
            token_id("padding", whole("padding", padding, at_least=None)) or 0,
            cu_seqlens=check.flag("cu_seqlens", cu_seqlens),
        )

    def open(self, env: Env) -> Pass[Row]:
        return (_CutPass if self.split else _FittedPass)(self, env.open(self.source_datapipe))

    def order_options(self) -> Mapping[str, Any]:
        common = {"length": self.length, "member": self.member, "separator": self.separator}
        if self.split:
            return common
        return {**common, "split": False, "max_wait": self.max_wait}


class _PackPass(PipePass[Row]):
    """The position is that of the source before the oldest document in use, and what was done since.

    That is how many documents were read, how many tokens of the last one were handed out, and which documents are in
    the open rows.
    """

    def __init__(self, pipe: Pack, source: Pass[Any]) -> None:
        super().__init__(pipe, source)
        self._saved: tuple[Any, int, int, list[Any]] = (None, 0, 0, [])

    @property
    def position(self) -> Any:
        return self._saved

    def seek(self, position: Any) -> None:
        self._saved = position
        self.sources[0].resume(position[0])

    def _ends(self, rows: Sequence[Sequence[Tokens]], window: Window) -> Iterator[Row]:
        """Yield the row that is not full, or warn of the tokens that are dropped."""
        if self._pipe.last is _Last.DROP:
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
            self._saved = window.position, 0, 0, []
            yield self._pipe.maker.row(documents, fill=self._pipe.last is _Last.PAD)


class _CutPass(_PackPass):
    """Rows of documents that follow each other."""

    def items(self) -> Iterator[Row]:
        pipe, length = self._pipe, self._pipe.length
        at, _, start, _ = self._saved  # tokens of the document that were handed out
        window, num_tokens = Window(self.sources[0], at), 0  # of the row
        held: list[Tokens] = []
        while (item := window.read()) is not END:
            document = pipe.reader.tokens(item)
            require_cut(start, document)
            window.release(window.num_read - 1)
            del item
            while num_tokens + len(document) - start >= length:
                end = start + length - num_tokens
                row = pipe.maker.row([*held, document[start:end]], fill=False)
                start, num_tokens, held = end, 0, []
                self._saved = window.position, 0, start, []
                yield row
            if start < len(document):
                held.append(document[start:])
                num_tokens += len(document) - start
            start = 0
        yield from self._ends([held] if held else [], window)


class _FittedPass(_PackPass):
    """Rows of whole documents."""

    def items(self) -> Iterator[Row]:
        pipe, length = self._pipe, self._pipe.length
        rows, window, start = OpenRows(length), Window(self.sources[0], self._saved[0]), self._saved[2]
        self._restore(rows, window)
        while True:
            while (oldest := rows.oldest()) is not None and window.num_read - oldest >= pipe.max_wait:
                row = pipe.maker.row(rows.close_oldest().documents, fill=pipe.last is not _Last.SHORT)
                self._note(window, rows, window.num_read, 0)
                yield row
            if (item := window.read()) is END:
                break
            number, document = window.num_read - 1, pipe.reader.tokens(item)
            if len(document) > length and pipe.too_long is _TooLong.ERROR:
                raise self._too_long(item, len(document))
            require_cut(start, document)
            del item
            while len(document) - start >= length:
                row = pipe.maker.row([document[start : start + length]], fill=False)
                start += length
                self._note(window, rows, number, start)
                yield row
            rest, start = document[start:], 0
            full = rows.place(number, rest) if len(rest) else None
            if rows.oldest() is None:
                window.release(window.num_read)
            if full is not None:
                row = pipe.maker.row(full.documents, fill=False)
                self._note(window, rows, window.num_read, 0)
                yield row
        if pipe.last is _Last.DROP:
            yield from self._ends([rows.close_oldest().documents for _ in rows.numbers()], window)
            return
        while rows.oldest() is not None:
            row = pipe.maker.row(rows.close_oldest().documents, fill=pipe.last is _Last.PAD)
            self._note(window, rows, window.num_read, 0)
            yield row

    def _restore(self, rows: OpenRows, window: Window) -> None:
        """Read the documents of the open rows again."""
        _, num_read, _, open_rows = self._saved
        held = {number for numbers in open_rows for number in numbers}
        documents: dict[int, Tokens] = {}
        for number, item in enumerate(window.read_again(num_read, "pack")):
            if number in held:
                tokens = self._pipe.reader.tokens(item)
                documents[number] = tokens[len(tokens) // self._pipe.length * self._pipe.length :]
        for numbers in open_rows:
            rows.restore(numbers, [documents[number] for number in numbers])

    def _note(self, window: Window, rows: OpenRows, num_placed: int, cut: int) -> None:
        """Note the position: so many documents are in rows, and so many tokens of the next one were handed out."""
        oldest = rows.oldest()
        window.release(num_placed if oldest is None else oldest)
        held = [[number - window.oldest for number in numbers] for numbers in rows.numbers()]
        self._saved = window.position, num_placed - window.oldest, cut, held

    def _too_long(self, item: Any, num_tokens: int) -> SampleError:
        return SampleError(
            f"pack: {describe_item(item)} has {num_tokens:,} tokens, and rows have {self._pipe.length:,}: pass "
            'too_long="split", or filter it before.',
            url=url_of_item(item),
        )
