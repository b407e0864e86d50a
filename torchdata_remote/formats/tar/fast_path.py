"""Fast path for plain members that are within the current bytes."""

from __future__ import annotations

import weakref

from .header import BLOCK, checksum_fits, name_field, octal, padding
from .vector_scan import Found, HeaderScan

_FILE = ord("0")
_STEPS = 16
# For less the overhead of vector operations exceeds what they save
_MIN_SCAN_BYTES = 32 << 10
# Headers of members up to this size are found faster by a scan
_SMALL_BYTES = 16 << 10
_POOR_SCAN_MEMBERS = 16
_STEPS_AFTER_POOR_SCAN = 64


class FastPath:
    """Finds plain members: from header to header, or, if members are small, by vectorised scans.

    Args:
        max_member_bytes: larger members are not plain.
    """

    def __init__(self, max_member_bytes: int) -> None:
        self._max_member_bytes = max_member_bytes
        self._scan: HeaderScan | None = None
        # That was scanned; a weak reference does not keep it in memory
        self._view = weakref.ref(memoryview(b""))
        # Members that the current scan has found
        self._num_scanned = 0
        self._steps_before_scan = 1

    def members_from(self, view: memoryview, position: int) -> Found | None:
        """Return the plain members from a header on; ``None`` if this header is not that of a plain member."""
        if self._scan is not None and (view is not self._view() or position >= self._scan.end):
            self._steps_before_scan = 0 if self._num_scanned >= _POOR_SCAN_MEMBERS else _STEPS_AFTER_POOR_SCAN
            self._scan = None
        if self._scan is None and self._steps_before_scan <= 0 and len(view) - position >= _MIN_SCAN_BYTES:
            self._scan, self._num_scanned = HeaderScan(view, position, self._max_member_bytes), 0
            self._view = weakref.ref(view)
        found = self._scan.members_from(position) if self._scan is not None else None
        if found is not None:
            self._num_scanned += len(found.names)
            return found
        found = self._step(view, position)
        if found is not None and self._scan is None:
            small = found.after - position <= len(found.names) * _SMALL_BYTES
            self._steps_before_scan = self._steps_before_scan - len(found.names) if small else _STEPS
        return found

    def _step(self, view: memoryview, position: int) -> Found | None:
        names: list[str] = []
        starts: list[int] = []
        ends: list[int] = []
        while len(names) < _STEPS:
            start = position + BLOCK
            if start > len(view):
                break
            header = view[position:start].tobytes()
            kind, size = header[156], octal(header[124:136])
            if kind != _FILE or header[345] or size is None or size > self._max_member_bytes:
                break
            after = start + size + padding(size)
            if after > len(view) or not checksum_fits(header):
                break
            names.append(name_field(header))
            starts.append(start)
            ends.append(start + size)
            position = after
        return Found(names, starts, ends, position) if names else None
