"""Listings: each object once, in order, with its size and etag, whatever its name."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.conformance.folder import Folder, new_folder
from tests.conformance.rows import Row, each
from tests.servers.store_server import StoreServer
from tests.support.s3_stores import write
from torchdata_remote import IterableWrapper, RetryPolicy
from torchdata_remote.core.options import StorageOptions
from torchdata_remote.errors import EmptyListingError, UrlError
from torchdata_remote.storage import list_folder
from torchdata_remote.testing import Faults, FaultyStore

PATIENT = RetryPolicy(first_wait_s=0.01, max_wait_s=0.05, progress_timeout_s=5)
PATHS = sorted(["a", "a.b", "b/c", "b/d/e", "b/d/f", "b.", "b0", "c/\u00e9", "c/\U0001f600", "c/z/z/z", "z"])
ODD_NAMES = [
    "a b/c d.bin",
    "%20.bin",
    "a%2Fb.bin",
    "a#b.bin",
    "a?b=c.bin",
    "a+b.bin",
    "a&b=c;d,e.bin",
    "a*b[0-9]{1,2}.bin",
    "\u00e5/\u65e5\u672c/\U0001f600.bin",
    "e\u0301 is not \u00e9.bin",
    "'quotes\" and |.bin",
    "~tilde(1)!.bin",
    "a::b@c:d$e.bin",
    "x" * 200,
]
STRANGE_NAMES = ["dir//x.bin", "a/../b.bin", "a/./b.bin", "/begins", "ends/", "back\\slash", "y" * 900]


def odd_names(row: Row) -> list[str]:
    names = ODD_NAMES + (STRANGE_NAMES if row.strange_names else [])
    return [name for name in names if set(row.refused_in_names).isdisjoint(name)]


@pytest.fixture(scope="session")
def tree(row: Row, server: StoreServer, place: str) -> Folder:
    """Objects in folders; the content of each is its path."""
    folder = new_folder(row, server, place)
    for path in PATHS:
        folder.put(path, path.encode())
    return folder


def names_in(folder: Folder, prefix: str, *, recursive: bool) -> list[str]:
    urls = list_folder(
        folder.url + prefix, recursive=recursive, options=StorageOptions(folder.options), retry=RetryPolicy()
    )
    return [url.removeprefix(folder.url) for url in urls]


@each("lists")
@pytest.mark.parametrize("prefix", ["", "b", "b/", "b/d", "b/d/", "c/", "nothing/", "b/c"])
def test_a_prefix_selects_names_in_order(tree: Folder, prefix: str) -> None:
    """Sorted by code points, with the folders below or without them."""
    assert names_in(tree, prefix, recursive=True) == [path for path in PATHS if path.startswith(prefix)]
    below = prefix.rpartition("/")[0] + "/" if "/" in prefix else ""
    flat = [path for path in PATHS if path.startswith(prefix) and "/" not in path.removeprefix(below)]
    assert names_in(tree, prefix, recursive=False) == flat


@each("lists", transports=True)
def test_a_listing_a_stat_and_a_search_agree(tree: Folder) -> None:
    """In size, etag and date of each object."""
    page = tree.store.list_page(tree.prefix, recursive=True, token=None)
    assert sorted(entry.path.removeprefix(tree.prefix) for entry in page.entries) == PATHS
    for entry in page.entries:
        assert entry.size == len(entry.path.removeprefix(tree.prefix).encode())
        assert tree.store.stat(entry.path) == tree.store.find(entry.path) == entry


@each("lists", transports=True)
def test_an_empty_folder_lists_nothing(folder: Folder) -> None:
    """And is an error as a source."""
    assert not folder.store.list_page(folder.prefix, recursive=True, token=None).entries
    with pytest.raises(EmptyListingError):
        list(IterableWrapper([folder.url]).list_remote(storage_options=folder.options))


@each("lists", transports=True)
def test_an_odd_name_is_that_of_one_object(folder: Folder) -> None:
    """It is listed, found and read, and no other object is."""
    names = odd_names(folder.row)
    for name in names:
        folder.put(name, name.encode())
    urls: dict[str, str] = {
        url: url.removeprefix(folder.url)
        for url in list_folder(folder.url, recursive=True, options=StorageOptions(folder.options), retry=PATIENT)
    }
    assert sorted(urls.values()) == sorted(names)
    pipe = IterableWrapper(list(urls)).async_prefetch(storage_options=folder.options, backend=folder.row.backend)
    assert {urls[url]: stream.read().decode() for url, stream in pipe} == {name: name for name in urls.values()}
    for name in names:
        assert folder.store.stat(folder.prefix + name).size == len(name.encode())


@each("lists", "writes", transports=True)
def test_an_odd_name_is_written_and_deleted(folder: Folder) -> None:
    """The bytes are stored under that name, and no other object is changed."""
    names = odd_names(folder.row)
    for number, name in enumerate(names):
        writer = folder.store.create(folder.prefix + name, overwrite=False)
        writer.write(bytes(number))
        writer.commit()
    assert folder.names() == sorted(names)
    assert [len(folder.get(name)) for name in names] == list(range(len(names)))
    for name in names[1:]:
        folder.store.delete(folder.prefix + name)
    assert folder.names() == names[:1]


@each("refused_in_names")
def test_a_name_that_a_library_would_change_is_refused(folder: Folder) -> None:
    """Instead of another name being written or read."""
    for character in folder.row.refused_in_names:
        path = f"{folder.prefix}a{character}20b"
        for attempt in (lambda path=path: write(folder.store, path, b"1"), lambda path=path: folder.store.stat(path)):
            with pytest.raises(UrlError, match="Rename the file"):
                attempt()
    assert folder.names() == []


@pytest.fixture(scope="session")
def pages(row: Row, server: StoreServer) -> Folder:
    """A place with more objects than a page, most of them in folders."""
    folder = Folder(row, server, server.new_place(), "")
    names = [f"{number % 3}/{number:05d}" if number % 7 else f"{number:05d}" for number in range(row.pages + 30)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda name: folder.put(name, b""), names))
    return folder


def expected_pages(row: Row) -> Iterator[str]:
    numbers = range(row.pages + 30)
    yield from sorted(f"{number % 3}/{number:05d}" if number % 7 else f"{number:05d}" for number in numbers)


@each("lists", "pages")
@pytest.mark.parametrize("seed", [1])
def test_several_pages_are_one_listing_also_through_a_storm(pages: Folder, seed: int) -> None:
    """Sorted, each name once, with folders or without; half of the responses are broken."""
    assert names_in(pages, "", recursive=True) == list(expected_pages(pages.row))
    assert names_in(pages, "", recursive=False) == [name for name in expected_pages(pages.row) if "/" not in name]
    faults = Faults(slow_down=0.2, reset=0.2, cut_body=0.1, listings=True)
    with FaultyStore(pages.server.endpoint_url, faults, seed=seed) as store:
        broken = pages.through(store.endpoint_url)
        for _ in range(3):
            urls = IterableWrapper([broken.url]).list_remote(retry=PATIENT, storage_options=broken.options)
            assert [url.removeprefix(broken.url) for url in urls] == list(expected_pages(pages.row))
        assert store.counts["slow_down"] + store.counts["reset"] + store.counts["cut_body"] > 0


@each("lists", "proxied")
def test_a_listing_is_whole_through_a_storm(tree: Folder) -> None:
    """Also one of a single page."""
    faults = Faults(slow_down=0.2, internal_error=0.1, reset=0.1, cut_body=0.1, listings=True)
    with FaultyStore(tree.server.endpoint_url, faults, seed=2) as store:
        broken = tree.through(store.endpoint_url)
        for _ in itertools.repeat(None, 10):
            urls = IterableWrapper([broken.url]).list_remote(retry=PATIENT, storage_options=broken.options)
            assert [url.removeprefix(broken.url) for url in urls] == PATHS
        assert sum(store.counts.values()) > store.counts["well"] > 0
