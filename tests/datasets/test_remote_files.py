"""``RemoteFiles``: the files of a folder by number, as URL and bytes."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

import torchdata_remote as tdr
from tests.datasets.stores import AT_ONCE, root_of
from tests.servers.s3 import S3Server
from tests.servers.scripted import Response, scripted
from tests.support.shard_places import Place, memory_place
from torchdata_remote.errors import EmptyListingError, ObjectNotFoundError, RemoteDataError, StorageError
from torchdata_remote.testing import FaultyStore

FILES = {f"{'abc'[n % 3]}/{n:02d}.bin": b"%d." % n * (n * 37 % 300) for n in range(23)}  # an empty one among them
NAMES = sorted(FILES)


@pytest.fixture(scope="module")
def in_memory() -> Place:
    place = memory_place()
    place.put(FILES)
    return place


@pytest.fixture(scope="module")
def on_s3(moto: S3Server) -> Place:
    place = Place(f"s3://{moto.new_bucket()}/d/", moto)
    place.put(FILES)
    return place


def items_of(place: Place, names: list[str] = NAMES) -> list[tuple[str, bytes]]:
    """The items as they should be."""
    return [(f"{root_of(place)}{name}", FILES[name]) for name in names]


def all_of(dataset: tdr.RemoteFiles) -> list[Any]:
    return list(dataset.__getitems__(range(len(dataset))))


def test_an_item_is_a_plain_url_and_bytes(in_memory: Place) -> None:
    url, data = tdr.RemoteFiles(in_memory.url)[0]
    assert (type(url), type(data)) == (str, bytes)


def test_a_file_replaced_by_one_of_equal_length_is_an_error_where_the_store_has_etags(
    on_s3: Place, moto: S3Server
) -> None:
    place = Place(on_s3.url.replace("/d/", "/other/"), moto)
    place.put({"a": b"old", "b": b"same"})
    dataset = tdr.RemoteFiles(place.url, storage_options=place.options, retry=AT_ONCE)
    place.put({"a": b"new"})
    with pytest.raises(tdr.errors.ObjectChangedError, match="/a"):
        dataset[0]
    assert dataset[1][1] == b"same"


def test_on_error_returns_a_substitute_and_a_batch_is_never_shorter(place: Place) -> None:
    place.put(FILES)
    seen: list[RemoteDataError] = []

    def instead(error: RemoteDataError) -> tuple[str, bytes]:
        seen.append(error)
        return str(error.url), b"lost"

    def own(error: RemoteDataError) -> None:
        raise KeyError("mine") from error

    substituting, noting, raising = (
        tdr.RemoteFiles(place.url, storage_options=place.options, on_error=on_error, retry=AT_ONCE)
        for on_error in (instead, seen.append, own)
    )
    place.delete(NAMES[4])
    items = items_of(place)
    lost = (items[4][0], b"lost")
    assert substituting.__getitems__([3, 4, 5, 4]) == [items[3], lost, items[5], lost]
    with pytest.raises(ObjectNotFoundError, match=NAMES[4]):
        noting.__getitems__([3, 4])
    assert [type(error) for error in seen] == [ObjectNotFoundError] * 3
    with pytest.raises(KeyError, match="mine"):
        raising.__getitems__([3, 4])


@pytest.mark.parametrize("by_index", [False, True])
def test_a_second_epoch_is_read_from_the_cache(on_s3: Place, moto: S3Server, tmp_path: Path, by_index: bool) -> None:
    """With an index nothing is listed either: a GET for each file asks whether another version is there."""
    with FaultyStore(moto.endpoint_url) as store:
        options: dict[str, Any] = {
            "storage_options": {**moto.storage_options, "endpoint_url": store.endpoint_url},
            "cache_dir": str(tmp_path),
            "cache_bytes": 1 << 20,
            "index": [f"d/{name}" for name in NAMES] if by_index else None,
        }
        dataset = tdr.RemoteFiles(on_s3.url, **options)
        assert by_index != bool(store.requests)
        assert all_of(dataset) == items_of(on_s3)
        first = len(store.requests)
        assert all_of(dataset) == items_of(on_s3)
        again = [(one.method, one.path.rpartition("/d/")[2]) for one in store.requests[first:]]
        assert sorted(again) == [("GET", name) for name in sorted(NAMES) if by_index]


ODD_NAMES = {
    "a b/c d.bin": b"blank",
    "ü/é ñ.bin": b"accents",
    "q?a=b/x#y.bin": b"query",
    "per%20cent/%41.bin": b"percent",
    "plus+/a+b.bin": b"plus",
    "at@home/me@x.bin": b"at",
    "glob[1]/x{0..1}*.bin": b"glob",
    ".hidden/.file": b"hidden",
    "no extension": b"flat",
}


def test_files_with_odd_names_are_found_under_their_urls(place: Place) -> None:
    place.put(ODD_NAMES)
    dataset = tdr.RemoteFiles(place.url, storage_options=place.options)
    assert {url.removeprefix(root_of(place)): data for url, data in all_of(dataset)} == ODD_NAMES
    again = pickle.loads(pickle.dumps(dataset))
    assert all_of(again) == all_of(dataset)


def test_directory_markers_are_no_files(moto: S3Server) -> None:
    bucket = moto.new_bucket()
    for key in ("", "a/", "a/b/", "c/"):
        moto.client().put_object(Bucket=bucket, Key=f"d/{key}", Body=b"")
    moto.client().put_object(Bucket=bucket, Key="d/a/b/1", Body=b"one")
    for url in (f"s3://{bucket}/d/", f"s3://{bucket}/d", f"s3://{bucket}"):
        assert all_of(tdr.RemoteFiles(url, storage_options=moto.storage_options)) == [
            (f"s3://{bucket}/d/a/b/1", b"one")
        ]


def test_files_are_sorted_by_first_folder_then_folder_then_name(place: Place) -> None:
    """Which differs from the order of the keys, because ``-`` and ``.`` sort before ``/``."""
    names = ["a/10", "a/2", "a/z.x", "a/z/1", "a/z-/1", "a-b/1", "a.b/1"]
    names = ["a", "b", *names] if place.url.startswith("s3:") else ["b", *names]  # no file and folder of one name
    place.put({name: name.encode() for name in reversed(names)})
    dataset = tdr.RemoteFiles(place.url, storage_options=place.options)
    assert [data.decode() for _, data in all_of(dataset)] == names


@pytest.mark.parametrize("limit", [1, 7, 22, 23, 24, 28])
def test_limit_takes_the_first_files(in_memory: Place, limit: int) -> None:
    assert all_of(tdr.RemoteFiles(in_memory.url, limit=limit)) == items_of(in_memory)[:limit]


@pytest.mark.parametrize("limit", [0, -1, 2.5, "3"])
def test_an_invalid_limit_is_refused_before_anything_is_listed(limit: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="limit must be"):
        tdr.RemoteFiles("memory://no/such/folder/", limit=limit)


def test_a_folder_without_files_is_an_error_that_names_it(place: Place) -> None:
    place.put({"other/x": b""})
    with pytest.raises(EmptyListingError, match="nothing-here"):
        tdr.RemoteFiles(f"{place.url}nothing-here/", storage_options=place.options)


def test_a_glob_chooses_files_and_local_paths_and_links_are_followed(tmp_path: Path, in_memory: Place) -> None:
    chosen = [name for name in NAMES if name.startswith("b/") and "1" in name[2:]]
    assert all_of(tdr.RemoteFiles(f"{in_memory.url}b/*1*.bin")) == items_of(in_memory, chosen)
    Place(f"{tmp_path}/real/").put({"1": b"one"})
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "linked").symlink_to(tmp_path / "real")
    assert tdr.RemoteFiles(tmp_path / "set")[0] == (f"file://{tmp_path}/set/linked/1", b"one")


def test_the_transport_of_fsspec_reads_the_same_bytes(on_s3: Place) -> None:
    dataset = tdr.RemoteFiles(on_s3.url, storage_options=on_s3.options, backend=tdr.Backend.FSSPEC)
    assert all_of(dataset) == items_of(on_s3)


def test_a_web_server_is_read_by_an_index_and_queries_reach_it(tmp_path: Path) -> None:
    with scripted(lambda request: Response.of_object(request, request.target.encode())) as server:
        dataset = tdr.RemoteFiles(f"{server.url}/data/", index=["data/b/1.bin", "data/a/2.bin?signature=canary"])
        assert dataset.__getitems__([1, 0]) == [
            (f"{server.url}/data/b/1.bin", b"/data/b/1.bin"),
            (f"{server.url}/data/a/2.bin", b"/data/a/2.bin?signature=canary"),
        ]


def test_an_error_of_a_signed_url_shows_no_signature() -> None:
    with scripted(lambda request: Response.of_error(403, "AccessDenied")) as server:
        dataset = tdr.RemoteFiles(f"{server.url}/", index=["a.bin?signature=canary"], retry=AT_ONCE)
        with pytest.raises(StorageError, match=r"a\.bin") as caught:
            dataset[0]
    assert "canary" not in f"{caught.value} {vars(caught.value)} {dataset!r} {caught.value.__cause__!r}"
