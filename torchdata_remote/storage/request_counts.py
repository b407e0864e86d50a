"""Count the requests that stores send, by kind."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from .protocol import Answer, Store

LIST, GET, HEAD = "list", "get", "head"
# Each of these calls sends one request, and those that are not here send theirs by them
_KINDS = {
    "list_page": LIST,
    "list_after": LIST,
    "find_first": LIST,
    "stat": HEAD,
    "read": GET,
    "read_if_changed": GET,
    "read_without_obstore": GET,
}


@dataclass
class RequestCounts:
    """Requests of all threads by kind, repeated ones too, and the bytes that GETs asked for."""

    sent: Counter[str] = field(default_factory=Counter)
    num_bytes: int = 0


counting: list[RequestCounts] = []  # empty unless requests are counted now
_watched: dict[int, Store] = {}
_lock = threading.RLock()


@contextmanager
def counted_requests() -> Iterator[RequestCounts]:
    """Count the requests of all stores that are opened within the block."""
    counts = RequestCounts()
    with _lock:
        counting.append(counts)
    try:
        yield counts
    finally:
        with _lock:
            counting[:] = [other for other in counting if other is not counts]
            if not counting:
                _leave_all()


def watch(store: Store) -> None:
    """Count the requests of an opened store until nothing is counted any more."""
    with _lock:
        if id(store) in _watched:
            return
        _watched[id(store)] = store
        for name, kind in _KINDS.items():
            if hasattr(store, name):
                setattr(store, name, _counted(getattr(store, name), kind))


def _counted(call: Callable[..., Any], kind: str) -> Callable[..., Any]:
    def count(*arguments: Any, **options: Any) -> Any:
        with _lock:
            for counts in counting:
                counts.sent[kind] += 1
        result = call(*arguments, **options)
        if isinstance(result, Answer):
            with _lock:
                for counts in counting:
                    counts.num_bytes += result.end - result.start
        return result

    return count


def _leave_all() -> None:  # with the lock held
    for store in _watched.values():
        for name in _KINDS.keys() & vars(store).keys():
            delattr(store, name)
    _watched.clear()
