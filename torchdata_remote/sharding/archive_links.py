"""Links in an archive: their members get the data of those to which they lead."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from posixpath import dirname, join, normpath
from typing import Any

from ..fetch.sample_table import SampleTable
from ..formats.error_policy import LinkCounter
from ..formats.sample import naming_fault

_MAX_FOLLOWED = 40  # as Linux follows for one path, which ends cycles


class ArchiveLinks:
    """The links of one archive, which are followed once all of its members are known.

    Args:
        url: of the archive, as messages may show it.
    """

    def __init__(self, url: str) -> None:
        self.members: dict[int, str] = {}  # number of a member in the table -> name of the link
        self._lost = LinkCounter(url)
        self._paths: dict[str, str] = {}  # of links -> to which they lead
        self._new: list[str] = []  # names of those that were read since the last batch of members

    def add(self, name: str, path: str, is_symbolic: bool) -> None:
        """Add a link; as ``TarOptions`` calls ``on_link``."""
        if naming_fault(name.removeprefix("./")) is None:
            self._new.append(name)
        else:  # such as a link to a folder
            self._lost(name)
        # After a folder, which may be a link, ".." is not known to lead back; without its path a link leads nowhere
        if ".." not in path.lstrip("./").split("/"):
            self._paths[normpath(name)] = normpath(join(dirname(name) if is_symbolic else "", path))

    def among(self, batches: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
        """Yield batches of members, and links in their places, as a name alone."""
        for batch in chain(batches, [((), ())]):
            names, self._new = self._new, []
            yield names, zip(names)
            yield batch

    def follow(self, table: SampleTable, first: int, prefix: str) -> None:
        """Let the members of links be stored where those are to which they lead; warn of the others.

        Args:
            table: its members from ``first`` on are those of the archive.
            first: number of a member.
            prefix: of the names in the table.
        """
        if self.members:
            ends = {number: prefix + self._end(normpath(name)) for number, name in self.members.items()}
            wanted = set(ends.values())
            names = enumerate(map(table.names.__getitem__, range(first, len(table.names))), first)
            found = {name: number for number, name in names if name in wanted and number not in ends}
            table.moved |= {number: found.get(end) for number, end in ends.items()}
            for number in ends:
                if ends[number] not in found:
                    self._lost(self.members[number])
        self._lost.warn()

    def _end(self, name: str) -> str:
        """Return the path to which a link leads through others; empty for a cycle."""
        for _ in range(_MAX_FOLLOWED):
            if name not in self._paths:
                return name
            name = self._paths[name]
        return ""
