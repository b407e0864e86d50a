"""What ``verify_shards`` finds."""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    """A difference between an object and its manifest: the object's URL, without credentials, and a description."""

    url: str
    what: str
