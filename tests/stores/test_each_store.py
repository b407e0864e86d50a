"""Listing, reading and training, the same for every store."""

from __future__ import annotations

import json
import random
from itertools import islice
from pathlib import Path
from typing import Any

import fsspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import torchdata_remote as tdr
from tests.servers.service import running_service
from tests.servers.store_server import StoreServer
from tests.stores.folder import Folder, new_folder
from tests.stores.rows import Row, each, table
from tests.support import objects
from torchdata_remote import errors
from torchdata_remote.testing import write_small_shards

MANUAL = Path(__file__).parents[2] / "docs" / "stores" / "index.md"
PATHS = sorted(["a", "a.b", "b/c", "b/d/e", "b/d/f", "b.", "b0", "c/\u00e9", "c/\U0001f600", "c/z/z/z", "z"])
SIZES = (0, 1, 2, 10, 300)
DATA = random.Random(5).randbytes(1_000_003)
ODD_NAMES = [
    *("a b/c d.bin", "%20.bin", "a%2Fb.bin", "a#b.bin", "a?b=c.bin", "a+b.bin", "a&b=c;d,e.bin"),
    *("a*b[0-9]{1,2}.bin", "\u00e5/\u65e5\u672c/\U0001f600.bin", "e\u0301 is not \u00e9.bin", "'quotes\" and |.bin"),
    *("~tilde(1)!.bin", "a::b@c:d$e.bin", "x" * 200),
]
STRANGE_NAMES = ["dir//x.bin", "a/../b.bin", "a/./b.bin", "/begins", "ends/", "back\\slash", "y" * 900]
STRANGE_NAMES += ["tab\t.bin", "a\x7fb", "a\x80b"]  # which obstore refuses
ODD_FOLDER = "a b/%20#c?d=e+&;,'!~(1)\u00e9/\u65e5\u672c\U0001f600/"
NUM_SAMPLES = 18
KEYS = sorted(f"{index % 10}/{index:06d}" for index in range(NUM_SAMPLES))


def test_the_manual_has_the_table_of_stores_that_are_tested() -> None:
    """Printed by ``python -c 'from tests.stores.rows import table; print(table())'``."""
    assert table() in MANUAL.read_text()


@pytest.fixture(scope="session")
def tree(row: Row, server: StoreServer, place_of_row: str) -> Folder:
    """Objects in folders, whose content is their path, and some whose name is their size."""
    folder = new_folder(row, server, place_of_row)
    for path in PATHS:
        folder.put(f"tree/{path}", path.encode())
    for size in SIZES:
        folder.put(f"sizes/{size}", DATA[:size])
    return folder


SOURCES = {
    "": PATHS,
    "b": ["b/c", "b/d/e", "b/d/f"],
    "b/": ["b/c", "b/d/e", "b/d/f"],
    "b/d/": ["b/d/e", "b/d/f"],
    "c/": ["c/z/z/z", "c/\u00e9", "c/\U0001f600"],
    "b*": ["b.", "b0"],
    "c/?": ["c/\u00e9", "c/\U0001f600"],
    "b/c": ["b/c"],
}


@each("lists", transports=True)
def test_a_source_lists_its_objects_once_and_in_order_with_size_and_etag(tree: Folder) -> None:
    for source, expected in SOURCES.items():
        urls = objects.listed(f"{tree.url}tree/{source}", tree.options)
        assert [url.removeprefix(f"{tree.url}tree/") for url in urls] == expected, source
        for url, path in zip(urls, expected, strict=True):
            assert url.size == len(path.encode())
            assert (url.etag is not None) == (tree.row.versions == "etag")
            assert url.etag == tree.found(f"tree/{path}").etag
    assert tree.listed("tree/", recursive=False) == [f"tree/{path}" for path in PATHS if "/" not in path]
    assert tree.listed("tree/b", recursive=False) == ["tree/b/c"]
    assert tree.listed("tree/", pattern="[ef]") == ["tree/b/d/e", "tree/b/d/f"]
    for nothing in ("tree/nothing/", "tree/b/d/e/f", "tre"):
        with pytest.raises(errors.EmptyListingError):
            tree.listed(nothing)


@each(transports=True)
@settings(max_examples=8)
@given(size=st.sampled_from(SIZES), part_bytes=st.integers(40, 400), is_listed=st.booleans())
def test_an_object_of_any_size_is_read_in_any_parts(tree: Folder, size: int, part_bytes: int, is_listed: bool) -> None:
    name = f"sizes/{size}"
    assert tree.read(tree.found(name) if is_listed else name, part_bytes=part_bytes) == DATA[:size]


def odd_names(row: Row) -> list[str]:
    names = ODD_NAMES + (STRANGE_NAMES if row.strange_names else [])
    return [name for name in names if set(row.refused_in_names).isdisjoint(name)]


@each("lists", transports=True)
def test_an_odd_name_is_that_of_one_object(folder: Folder) -> None:
    names = odd_names(folder.row)
    for name in names:
        folder.put(name, name.encode())
    urls = objects.listed(folder.url, folder.options)
    assert sorted(url.removeprefix(folder.url) for url in urls) == sorted(names)
    assert [url.size for url in urls] == [len(url.removeprefix(folder.url).encode()) for url in urls]
    pipe = tdr.IterableWrapper(urls).async_prefetch(storage_options=folder.options, backend=folder.row.backend)
    assert {url.removeprefix(folder.url): stream.read().decode() for url, stream in pipe} == {one: one for one in names}
    for name in names:
        if not name.endswith("/"):
            assert folder.found(name).size == len(name.encode())


@each("lists", "writes", transports=True)
def test_shards_are_written_to_a_folder_with_an_odd_name(folder: Folder) -> None:
    odd = "".join(character for character in ODD_FOLDER if character not in folder.row.refused_in_names)
    write_small_shards(folder.url + odd, num_shards=1, samples_per_shard=3, storage_options=folder.options)
    expected = ["000000.tar", "000000.tar.idx", "000000.tar.keys", "index.json"]
    assert folder.names() == [odd + name for name in expected]
    manifest = tdr.escape_url(f"{folder.url}{odd}index.json")
    assert len(list(tdr.stream_shards(manifest, storage_options=folder.options))) == 3


@each("refused_in_names")
def test_a_name_that_a_library_would_change_is_refused(folder: Folder) -> None:
    for character in folder.row.refused_in_names:
        with pytest.raises(errors.UrlError, match="Rename the file"):
            folder.read(f"a{character}20b")
        with pytest.raises(errors.UrlError, match="Rename the file"):
            objects.write(f"{folder.url}a{character}20b", folder.options)
    assert folder.names() == []


@each("mutable", transports=True)
def test_a_replaced_object_is_an_error_and_never_another_version(folder: Folder) -> None:
    """By its etag, or where there is none by its size."""
    folder.put("a", b"first version")
    before = folder.found("a")
    assert folder.read(before) == b"first version"
    if folder.row.versions == "etag":
        folder.put("a", b"other version")
        with pytest.raises(errors.ObjectChangedError, match="/a"):
            folder.read(before)
    folder.put("a", b"a longer version")
    for seen in (before, tdr.RemoteUrl(before, before.size)):
        with pytest.raises(errors.ObjectChangedError):
            folder.read(seen)
    assert (folder.read(folder.found("a")), folder.found("a").size) == (b"a longer version", 16)
    folder.server.delete(folder.url + "a")
    with pytest.raises(errors.EmptyListingError):
        folder.found("a")


@each("mutable", "versions=etag", transports=True)
def test_an_object_that_is_replaced_while_it_is_read_is_no_mixture(folder: Folder) -> None:
    folder.put("a", DATA)
    pipe = tdr.IterableWrapper([folder.found("a")]).async_prefetch(
        part_bytes=50_000,
        max_in_flight=1,
        max_buffer_bytes=100_000,
        retry=objects.PATIENT,
        backend=folder.row.backend,
        storage_options=folder.options,
    )
    [(_, stream)] = pipe
    assert stream.read(60_000) == DATA[:60_000]
    folder.put("a", DATA[::-1])
    if folder.row.name == "local":  # a small file is read at once
        assert stream.read() == DATA[60_000:]
        return
    with pytest.raises(errors.ObjectChangedError):
        stream.read()


@each(transports=True)
def test_a_missing_object_or_bucket_is_an_error_that_names_it(folder: Folder) -> None:
    """Neither a folder nor the beginning of a name is an object."""
    folder.put("d/object.tar", b"1")
    for name in ("no/such.tar", "d", "d/object", "d/object.tar.gz"):
        with pytest.raises(errors.ObjectNotFoundError) as caught:
            folder.read(name)
        assert isinstance(caught.value, FileNotFoundError)
        assert name in str(caught.value)
        if name != "d":
            with pytest.raises(errors.EmptyListingError):
                folder.found(name)
    if folder.row.proxied:
        missing = folder.place[:-4] + "none"
        attempts: list[Any] = [objects.read, *([objects.found] if folder.row.lists else [])]
        for attempt in attempts:
            with pytest.raises(FileNotFoundError, match=missing.rpartition("/")[2]):
                attempt(f"{missing}/a", folder.options)


@each(transports=True)
def test_what_a_store_is_declared_not_to_do_is_an_error(folder: Folder) -> None:
    assert folder.row.writes == folder.server.can_write
    if not folder.row.writes:
        with pytest.raises(errors.UrlError):
            objects.write(folder.url, folder.options)
    if not folder.row.lists:
        with pytest.raises(errors.UrlError, match="brace range"):
            folder.listed()


@pytest.fixture(scope="session")
def shards(row: Row, server: StoreServer, place_of_row: str, tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """Three shards with a manifest, written by this package if it can write there."""
    folder = new_folder(row, server, place_of_row)
    local = tmp_path_factory.mktemp("shards")
    target = (folder.url, folder.options) if row.writes else (f"{local}/", None)
    write_small_shards(target[0], num_shards=3, samples_per_shard=6, storage_options=target[1])
    for path in local.iterdir():
        folder.put(path.name, path.read_bytes())
    return folder


def chain(shards: Folder, source: str = "index.json", **more: Any) -> Any:
    more = {"seed": 3, "interleave": 2, "shuffle_buffer_size": 5, **more}
    return tdr.stream_shards(shards.url + source, storage_options=shards.options, **more).to_tuple("__key__", "txt")


def keys_of(samples: Any) -> list[str]:
    return sorted(key for key, _ in samples)


@each(lines=True)
def test_each_sample_comes_once_and_a_saved_state_goes_on_after_any_stop(shards: Folder) -> None:
    whole = list(chain(shards))
    assert keys_of(whole) == KEYS
    assert all(text == f"sample {int(key[2:])}\n".encode() * (int(key[2:]) % 7 + 1) for key, text in whole)
    assert [key for key, _ in whole] != KEYS
    assert [key for key, _ in chain(shards, seed=1)] != [key for key, _ in whole]
    found: list[Any] = []
    state = None
    for stop in (1, 7, 5, None):
        data = tdr.Resumable(chain(shards))
        if state is not None:
            data.load_state_dict(json.loads(json.dumps(state)))
        found += islice(data, stop)
        state = data.state_dict()
    assert found == whole
    if shards.row.lists:
        for source, pattern in {"": "00000[0-9].tar", "*[0-9].tar": None}.items():
            assert keys_of(chain(shards, source, pattern=pattern)) == KEYS


@each("served")
def test_a_service_over_the_store_writes_lists_and_deletes_datasets(folder: Folder) -> None:
    """In pages and by folders; neighbours stay, and what is unfinished is not listed."""
    folder.put("other/a", b"1")
    with running_service(folder.url, "--storage-options", json.dumps(folder.options)) as address:
        url, service = f"datasets://{address}/set/", fsspec.filesystem("datasets")
        for name in ("", "deep/er/"):
            write_small_shards(url + name, num_shards=1, samples_per_shard=3)
        every = ["000000.tar", "000000.tar.idx", "000000.tar.keys", "index.json"]
        assert [one.removeprefix(url) for one in objects.listed(url)] == [
            *every[:3],
            *(f"deep/er/{one}" for one in every),
            every[3],
        ]
        assert [one.removeprefix(url) for one in objects.listed(url, recursive=False)] == every
        assert objects.listed(f"{url}deep/", pattern="*.tar") == [f"{url}deep/er/000000.tar"]
        assert len(list(tdr.stream_shards(url + "index.json"))) == 3
        service.rm(f"{url}deep/er/index.json")
        assert f"{url}deep/er/index.json" not in objects.listed(url)
        service.rm(url, recursive=True)
    assert folder.names() == ["other/a"]
