"""Datasets below one root."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the service's libraries are not installed")

from tests.support.shard_places import Place
from torchdata_remote.errors import ObjectChangedError, UrlError
from torchdata_remote.service.server.datasets.dataset_root import CHUNK_BYTES, DatasetRoot
from torchdata_remote.service.server.problems import Problem


def test_any_range_is_read_in_chunks(place: Place) -> None:
    """Of at most 1 MiB."""
    root = DatasetRoot(place.url, place.options)
    root.create_dataset("d")
    data = bytes(range(256)) * 10_000
    place.below("d").put({"a": data})
    entry = root.stat(root.folder("d"), "a")
    for start, end in [(0, None), (0, 1), (5, 5), (1_000_000, 2_500_000), (len(data) - 1, len(data))]:
        chunks = [bytes(chunk) for chunk in root.chunks(entry, start, end)]
        assert b"".join(chunks) == data[start:end]
        assert all(len(chunk) <= CHUNK_BYTES for chunk in chunks)


def test_a_file_that_is_replaced_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    """No byte of the new version is returned."""
    root = DatasetRoot(str(tmp_path))
    root.create_dataset("d")
    (tmp_path / "d" / "a").write_bytes(b"a" * (3 * CHUNK_BYTES))
    chunks = root.chunks(root.stat(root.folder("d"), "a"))
    assert bytes(next(chunks)) == b"a" * CHUNK_BYTES
    (tmp_path / "d" / "a").write_bytes(b"b" * (3 * CHUNK_BYTES))
    with pytest.raises(ObjectChangedError):
        next(chunks)


def test_concurrent_writes_and_deletes_in_one_deep_folder_succeed(tmp_path: Path) -> None:
    """None fails because another thread removed the empty folder."""
    root = DatasetRoot(str(tmp_path))
    root.create_dataset("d")
    folder = root.folder("d")
    problems: list[Exception] = []

    def work(number: int) -> None:
        try:
            for _ in range(50):
                pending = root.create_file(folder, f"x/y/z/{number}")
                pending.commit()
                root.delete(folder, f"x/y/z/{number}")
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
def test_a_root_that_is_not_writable_is_refused(root: str) -> None:
    """Such as http."""
    with pytest.raises(UrlError, match="cannot keep datasets"):
        DatasetRoot(root)
