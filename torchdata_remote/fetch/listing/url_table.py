"""Compact tables of millions of strings and URLs, without a Python object for each."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from ...core.urls import RemoteUrl

Column = np.ndarray[Any, Any]


class StringColumn(Sequence[str]):
    """A sequence of strings in one buffer."""

    _data: Any  # bytearray; a memoryview if it was restored by view()
    _ends: Any  # array of "q", or a memoryview

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._data, self._ends = bytearray(), array("q")
        for text in texts:
            self.append(text)

    def append(self, text: str) -> None:
        """Append a string."""
        self._data += text.encode("utf-8", "surrogateescape")
        self._ends.append(len(self._data))

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: Any) -> Any:
        at, ends = range(len(self))[index], self._ends
        return str(self._data[ends[at - 1] if at else 0 : ends[at]], "utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        data, start = self._data, 0
        for end in self._ends:
            yield str(data[start:end], "utf-8", "surrogateescape")
            start = end

    def digest(self) -> str:
        """Return a digest of all strings in order."""
        digest = blake2b(self._data, digest_size=16)
        digest.update(self._ends.tobytes())
        return digest.hexdigest()

    def columns(self, name: str = "texts") -> dict[str, Column]:
        """Return arrays, ``"<name>.data"`` and ``"<name>.ends"``: the bytes of all strings, and the end of each."""
        return {
            f"{name}.data": np.frombuffer(self._data, np.uint8),
            f"{name}.ends": np.frombuffer(self._ends, np.int64),
        }

    @classmethod
    def view(cls, columns: Mapping[str, Column], name: str = "texts") -> StringColumn:
        """Restore a column from :meth:`columns`, without a copy: nothing can be appended."""
        column = cls()
        column._data, column._ends = columns[f"{name}.data"].data, columns[f"{name}.ends"].data
        return column


class UrlTable(Sequence[RemoteUrl]):
    """A sequence of URLs with size and etag; each takes 24 bytes more than its characters.

    Args:
        urls: a plain ``str`` has neither size nor etag.
    """

    def __init__(self, urls: Iterable[str] = ()) -> None:
        self._urls, self._etags = StringColumn(), StringColumn()
        self._sizes: Any = array("q")  # a memoryview if it was restored by view()
        for url in urls:
            self.append(url)

    def append(self, url: str) -> None:
        """Append a URL."""
        size = getattr(url, "size", None)
        self._urls.append(url)
        self._etags.append(getattr(url, "etag", None) or "")
        self._sizes.append(-1 if size is None else size)

    def __len__(self) -> int:
        return len(self._urls)

    def __getitem__(self, index: Any) -> Any:
        size = self._sizes[index]
        return RemoteUrl(self._urls[index], None if size < 0 else size, self._etags[index] or None)

    def columns(self) -> dict[str, Column]:
        """As arrays, by name."""
        sizes = np.frombuffer(self._sizes, np.int64)
        return {"sizes": sizes, **self._urls.columns("urls"), **self._etags.columns("etags")}

    @classmethod
    def view(cls, columns: Mapping[str, Column]) -> UrlTable:
        """Restore a table from :meth:`columns`, without a copy: nothing can be appended."""
        table = cls()
        table._sizes = columns["sizes"].data
        table._urls, table._etags = StringColumn.view(columns, "urls"), StringColumn.view(columns, "etags")
        return table
