"""Links in an archive: their members get the data of those to which they lead."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ..fetch.sample_table import SampleTable
from ..formats.error_policy import LinkCounter
from ..formats.limits import MAX_NAME_LENGTH
from ..formats.sample import naming_fault

_MAX_FOLLOWED = 40  # as Linux follows for one path, which ends cycles


class ArchiveLinks:
    """The links of one archive, which are followed once all of its members are known.

    Args:
        url: of the archive, as messages may show it.
    """

    def __init__(self, url: str) -> None:
        self._lost = LinkCounter(url)
        self._paths: dict[str, tuple[list[str], bool]] = {}  # name -> parts of the path in it; whether it is symbolic
        self._new: list[str] = []  # names of those that were read since the last batch of members
        self._members: dict[int, str] = {}  # number of a member in the table -> name of the link

    def add(self, name: str, path: str, is_symbolic: bool) -> None:
        """Add a link; as ``TarOptions`` calls ``on_link``."""
        self._new.append(name)
        # One that is not known by its path leads to itself, and so nowhere
        if max(len(name), len(path)) <= MAX_NAME_LENGTH and not (is_symbolic and path.startswith("/")):
            self._paths["/".join(_parts(name))] = _parts(path), is_symbolic

    def among(self, batches: Iterable[tuple[Any, Any]]) -> Iterator[tuple[Any, Any]]:
        """Yield batches of members, and links in their places, as a name alone."""
        for batch in batches:
            yield from self._read_before()
            yield batch
        yield from self._read_before()

    def _read_before(self) -> Iterator[tuple[Any, Any]]:
        names, self._new = self._new, []
        for name in names:
            if naming_fault(name.removeprefix("./")) is None:
                yield [name], zip([name])
            else:  # such as a link to a folder
                self._lost(name, "", True)

    def add_member(self, number: int, name: str) -> None:
        """Set the link of a member of the table."""
        self._members[number] = name

    def follow(self, table: SampleTable, first: int, prefix: str) -> None:
        """Give the members of links the data of those to which they lead; remove the others, with a warning.

        Args:
            table: its members from ``first`` on are those of the archive.
            first: number of a member.
            prefix: of the names in the table.
        """
        ends = {number: prefix + self._end(name) for number, name in self._members.items()}
        names = map(table.names.__getitem__, range(first, len(table.names)) if ends else ())
        wanted = set(ends.values())
        found = {name: number for number, name in enumerate(names, first) if name in wanted and number not in ends}
        for number, end in ends.items():
            if end in found:
                table.copy_place(found[end], number)
            else:
                self._lost(self._members[number], "", True)
        table.remove_members([number for number, end in ends.items() if end not in found])
        self._lost.warn()

    def _end(self, name: str) -> str:
        """Return the path to which a link leads through others; empty if that is out of the archive, or a cycle."""
        found: list[str] = []
        left, num_followed = _parts(name)[::-1], 0
        while left and num_followed <= _MAX_FOLLOWED:
            part = left.pop()
            if part != "..":
                found.append(part)
                path, is_symbolic = self._paths.get("/".join(found), ([], True))
                if path:
                    found = found[:-1] if is_symbolic else []
                    left += path[::-1]
                    num_followed += 1
            elif found:
                found.pop()
            else:
                return ""
        return "" if left else "/".join(found)


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]
