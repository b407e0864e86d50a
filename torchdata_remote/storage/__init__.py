"""Transports behind one interface: open a store by the URL of an object."""

from .errors import translate_errors
from .listing import list_folder, list_tables
from .local.names import PARTIAL_SUFFIX, broken_link, is_internal_name, symlink_error
from .local.store import LocalStore, LocalWriter, version_of
from .options import check_options
from .protocol import (
    Answer,
    ConditionalStore,
    Entry,
    EntryTable,
    ObjectWriter,
    Page,
    RangeNotSatisfiableError,
    Store,
    single_chunk,
)
from .registry import Connection, WithoutObstore, open_store, publish, read_whole
from .request_counts import GET, HEAD, LIST, counted_requests

__all__ = [
    "GET",
    "HEAD",
    "LIST",
    "PARTIAL_SUFFIX",
    "Answer",
    "ConditionalStore",
    "Connection",
    "Entry",
    "EntryTable",
    "LocalStore",
    "LocalWriter",
    "ObjectWriter",
    "Page",
    "RangeNotSatisfiableError",
    "Store",
    "WithoutObstore",
    "broken_link",
    "check_options",
    "counted_requests",
    "is_internal_name",
    "list_folder",
    "list_tables",
    "open_store",
    "publish",
    "read_whole",
    "single_chunk",
    "symlink_error",
    "translate_errors",
    "version_of",
]
