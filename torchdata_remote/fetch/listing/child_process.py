"""List in a process of its own, so that this one can be forked: children cannot use obstore after their parent did."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from typing import IO, cast

from ...core.options import RetryPolicy, StorageOptions
from ...storage import Connection, EntryTable, list_tables, open_store

_OWN_PAGES = 2  # a process takes longer to start
_START = "import sys; sys.path[:] = {!r}; from {} import answer; answer()"


def list_elsewhere(
    url: str, prefix: str, recursive: bool, options: StorageOptions, retry: RetryPolicy
) -> Iterator[EntryTable]:
    """List as ``list_tables`` does: the first pages by fsspec, the rest by obstore, if it can, in another process."""
    store, _ = open_store(url, options, Connection(read_timeout_s=retry.progress_timeout_s))
    num_own, last = _OWN_PAGES if hasattr(store, "without_obstore") else None, ""
    with closing(list_tables(url, prefix, recursive, options, retry, by_obstore=False)) as own:
        for page in islice(own, num_own):
            last = page.paths[-1]
            yield page
        if next(own, None) is None:
            return
    # The request goes by a pipe, since anyone can read a command line
    command = [sys.executable, "-c", _START.format(sys.path, __name__)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:  # noqa: S603  # ours
        to_child, from_child = cast("tuple[IO[bytes], IO[bytes]]", (child.stdin, child.stdout))
        try:
            pickle.dump((url, prefix, recursive, options, retry), to_child)
            to_child.close()
            while columns := pickle.load(from_child):  # noqa: S301  # of our own process
                if isinstance(columns, BaseException):
                    raise columns
                paths, sizes, etags = columns
                table = EntryTable(paths, sizes, etags, [None] * len(paths))
                if table := table.selected([path > last for path in paths]):
                    yield table
        finally:
            child.kill()


def answer() -> None:
    """Be the other process: read a request, write its pages, and ``None`` or an error at the end."""
    pages = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no page
    last: BaseException | None = None
    try:
        for page in list_tables(*pickle.load(sys.stdin.buffer)):  # noqa: S301  # of our parent
            pickle.dump((page.paths, list(page.sizes), list(page.etags)), pages)
            pages.flush()
    except Exception as error:  # noqa: BLE001  # raised by the parent
        last = error
    pickle.dump(last, pages)
    pages.flush()
