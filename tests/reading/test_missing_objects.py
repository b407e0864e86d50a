"""What is said about objects and folders that are not there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fsspec
import pytest

import torchdata_remote as tdr
from torchdata_remote.errors import EmptyListingError, ObjectNotFoundError, SampleError


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
        missing = f"The folder {folder}/trian does not exist" if below == "trian/cat/" else "There is no such folder. "
        assert (missing in text) == (not folder.startswith("memory"))
        assert "did you mean 'train'?" in text


def test_an_empty_folder_is_called_empty(tmp_path: Path) -> None:
    (tmp_path / "nothing").mkdir()
    for below in ("nothing", "nothing/", "nothing/*.tar"):
        assert "/nothing/ is empty." in _listing(f"{tmp_path}/{below}")
    assert f" {tmp_path}/ has empty folders only: 'nothing/'." in _listing(str(tmp_path))


def test_a_folder_that_has_folders_only_names_them(folder: str) -> None:
    assert _listing(f"{folder}/train/", recursive=False).endswith(
        "/train/ has folders only: 'cat/', 'dog/'. List one of them, or pass recursive=True."
    )


def test_a_missing_folder_above_is_named(tmp_path: Path) -> None:
    text = _listing(f"{tmp_path}/data/train/")
    assert f"The folder {tmp_path}/data does not exist. Is the disk mounted" in text
    for url in (
        "/nonexistent-folder/",
        "/nonexistent-folder",
        "file:///nonexistent-folder/",
        "/nonexistent-folder/*.x",
    ):
        text = _listing(url)
        assert "There is no such folder. / has " in text, "although / has links"
        assert "bucket" not in text


def test_memory_without_objects_says_whose_memory_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = fsspec.filesystem("memory")
    monkeypatch.setattr(type(memory), "store", {})
    monkeypatch.setattr(type(memory), "pseudo_dirs", [""])
    assert "memory:// is the memory of this process" in _listing("memory://never-written/x/")


@pytest.mark.parametrize("source", ["tr*", "./tr*", "t?ain", "[tv]*"])
def test_a_glob_that_matches_folders_says_how_to_list_them(
    source: str, pets: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(pets)
    text = _listing(source)
    assert "It matches the folder" in text
    assert f"'train/'{', ' if source == '[tv]*' else ':'}" in text
    assert f"for what is in there, '{source}/'" in text
    assert list(tdr.IterableWrapper([f"{source}/"]).list_remote()) != []


def test_a_glob_that_matches_folders_of_a_store_says_how_to_list_them(remote_pets: str) -> None:
    assert "It matches the folder 'train/': end it with a slash" in _listing(f"{remote_pets}/tr*")
    assert "It matches" not in _listing(f"{remote_pets}/x*")


@pytest.mark.parametrize("target", ["circle", "gone"])
def test_a_link_that_leads_nowhere_does_not_keep_others_from_being_read(pets: str, target: str) -> None:
    (Path(pets) / "val/circle").symlink_to(target)
    assert len(list(tdr.IterableWrapper([f"{pets}/val/"]).list_remote(pattern="*.jpg"))) == 1
    assert len(list(tdr.IterableWrapper([f"{pets}/val/*.jpg"]).list_remote())) == 1
    assert len(tdr.RemoteImageFolder(pets)) == 3
    with pytest.raises(
        ObjectNotFoundError, match=f"val/circle is a broken link: it leads to '{target}'.*pass a pattern="
    ):
        list(tdr.IterableWrapper([f"{pets}/val/"]).list_remote())
    with pytest.raises(EmptyListingError, match=f"It is a broken link: it leads to '{target}'"):
        list(tdr.IterableWrapper([f"{pets}/val/circle"]).list_remote())


def test_objects_that_do_not_match_are_counted(folder: str) -> None:
    text = _listing(f"{folder}/train/", pattern="*.png")
    assert "that match pattern='*.png'. There are 2 others, such as 'cat/1.jpg', 'dog/1.jpg'." in text


def test_stream_shards_on_loose_files_names_the_reader_of_loose_files(folder: str) -> None:
    with pytest.raises(EmptyListingError, match="loose files by stream_files"):
        list(tdr.stream_shards(f"{folder}/train/"))


def test_an_image_folder_of_shards_names_stream_shards(folder: str) -> None:
    with pytest.raises(EmptyListingError, match=r"one other, such as 'x-0\.tar': tars are read by stream_shards"):
        tdr.RemoteImageFolder(f"{folder}/shards")


def test_a_reader_on_a_folder_says_that_it_is_one(folder: str) -> None:
    with pytest.raises(ObjectNotFoundError, match=r"It is a folder with 2 objects.*list_remote\(\)"):
        list(tdr.IterableWrapper([f"{folder}/train/"]).shard_tar_reader())
    with pytest.raises(SampleError, match=r"If it is a folder, list it first"):
        list(tdr.IterableWrapper([f"{folder}/train"]).file_reader())


def test_a_missing_object_names_a_similar_one(folder: str) -> None:
    with pytest.raises(ObjectNotFoundError, match=r"val/ has '1\.jpg'; did you mean '1\.jpg'\?"):
        list(tdr.IterableWrapper([f"{folder}/val/1.jpgg"]).file_reader())


def test_a_missing_object_of_a_missing_folder_names_the_folder(pets: str) -> None:
    with pytest.raises(ObjectNotFoundError, match=f"The folder {pets}/gone does not exist"):
        list(tdr.IterableWrapper([f"{pets}/gone/below/x.tar"]).shard_tar_reader())
    (Path(pets) / "x.tar").symlink_to("gone/x.tar")
    with pytest.raises(ObjectNotFoundError, match=r"It is a broken link: it leads to 'gone/x\.tar'"):
        list(tdr.IterableWrapper([f"{pets}/x.tar"]).shard_tar_reader())


def test_white_space_at_the_end_is_said(folder: str) -> None:
    with pytest.raises(ObjectNotFoundError, match="ends with white space"):
        list(tdr.IterableWrapper([f"{folder}/shards/x-0.tar\n"]).shard_tar_reader())
