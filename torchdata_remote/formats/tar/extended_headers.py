"""Extended headers: the fields that pax records and GNU's long names set for the next member."""

from __future__ import annotations

from ..limits import MAX_NAME_LENGTH
from .header import fault, pax_fields, text_field

MAX_RECORD_BYTES = 1 << 20
EXTENDED_TYPES = frozenset(b"xgLK")

_GLOBAL = ord("g")
_MAX_DIGITS = 19


class Extended:
    """The extended headers before one member: at most one of each kind, and any number of global ones.

    Args:
        url: for error messages.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._kinds = b""
        self._name: str | None = None
        self._size: int | None = None
        self._fields: dict[str, str] = {}
        # The pax records of the last member that was read
        self.records: dict[str, str] = {}

    def add(self, kind: int, record: bytes, start: int) -> None:
        """Add the record of the header at byte ``start``.

        Raises:
            ShardReadError: for a record that is damaged, of a sparse file, or that repeats a field of another one.
        """
        if kind == _GLOBAL:
            fields = pax_fields(record, self._url, start)
            if "path" in fields or "size" in fields or _is_sparse(fields):
                raise fault(self._url, start, "a global header that sets the name or the size of all members")
            return
        if kind in self._kinds:
            raise fault(self._url, start, f"two extended headers of type {chr(kind)!r} for one member")
        self._kinds += bytes([kind])
        if kind == ord("L"):
            self._set_name(text_field(record.rstrip(b"\0")), start)
        elif kind == ord("K"):
            self._fields["linkpath"] = text_field(record.rstrip(b"\0"))
        else:
            self._fields |= pax_fields(record, self._url, start)
            self._add_fields(self._fields, start)

    def _add_fields(self, fields: dict[str, str], start: int) -> None:
        if _is_sparse(fields):
            raise fault(self._url, start, SPARSE)
        # If it is empty, the name is in the member's own header
        if fields.get("path"):
            self._set_name(fields["path"], start)
        size = fields.get("size")
        if size is not None:
            if not (size.isascii() and size.isdigit() and len(size) <= _MAX_DIGITS):
                raise fault(self._url, start, f"a pax size of {size!r:.40}")
            self._size = int(size)

    def _set_name(self, name: str, start: int) -> None:
        if len(name) > MAX_NAME_LENGTH:
            raise fault(self._url, start, f"a name of {len(name):,} characters (limit {MAX_NAME_LENGTH:,})")
        if self._name is not None:
            raise fault(self._url, start, "two names for one member")
        self._name = name

    def __bool__(self) -> bool:
        """Whether there are extended headers whose member has not been read."""
        return bool(self._kinds)

    def applied(self, name: str, size: int) -> tuple[str, int]:
        """Return name and size of the member, whose own header has ``name`` and ``size``; then reset this."""
        name, size = name if self._name is None else self._name, size if self._size is None else self._size
        self._kinds, self._name, self._size = b"", None, None
        self.records, self._fields = self._fields, {}
        return name, size


SPARSE = "a sparse file, of which only the pieces that are not zeros are stored; pack it without --sparse"


def _is_sparse(fields: dict[str, str]) -> bool:
    return any(key.startswith("GNU.sparse") for key in fields)
