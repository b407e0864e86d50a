"""Whether the service is being stopped, for long work in threads, which the event loop cannot cancel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


class ServiceStoppedError(Exception):
    """Long work was ended because the service is being stopped."""


class Stopping:
    """Set once, when the service stops."""

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        """Let long work end soon."""
        self._is_set = True

    def __call__(self) -> bool:
        """Whether it is set."""
        return self._is_set

    def check(self) -> None:
        """Raise if the service is being stopped.

        Raises:
            ServiceStoppedError: if it is.
        """
        if self._is_set:
            raise ServiceStoppedError("The service is being stopped.")

    def during(self, items: Iterable[T]) -> Iterator[T]:
        """Iterate over items until the service is being stopped.

        Raises:
            ServiceStoppedError: then.
        """
        for item in items:
            self.check()
            yield item
