"""Pipes of torch and torchdata before and after those of this package."""

from __future__ import annotations

import io
import tarfile
from typing import Any

import fsspec
import pytest

import torchdata_remote as tdr
from torchdata_remote.errors import RemoteDataError
from torchdata_remote.testing import write_small_shards

pytest.importorskip("torchdata.datapipes", reason="DataPipes left torchdata in 0.10")


def put(folder: str, files: dict[str, bytes]) -> list[str]:
    """Store files in memory; their URLs."""
    urls = {f"{folder}/{name}": data for name, data in files.items()}
    fsspec.filesystem("memory").pipe({url.removeprefix("memory:/"): data for url, data in urls.items()})
    return list(urls)


def tar_of(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def prefetched(urls: list[str], part_bytes: int) -> Any:
    return tdr.IterableWrapper(urls).async_prefetch(part_bytes=part_bytes)


def test_our_readers_take_what_torchdatas_fsspec_opener_has_opened(memory_folder: str) -> None:
    """A stream that was opened as text is named as such."""
    written = write_small_shards(memory_folder, num_shards=3, samples_per_shard=4)
    urls: Any = tdr.IterableWrapper([f"{memory_folder}/{shard:06d}.tar" for shard in range(3)])
    assert list(urls.open_files_by_fsspec(mode="rb").shard_tar_reader()) == written
    names = put(memory_folder, {f"{n}.bin": b"%d" % n * n for n in range(4)})
    files: Any = tdr.IterableWrapper(names)
    opened = files.open_files_by_fsspec(mode="rb")
    found = [(sample["__url__"], sample["bin"]) for sample in opened.file_reader()]
    assert found == [(url, b"%d" % n * n) for n, url in enumerate(names)]
    as_text = files.open_files_by_fsspec(mode="r").file_reader()
    with pytest.raises(RemoteDataError, match=r"0\.bin was opened as text; open it with mode='rb'"):
        list(as_text)


def int_of(pair: tuple[int]) -> int:
    return pair[0]


def is_even(number: int) -> bool:
    return number % 2 == 0


def test_torchs_map_filter_batch_and_sharding_filter_join_in(memory_folder: str) -> None:
    write_small_shards(memory_folder, num_shards=4, samples_per_shard=5)
    urls = tdr.IterableWrapper([memory_folder]).list_remote(pattern="*.tar")
    samples = urls.sharding_filter().async_prefetch().shard_tar_reader()
    batches = list(samples.decode_sample().to_tuple("cls").map(int_of).filter(is_even).batch(3))
    assert [number for batch in batches for number in batch] == [n % 10 for n in range(20) if n % 2 == 0]
