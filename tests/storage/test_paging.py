"""The pages of a listing, whatever a store sends."""

from __future__ import annotations

import pytest

from torchdata_remote.errors import StorageError
from torchdata_remote.storage.paging import every_page, first_page
from torchdata_remote.storage.protocol import Entry, Page


def pages_of(*pages: Page) -> list[Page]:
    """Go through pages whose tokens are the numbers of the next ones."""
    return list(every_page(lambda token: pages[int(token or 0)], "az://box/"))


def test_each_page_is_requested_by_the_token_of_the_one_before() -> None:
    """Until one has no token."""
    pages = [Page([Entry("a", 1, None)], "1"), Page([], "2"), Page([Entry("b", 1, None)], None)]
    assert pages_of(*pages) == pages


@pytest.mark.parametrize("pages", [[Page([], "0"), Page([], None)], [Page([], "1"), Page([], "2"), Page([], "1")]])
def test_a_page_that_repeats_is_an_error(pages: list[Page]) -> None:
    """The listing would not end."""
    with pytest.raises(StorageError, match=r"az://box/: the store repeats page '[01]' of its listing"):
        pages_of(*pages)


def test_the_first_page_with_something_is_found() -> None:
    """An object or a folder; the last page, where all are empty."""
    objects, folders = Page([Entry("a", 1, None)], "2"), Page([], "2", ["a/"])
    for found in (objects, folders):
        assert first_page(iter([Page([], "1"), found, Page([], None)])) is found
    last = Page([], None)
    assert first_page(iter([Page([], "1"), last])) is last
