"""Datasets below one root."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the service's libraries are not installed")

from tests.support.shard_places import Place
from torchdata_remote.errors import ObjectChangedError, UrlError
from torchdata_remote.service.server.dataset_root import CHUNK_BYTES, DatasetRoot
from torchdata_remote.service.server.problems import Problem


def test_chunks_are_those_of_one_version(place: Place) -> None:
    """Any range, in chunks of at most 1 MiB."""
    shelf = DatasetRoot(place.url, place.options)
    shelf.create("d")
    data = bytes(range(256)) * 10_000
    place.below("d").put({"a": data})
    entry = shelf.stat(shelf.folder("d"), "a")
    for start, end in [(0, None), (0, 1), (5, 5), (1_000_000, 2_500_000), (len(data) - 1, len(data))]:
        chunks = [bytes(chunk) for chunk in shelf.chunks(entry, start, end)]
        assert b"".join(chunks) == data[start:end]
        assert all(len(chunk) <= CHUNK_BYTES for chunk in chunks)


def test_a_file_that_is_replaced_while_it_is_read(tmp_path: Path) -> None:
    """An error, and no byte of the other one."""
    shelf = DatasetRoot(str(tmp_path))
    shelf.create("d")
    (tmp_path / "d" / "a").write_bytes(b"a" * (3 * CHUNK_BYTES))
    chunks = shelf.chunks(shelf.stat(shelf.folder("d"), "a"))
    assert bytes(next(chunks)) == b"a" * CHUNK_BYTES
    (tmp_path / "d" / "a").write_bytes(b"b" * (3 * CHUNK_BYTES))
    with pytest.raises(ObjectChangedError):
        next(chunks)


def test_folders_come_and_go_with_their_files(tmp_path: Path) -> None:
    """Many threads, each with a file of its own in one deep folder: none fails because another removed the folder."""
    shelf = DatasetRoot(str(tmp_path))
    shelf.create("d")
    folder = shelf.folder("d")
    problems: list[Exception] = []

    def work(number: int) -> None:
        try:
            for _ in range(50):
                pending = shelf.begin(folder, f"x/y/z/{number}")
                pending.commit()
                shelf.delete(folder, f"x/y/z/{number}")
        except (Problem, OSError) as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert list((tmp_path / "d").iterdir()) == []


@pytest.mark.parametrize("root", ["http://localhost/x/", "https://localhost/x/"])
def test_roots_that_keep_nothing(root: str) -> None:
    """What cannot be written to is no root."""
    with pytest.raises(UrlError, match="cannot keep datasets"):
        DatasetRoot(root)
