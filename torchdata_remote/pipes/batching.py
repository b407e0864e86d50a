"""Pipes that hold items until others complete them: ``bucket`` makes batches of them, ``pack`` rows of tokens."""

from __future__ import annotations

import warnings
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain, pairwise
from math import inf
from typing import Any, Literal, TypeVar

import numpy as np
import torch

from ..core import arguments as check
from ..core.arguments import float_of, real, whole, whole_or_none
from ..core.iter_datapipe import IterDataPipe, functional_datapipe
from ..core.world import counted
from ..errors import SampleError, StateError
from ..formats.sample import describe_item
from .chain import functional_name
from .datapipe import SourcePipe
from .env import Env
from .members import listed, member_missing, member_of, url_of_item
from .passes import END, Pass, PipePass

T = TypeVar("T")
Tokens = np.ndarray[Any, np.dtype[np.int64]]
Row = dict[str, torch.Tensor]

_LARGEST = (1 << 63) - 1
_PADDING_ID = -1  # among document_ids


@dataclass(slots=True)
class _Group:
    """Items that are handed out together.

    Args:
        size: length of the longest one of a batch; of all documents of a row together.
        numbers: of the items, in the order in which they were read.
        items: a batch, or the documents of a row.
    """

    size: Any = 0
    numbers: list[int] = field(default_factory=list)
    items: list[Any] = field(default_factory=list)

    def add(self, number: int, item: Any, size: Any) -> None:
        """Add an item; the group has this size with it."""
        self.numbers.append(number)
        self.items.append(item)
        self.size = size


class _HoldingPass(PipePass[T]):
    """Holds items in groups, and hands out a group that is full, or whose oldest item has waited.

    The position is that of the source before the oldest item in use; how many were placed since; how much of the next
    one was handed out, for documents that are cut; and which items are held.
    """

    max_wait: float
    """Number of items that are read at most before one is handed out."""

    def __init__(self, pipe: Any, source: Pass[Any]) -> None:
        super().__init__(pipe, source)
        self.max_wait = pipe.max_wait
        self.groups: dict[Any, _Group] = {}
        """Those that are not full, in the order of their oldest items."""
        self.num_placed = self.cut = 0
        self._saved: tuple[Any, int, int, int, Any] = None, 0, 0, 0, ()
        # Positions of the source before the items in use, and the number of the first of these
        self._before: deque[Any] = deque()
        self._first = 0

    def place(self, item: Any) -> Iterator[_Group]:
        """Add an item to a group, and yield groups that are full. One that is handed out before has no place yet."""
        raise NotImplementedError

    def hold(self, number: int, item: Any, key: Any) -> None:
        """Add an item that was held when the state was saved, by the number of the oldest one of its group."""
        raise NotImplementedError

    def output(self, group: _Group) -> T:
        """Return what is handed out for a group."""
        raise NotImplementedError

    def end(self) -> None:
        """Called at the end of the source, before the groups that are left are handed out."""

    def remove(self, key: Any) -> _Group:
        """Remove a group."""
        return self.groups.pop(key)

    def items(self) -> Iterator[T]:
        source = iter(self.sources[0])
        self._hold_again(source)
        while True:
            while self.groups and self.num_placed - next(iter(self.groups.values())).numbers[0] >= self.max_wait:
                yield self._handed_out(self.remove(next(iter(self.groups))))
            if self.max_wait < 0:
                return
            if (item := next(source, END)) is END:
                self.end()
                self.max_wait = -1  # for none of the groups that are left
                continue
            self._before.append(self.sources[0].position)
            for group in self.place(item):
                yield self._handed_out(group)
            del item
            if not self.groups:
                self._release()

    def _hold_again(self, source: Iterator[Any]) -> None:
        start, num_placed, self.cut, _, held = self._saved
        self._before.append(start)
        keys = {number: numbers[0] for numbers in held for number in numbers}
        for self.num_placed, item in zip(range(1, num_placed + 1), source, strict=False):
            self._before.append(self.sources[0].position)
            if self.num_placed - 1 in keys:
                self.hold(self.num_placed - 1, item, keys[self.num_placed - 1])
        if self.num_placed < num_placed:
            raise StateError(
                f"{functional_name(type(self._pipe))} had {num_placed:,} items to hold when the state was saved, and "
                f"gets {self.num_placed:,} now: what the chain reads, or a function of it, has changed."
            )

    def _release(self) -> None:
        """Forget the positions before the oldest item in use."""
        oldest = next(iter(self.groups.values())).numbers[0] if self.groups else self.num_placed
        for _ in range(oldest - self._first):
            self._before.popleft()
        self._first = oldest

    def _handed_out(self, group: _Group) -> T:
        self._release()
        held = [tuple(other.numbers) for other in self.groups.values()]
        self._saved = self._before[0], self.num_placed - self._first, self.cut, self._first, held
        return self.output(group)

    @property
    def position(self) -> Any:
        start, num_placed, cut, first, held = self._saved
        return start, num_placed, cut, [[number - first for number in numbers] for numbers in held]

    def seek(self, position: Any) -> None:
        start, num_placed, cut, held = position
        self._saved = start, num_placed, cut, 0, held
        self.sources[0].resume(start)


@functional_datapipe("bucket")
class Bucket(SourcePipe[list[T]]):
    """Group items of like length into batches (functional name: ``bucket``).

    Little is lost to padding then. An item waits in the bucket of its length until a batch of that bucket is full, at
    most until ``max_wait`` more items were read: then the batch is handed out as it is, smaller. So ``max_wait`` bounds
    the items in memory and what a resumed pass reads again, too. Within a batch items have the order of the source. At
    the end of a pass the batches that are not full are handed out, the one with the oldest item first.

    The state has the position of the source before the oldest item that is held, and one bit for each item since.

    Ranks get different numbers of batches, even after ``equalize_ranks``: as their lengths differ. For equal numbers
    chain ``repeat_epochs().bucket(...).take(n)``. There is no ``len``. The batches are lists, as those of ``batch``:
    chain ``collate`` or ``map``, and give the loader ``batch_size=None``.

    Args:
        source_datapipe: any items.
        batch_size: largest number of items of a batch; ``None`` if ``max_tokens`` bounds them.
        max_tokens: bound on the tokens of a padded batch: number of items times the length of the longest. An item that
            is longer is a batch of its own. ``None`` for no bound.
        length: name of the member of samples whose ``len`` counts, or a function that returns the length of an item;
            without ``boundaries`` and ``max_tokens`` it may return anything that can be a key of a dict, such as the
            size of an image. ``None`` for the ``len`` of the item.
        boundaries: increasing; the greatest length of each bucket: ``[128, 512]`` are the lengths to 128, 129 to 512,
            and more. ``None`` for a bucket for each length.
        max_wait: number of items.

    Yields:
        list: items.

    Raises:
        SampleError: if the length is no number where there has to be one.
        MissingMemberError: if a sample has no such member.
        Exception: of the function.

    Example:
        >>> words = IterableWrapper(["a", "ccc", "b", "dddd", "e"])
        >>> list(Bucket(words, 2, boundaries=[2]))
        [['a', 'b'], ['ccc', 'dddd'], ['e']]
    """

    changes_count = True
    order_names = "batch_size", "max_tokens", "boundaries", "max_wait"

    def __init__(
        self,
        source_datapipe: IterDataPipe[T],
        batch_size: int | None = None,
        *,
        max_tokens: int | None = None,
        length: str | Callable[[T], Any] | None = None,
        boundaries: Sequence[float] | None = None,
        max_wait: int = 1000,
    ) -> None:
        super().__init__(source_datapipe, "items")
        self.batch_size = whole_or_none("batch_size", batch_size)
        self.max_tokens = whole_or_none("max_tokens", max_tokens)
        if self.batch_size is None and self.max_tokens is None:
            raise check.marked(TypeError("a batch has no bound: pass batch_size= or max_tokens=."))
        self.max_wait = whole("max_wait", max_wait, of="items")
        self.boundaries: list[float] | None = None
        if boundaries is not None:
            bounds = listed("boundaries", boundaries, example="[128, 512]")
            self.boundaries = [real("boundaries", bound, positive=False) for bound in bounds]
            if not all(low < high for low, high in pairwise(self.boundaries)):
                raise check.marked(ValueError(f"boundaries must be increasing, got {self.boundaries}."))
        self._member = length if isinstance(length, str) else None
        function = len if length is None or self._member else length
        self._function = check.function("length", function, example="num_tokens_of")

    def open(self, env: Env) -> Pass[list[T]]:
        return _BucketPass(self, env.open(self.source_datapipe))

    def key_and_length(self, item: T) -> tuple[Any, Any]:
        """Return what the items of a bucket have in common, and the length of one."""
        value: Any = item
        if self._member is not None:
            value = member_of(item, self._member, of=f"bucket(length={self._member!r})")
        elif self._function is len and isinstance(item, Mapping):
            raise member_missing(item, "bucket: expected items that have a length", "length")
        length = self._function(value)
        is_any, number = self.boundaries is None and self.max_tokens is None, length
        try:
            if type(length) is not int and not (is_any and not isinstance(length, torch.Tensor | np.ndarray)):
                number = float_of(length)  # also because equal tensors are different keys of a dict
            hash(number)
            is_right = number is not None and bool(number == number)  # NaN is not
        except (TypeError, ValueError, OverflowError):
            is_right = False
        if not is_right:
            expected = "a number, or another key of a dict" if is_any else "a number for boundaries= and max_tokens="
            shown = check.shown(length)
            raise SampleError(f"bucket: the length of {describe_item(item)} must be {expected}, got {shown}.")
        return (number if self.boundaries is None else bisect_left(self.boundaries, number)), number


class _BucketPass(_HoldingPass[list[T]]):
    """The position has one bit for each item."""

    def place(self, item: T) -> Iterator[_Group]:
        max_items, max_tokens = self._pipe.batch_size, self._pipe.max_tokens
        key, length = self._pipe.key_and_length(item)
        group = self.groups.get(key)
        if group and max_tokens is not None and max(length, group.size) * (len(group.items) + 1) > max_tokens:
            yield self.remove(key)
        group = self._add(self.num_placed, item, key, length)
        self.num_placed += 1
        num_items = len(group.items)
        if num_items == max_items or (max_tokens is not None and group.size * (num_items + 1) > max_tokens):
            del group, item
            yield self.remove(key)

    def hold(self, number: int, item: T, key: Any) -> None:
        self._add(number, item, *self._pipe.key_and_length(item))

    def _add(self, number: int, item: T, key: Any, length: Any) -> _Group:
        group = self.groups.setdefault(key, _Group())
        group.add(number, item, length if self._pipe.max_tokens is None else max(length, group.size))
        return group

    def output(self, group: _Group) -> list[T]:
        return group.items

    @property
    def position(self) -> Any:
        *place, held = super().position
        return *place, f"{sum(1 << number for number in chain.from_iterable(held)):x}"

    def seek(self, position: Any) -> None:
        *place, bits = position
        super().seek([*place, [[at] for at, bit in enumerate(reversed(f"{int(bits, 16):b}")) if bit == "1"]])


class _Last(str, Enum):
    PAD = "pad"
    SHORT = "short"
    DROP = "drop"


class _TooLong(str, Enum):
    SPLIT = "split"
    ERROR = "error"


@functional_datapipe("pack")
class Pack(SourcePipe[Row]):
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
        super().__init__(source_datapipe, "token ids")
        self.length = whole("length", length, of="tokens")
        self.split = check.flag("split", split)
        self.max_wait = whole("max_wait", max_wait, of="documents")
        self.last = check.choice("last", last, _Last)
        self.too_long = check.choice("too_long", too_long, _TooLong)
        self.member = check.text_or_none("member", member, example="input_ids")
        self.separator = whole_or_none("separator", separator, at_least=None)
        self.padding = whole("padding", padding, at_least=None)
        self.cu_seqlens = check.flag("cu_seqlens", cu_seqlens)
        self._positions = np.arange(self.length)

    def open(self, env: Env) -> Pass[Row]:
        return (_CutPass if self.split else _FittedPass)(self, env.open(self.source_datapipe))

    def order_options(self) -> Mapping[str, Any]:
        common = {"length": self.length, "member": self.member, "separator": self.separator}
        return common if self.split else {**common, "split": False, "max_wait": self.max_wait}

    def tokens_of(self, item: Any) -> Tokens:
        """Return the tokens of an item with the separator: int64, shape ``(tokens,)``.

        Raises:
            SampleError: if they are no integers in one dimension.
            MissingMemberError: if the sample has no such member.
        """
        found = item
        if self.member is not None:
            found = member_of(item, self.member, of=f"pack(member={self.member!r})")
        elif isinstance(item, Mapping):
            raise member_missing(item, "pack: expected token ids", "member")
        try:
            array = np.asarray(found.detach().cpu() if isinstance(found, torch.Tensor) else found)
        except (TypeError, ValueError, OverflowError, RuntimeError):  # lists of different lengths, a sparse tensor
            array = np.array(None)
        if (
            array.ndim != 1
            or (array.dtype.kind not in "iu" and array.size)
            or (array.dtype == np.uint64 and array.size and array.max() > _LARGEST)
            or (isinstance(found, np.ma.MaskedArray) and np.ma.is_masked(found))
        ):
            shown = f" of {array.dtype} and shape {array.shape}" if array.ndim else ""
            raise SampleError(
                "pack: expected token ids, a tensor, array or list of integers in one dimension, got "
                f"{check.a_kind(found)}{shown} in {describe_item(item)}. Put the tokenizer before it: map() or "
                "parallel_map().",
                url=url_of_item(item),
            )
        array = array.astype(np.int64, copy=False)
        return array if self.separator is None else np.append(array, np.int64(self.separator))

    def row_of(self, documents: list[Tokens]) -> Row:
        """Return a row of documents, or parts of them, filled up unless short ones are wanted."""
        lengths, numbers = list(map(len, documents)), list(range(len(documents)))
        if self.last is not _Last.SHORT and (room := self.length - sum(lengths)):
            documents = [*documents, np.full(room, self.padding, np.int64)]
            lengths, numbers = [*lengths, room], [*numbers, _PADDING_ID]
        row: dict[str, np.ndarray[Any, Any]] = {
            "input_ids": np.concatenate(documents),
            "position_ids": np.concatenate([self._positions[:length] for length in lengths]),
            "document_ids": np.repeat(numbers, lengths),
        }
        if self.cu_seqlens:
            row["cu_seqlens"] = np.cumsum([0, *lengths], dtype=np.int32)
        return {name: torch.from_numpy(array) for name, array in row.items()}


class _PackPass(_HoldingPass[Row]):
    """Rows, of which a document that is longer than one gives several."""

    def tokens_of(self, item: Any) -> Tokens:
        """Return the tokens of an item that is placed.

        Raises:
            StateError: if it has fewer than were handed out before the state was saved.
        """
        document: Tokens = self._pipe.tokens_of(item)
        self.require_same(self.cut <= len(document))
        return document

    def require_same(self, is_same: bool) -> None:
        if not is_same:
            raise StateError(
                "pack: a document has another number of tokens than when the state was saved: the tokenizer, or what "
                "it reads, has changed."
            )

    def output(self, group: _Group) -> Row:
        row: Row = self._pipe.row_of(group.items)
        return row

    def end(self) -> None:
        if self._pipe.last is _Last.DROP and self.groups:
            dropped = counted(sum(group.size for group in self.groups.values()), "token")
            warnings.warn(
                f'pack(last="drop") left out {dropped} in {counted(len(self.groups), "row")} that the end of a pass '
                'did not fill, in one reader. last="pad" hands them out.',
                RuntimeWarning,
                stacklevel=2,
            )
            self.groups.clear()


class _CutPass(_PackPass):
    """Rows of documents that follow each other. One row is open at most, and nothing of it when one is handed out."""

    def __init__(self, pipe: Pack, source: Pass[Any]) -> None:
        super().__init__(pipe, source)
        self.max_wait = inf

    def place(self, item: Any) -> Iterator[_Group]:
        length, document, start = self._pipe.length, self.tokens_of(item), self.cut
        row = self.groups.pop(0, None) or _Group()
        while (end := start + length - row.size) <= len(document):
            row.add(self.num_placed, document[start:end], length)
            self.cut = start = end
            yield row
            row = _Group()
        if start < len(document):
            row.add(self.num_placed, document[start:], row.size + len(document) - start)
        if row.items:
            self.groups[0] = row
        self.num_placed, self.cut = self.num_placed + 1, 0


class _FittedPass(_PackPass):
    """Rows of whole documents: each goes where the least room is left; of equals, to the oldest."""

    def __init__(self, pipe: Pack, source: Pass[Any]) -> None:
        super().__init__(pipe, source)
        self._by_room: list[tuple[int, int]] = []  # room and key of the open rows, sorted

    def place(self, item: Any) -> Iterator[_Group]:
        length, document, start = self._pipe.length, self.tokens_of(item), self.cut
        if len(document) > length and self._pipe.too_long is _TooLong.ERROR:
            raise SampleError(
                f"pack: {describe_item(item)} has {len(document):,} tokens, and rows have {length:,}: pass "
                'too_long="split", or filter it before.',
                url=url_of_item(item),
            )
        while start + length <= len(document):
            self.cut = start + length
            yield _Group(length, [], [document[start : self.cut]])
            start = self.cut
        number, rest = self.num_placed, document[start:]
        self.num_placed, self.cut = number + 1, 0
        if not len(rest):
            return
        at = bisect_left(self._by_room, (len(rest), -1))
        key = self._by_room.pop(at)[1] if at < len(self._by_room) else number
        row = self._add(number, rest, key)
        if row.size == length:
            yield self.groups.pop(key)
        else:
            insort(self._by_room, (length - row.size, key))

    def hold(self, number: int, item: Any, key: Any) -> None:
        document, length = self._pipe.tokens_of(item), self._pipe.length
        self.require_same(self._add(number, document[len(document) // length * length :], key).size < length)
        self._by_room = sorted((length - row.size, key) for key, row in self.groups.items())

    def _add(self, number: int, document: Tokens, key: int) -> _Group:
        row = self.groups.setdefault(key, _Group())
        row.add(number, document, row.size + len(document))
        return row

    def remove(self, key: Any) -> _Group:
        row = super().remove(key)
        self._by_room.remove((self._pipe.length - row.size, key))
        return row
