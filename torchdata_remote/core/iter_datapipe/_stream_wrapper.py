"""``StreamWrapper``, for versions of torch without DataPipes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class StreamWrapper:
    """A file-like object that is closed when nothing refers to it any more.

    Args:
        file_obj: wrapped; its attributes are available on the wrapper.
    """

    def __init__(self, file_obj: Any) -> None:
        self.file_obj = file_obj
        self.closed = False

    def __getattr__(self, name: str) -> Any:
        # Asked for while the wrapper is unpickled
        if name == "file_obj":
            raise AttributeError(name)
        return getattr(self.file_obj, name)

    def close(self) -> None:
        """Close the file-like object, once."""
        if not self.closed:
            self.closed = True
            if hasattr(self.file_obj, "close"):
                self.file_obj.close()

    @classmethod
    def close_streams(cls, item: Any) -> None:
        """Close an item if it is a stream, and all streams inside its lists, tuples and dicts."""
        if isinstance(item, cls):
            item.close()
        elif isinstance(item, dict):
            for value in item.values():
                cls.close_streams(value)
        elif isinstance(item, (list, tuple)):
            for value in item:
                cls.close_streams(value)

    def __del__(self) -> None:
        if not self.__dict__.get("closed", True):
            self.close()

    def __iter__(self) -> Iterator[Any]:
        yield from self.file_obj

    def __next__(self) -> Any:
        return next(self.file_obj)

    def __repr__(self) -> str:
        return f"StreamWrapper<{self.file_obj!r}>"
