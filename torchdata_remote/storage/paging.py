"""Go through the pages of a listing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..errors import StorageError
from .protocol import Page


def every_page(request: Callable[[str | None], Page], url: str) -> Iterator[Page]:
    """Yield the pages of a listing.

    Args:
        request: requests a page by its token; ``None`` for the first one.
        url: of the listing, for errors.

    Raises:
        StorageError: if the store repeats a page: the listing would not end.
    """
    token: str | None = None
    seen = set[str]()
    while True:
        page = request(token)
        yield page
        token = page.next_token
        if token is None:
            return
        if token in seen:
            raise StorageError(f"{url}: the store repeats page {token!r} of its listing.", url=url)
        seen.add(token)
