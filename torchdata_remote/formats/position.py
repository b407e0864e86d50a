"""Where in an archive the next sample begins."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import length_hint
from typing import Any

Position = list[Any]  # plain JSON; the first item is the byte at which the stream is to be opened


class ReadPosition:
    """Kept up to date by whoever reads an archive, at a cost for each run of members and none for each sample.

    Args:
        position: where reading begins.
    """

    def __init__(self, position: Position | None = None) -> None:
        self.begin: Position = [0] if position is None else position
        self.ended = False  # whether the last sample was handed out
        self.archive_end = 0  # where the end-of-archive blocks begin, once they were found
        self.run_offset = 0  # what the starts of the run at hand count from
        self.run_starts: Sequence[int] = (0,)  # where its members begin, their headers included
        self.run_names: Iterator[str] = iter(())  # those of the members that have not been looked at
        self.describe: Callable[[], Position] = lambda: [self.next_byte()]

    def next_byte(self) -> int:
        """Where the member at hand begins: when a sample was handed out, the first one of the next."""
        return self.run_offset + self.run_starts[len(self.run_starts) - length_hint(self.run_names) - 1]

    def position(self) -> Position | None:
        """Where the next sample begins; ``None`` if the last one was handed out."""
        return None if self.ended else self.describe()
