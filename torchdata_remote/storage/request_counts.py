"""Count the requests that stores send, by kind."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from .protocol import Answer, Store

LIST, GET, HEAD = "list", "get", "head"
# Each of these calls sends one request, and those that are not here send theirs by them
_KINDS = {
    "list_page": LIST,
    "list_after": LIST,
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
_lock = threading.RLock()


@contextmanager
def counted_requests() -> Iterator[RequestCounts]:
    """Count the requests of all stores that are opened within the block."""
    counts = RequestCounts()
    counting.append(counts)
    try:
        yield counts
    finally:
        counting[:] = [other for other in counting if other is not counts]


def watch(store: Store) -> None:
    """Count the requests of an opened store from now on, whenever requests are counted."""
    with _lock:
        for name in _KINDS.keys() - vars(store).keys():
            if hasattr(store, name):
                setattr(store, name, partial(_count, _KINDS[name], getattr(store, name)))


def _count(kind: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    with _lock:
        for counts in counting:
            counts.sent[kind] += 1
    result = call(*arguments, **options)
    if isinstance(result, Answer):
        with _lock:
            for counts in counting:
                counts.num_bytes += result.end - result.start
    return result
