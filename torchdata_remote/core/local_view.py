"""Views of local files: large ranges are mapped into memory, small ones are copied."""

from __future__ import annotations

import mmap
import os

MAP_FROM_BYTES = 4 << 20  # below it a copy is as fast, and leaves no descriptor open


def map_file(descriptor: int, start: int, end: int) -> memoryview:
    """Return bytes ``start`` to ``end`` (exclusive) of a file, read-only. The descriptor may be closed afterwards.

    A mapping shares the memory of the page cache, without a copy. If the file is truncated in place while the view is
    in use, the process gets SIGBUS; a file that is replaced by a rename is safe.

    Raises:
        EOFError: if the file ends before ``end``.
    """
    length = end - start
    if length >= MAP_FROM_BYTES:
        # macOS and Windows have none
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, start, length, os.POSIX_FADV_WILLNEED)
        aligned = start - start % mmap.ALLOCATIONGRANULARITY
        try:
            mapping = mmap.mmap(descriptor, end - aligned, offset=aligned, access=mmap.ACCESS_READ)
        except ValueError as error:  # longer than the file
            raise EOFError(f"the file ends before byte {end:,}") from error
        return memoryview(mapping)[start - aligned :]
    view = memoryview(bytearray(length))
    fill(view, descriptor, start)
    return view.toreadonly()


def fill(view: memoryview, descriptor: int, start: int) -> None:
    """Copy bytes from ``start`` on of a file into memory.

    Raises:
        EOFError: if the file ends before the memory is full.
    """
    done, length = 0, len(view)
    while done < length:
        count = _read_into(descriptor, view[done:] if done else view, start + done)
        if not count:
            raise EOFError(f"the file ends before byte {start + length:,}")
        done += count


def _read_into(descriptor: int, view: memoryview, position: int) -> int:
    """Read into a view at once; return the number of bytes. Threads may share the descriptor, except on Windows."""
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, [view], position)
    # macOS has no preadv; on Windows the position belongs to the descriptor
    if hasattr(os, "pread"):
        data = os.pread(descriptor, len(view), position)
    else:
        os.lseek(descriptor, position, os.SEEK_SET)
        data = os.read(descriptor, len(view))
    view[: len(data)] = data
    return len(data)
