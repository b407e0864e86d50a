"""What is said about objects and folders that are not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fsspec
import pytest

import torchdata_remote as tdr
from torchdata_remote.errors import EmptyListingError, ObjectNotFoundError, SampleError, StorageError


@pytest.fixture
def pets(tmp_path: Path) -> str:
    """A local folder with loose files and shards."""
    for name in ("train/cat/1.jpg", "train/dog/1.jpg", "val/1.jpg", "shards/x-0.tar", "packed/x-0.tar.gz"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    return str(tmp_path)


@pytest.fixture
def remote_pets() -> str:
    """The same on a store."""
    names = ("train/cat/1.jpg", "train/dog/1.jpg", "val/1.jpg", "shards/x-0.tar")
    fsspec.filesystem("memory").pipe({f"/whereabouts/{name}": b"x" for name in names})
    return "memory://whereabouts"


@pytest.fixture(params=["pets", "remote_pets"])
def folder(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(request.param)
    return found


def _listing(url: str, **options: Any) -> str:
    with pytest.raises(EmptyListingError) as caught:
        list(tdr.IterableWrapper([url]).list_remote(**options))
    return str(caught.value)


def test_a_missing_folder_names_the_nearest_one_and_a_similar_name(folder: str) -> None:
    for below in ("trian/", "trian", "trian/cat/"):
        text = _listing(f"{folder}/{below}")
        assert f"{folder}/ has " in text
        assert "'train/', " in text
        assert "did you mean 'train'?" in text
    assert f"{folder}/ is a folder that has " in _listing(f"{folder}/tr*")


def test_an_empty_folder_is_called_empty(tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    for below in ("nothing", "nothing/", "nothing/*.tar"):
        assert "/nothing/ is empty." in _listing(f"{tmp_path}/{below}")


def test_a_folder_whose_objects_are_not_chosen_names_what_it_has(folder: str) -> None:
    assert "/train/ is a folder that has 'cat/', 'dog/'" in _listing(f"{folder}/train/", recursive=False)
    text = _listing(f"{folder}/train/cat", pattern="*.png")
    assert "that match pattern='*.png'. " in text
    assert "/train/cat/ is a folder that has '1.jpg'" in text


def test_memory_without_objects_says_whose_memory_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = fsspec.filesystem("memory")
    monkeypatch.setattr(type(memory), "store", {})
    monkeypatch.setattr(type(memory), "pseudo_dirs", [""])
    assert "memory:// is the memory of this process" in _listing("memory://never-written/x/")


@pytest.mark.parametrize("target", ["circle", "gone"])
def test_a_link_that_leads_nowhere_does_not_keep_others_from_being_read(pets: str, target: str) -> None:
    (Path(pets) / "val/circle").symlink_to(target)
    assert len(list(tdr.IterableWrapper([f"{pets}/val/"]).list_remote(pattern="*.jpg"))) == 1
    assert len(list(tdr.IterableWrapper([f"{pets}/val/*.jpg"]).list_remote())) == 1
    assert len(tdr.RemoteImageFolder(pets)) == 3
    with pytest.raises(StorageError, match="val/circle: "):
        list(tdr.IterableWrapper([f"{pets}/val/"]).list_remote().async_prefetch().map(lambda one: one[1].read()))


def test_stream_shards_on_loose_files_names_the_reader_of_loose_files(folder: str) -> None:
    with pytest.raises(EmptyListingError, match="loose files by stream_files"):
        list(tdr.stream_shards(f"{folder}/train/"))


def test_a_reader_on_a_folder_says_that_it_is_one(folder: str) -> None:
    with pytest.raises(ObjectNotFoundError, match=r"is a folder that has 'cat/', 'dog/'.*list_remote\(\)"):
        list(tdr.IterableWrapper([f"{folder}/train/"]).shard_tar_reader())
    with pytest.raises(SampleError, match=r"If it is a folder, list it first"):
        list(tdr.IterableWrapper([f"{folder}/train"]).file_reader())


def test_a_folder_with_an_extension_needs_its_slash_and_says_so() -> None:
    fsspec.filesystem("memory").pipe("/whereabouts/a.parquet/part-0", b"x")
    with pytest.raises(ObjectNotFoundError, match=r"memory://whereabouts/a.parquet/ is a folder that has 'part-0'"):
        list(tdr.IterableWrapper(["memory://whereabouts/a.parquet"]).list_remote().file_reader())
    assert len(list(tdr.IterableWrapper(["memory://whereabouts/a.parquet/"]).list_remote())) == 1


def test_a_missing_object_of_a_missing_folder_names_the_nearest_one(pets: str) -> None:
    with pytest.raises(ObjectNotFoundError, match=f"{pets}/ has "):
        list(tdr.IterableWrapper([f"{pets}/gone/below/x.tar"]).shard_tar_reader())
    (Path(pets) / "x.tar").symlink_to("gone/x.tar")
    with pytest.raises(ObjectNotFoundError, match=r"It is a broken link: it leads to 'gone/x\.tar'"):
        list(tdr.IterableWrapper([f"{pets}/x.tar"]).shard_tar_reader())
