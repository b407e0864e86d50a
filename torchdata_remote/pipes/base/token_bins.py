"""Best fit: the open rows of tokens, and which of them takes a document."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

from ...errors import StateError
from .token_rows import Tokens


def require_rows(rows: object, num_read: int) -> None:
    """Check the rows of a state: numbers of documents, each once.

    Raises:
        StateError: if they are damaged.
    """
    if isinstance(rows, list | tuple) and all(isinstance(row, list | tuple) and row for row in rows):
        numbers = [number for row in rows for number in row]
        are_numbers = all(type(number) is int and 0 <= number < num_read for number in numbers)
        if are_numbers and len(set(numbers)) == len(numbers):
            return
    raise StateError(
        f"pack: the state is damaged, rows must have numbers below {num_read}, each once, got {rows!r:.100}."
    )


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
