"""What the suite declares of each store is what the manual says, and what the store does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conformance.folder import Folder
from tests.conformance.rows import each, table
from torchdata_remote.errors import UrlError
from torchdata_remote.storage import FolderStore

MANUAL = Path(__file__).parents[2] / "docs" / "stores" / "index.md"


def test_the_manual_has_the_table_of_the_suite() -> None:
    """Printed by ``python -c 'from tests.conformance.rows import table; print(table())'``."""
    assert table() in MANUAL.read_text()


@each(transports=True)
def test_what_a_store_is_declared_not_to_do_is_an_error(folder: Folder) -> None:
    """And what it is declared to do, its other clients can rely on."""
    row, store = folder.row, folder.store
    assert row.writes == folder.server.can_write
    assert row.parallel == getattr(getattr(store, "_opened", None), "is_shared", True)
    assert isinstance(store, FolderStore) or not row.folders
    if not row.writes:
        for attempt in (lambda: store.create(folder.prefix + "a", overwrite=True), lambda: store.delete("a")):
            with pytest.raises(UrlError):
                attempt()
    if not row.lists:
        with pytest.raises(UrlError, match="brace range"):
            store.list_page(folder.prefix, recursive=True, token=None)
