"""A function for ``map`` that counts the items which a pipe takes."""

from __future__ import annotations

from typing import Any


class Counted:
    """Returns each item, and keeps it in ``taken``."""

    def __init__(self) -> None:
        self.taken: list[Any] = []

    def __call__(self, item: Any) -> Any:
        self.taken.append(item)
        return item
