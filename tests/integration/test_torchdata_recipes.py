"""Pipes of torchdata before and after ours."""

from __future__ import annotations

import io
import os
import tarfile
from typing import Any

import pytest
from torch.utils.data.datapipes.iter import IterableWrapper

from tests.servers.s3 import S3Server
from torchdata_remote.core.options import StorageOptions
from torchdata_remote.storage import open_store
from torchdata_remote.testing import write_small_shards

pytest.importorskip("torchdata.datapipes", reason="DataPipes left torchdata in 0.10")


@pytest.fixture(params=["memory", "s3"])
def place(request: pytest.FixtureRequest, memory_folder: str) -> tuple[str, dict[str, Any]]:
    """A folder, and the storage options to reach it."""
    if request.param == "memory":
        return memory_folder, {}
    moto: S3Server = request.getfixturevalue("moto")
    return f"s3://{moto.new_bucket()}/folder", moto.storage_options


def put(url: str, options: dict[str, Any], data: bytes) -> str:
    store, path = open_store(url, StorageOptions(options))
    pending = store.create(path, overwrite=False)
    pending.write(data)
    pending.commit()
    return url


def tar_of(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


@pytest.mark.parametrize("part_bytes", [1_000, 1 << 20])
def test_load_from_tar(place: tuple[str, dict[str, Any]], part_bytes: int) -> None:
    """torchdata's tar reader takes the streams of ``async_prefetch``."""
    folder, options = place
    shards = [{f"{shard}-{n}.txt": b"%d " % n * 300 * n for n in range(9)} for shard in range(3)]
    urls = [put(f"{folder}/{shard}.tar", options, tar_of(shards[shard])) for shard in range(3)]
    pipe = IterableWrapper(urls).async_prefetch(storage_options=options, part_bytes=part_bytes).load_from_tar()
    read = {path: stream.read() for path, stream in pipe}
    expected = {f"{folder}/{shard}.tar/{name}": shards[shard][name] for shard in range(3) for name in shards[shard]}
    assert read == {os.path.normpath(path): data for path, data in expected.items()}  # torchdata's own spelling


def test_readlines(place: tuple[str, dict[str, Any]]) -> None:
    """torchdata's ``readlines`` takes the streams of ``async_prefetch``, also lines over several parts."""
    folder, options = place
    urls = [put(f"{folder}/{n}.txt", options, b"one %d\r\ntwo\n\nlast %d" % (n, n)) for n in range(20)]
    pipe = IterableWrapper(urls).async_prefetch(storage_options=options, part_bytes=5).readlines()
    expected = [(url, line) for n, url in enumerate(urls) for line in (b"one %d" % n, b"two", b"", b"last %d" % n)]
    assert list(pipe) == expected


def test_parse_csv(place: tuple[str, dict[str, Any]]) -> None:
    """torchdata's ``parse_csv`` takes the streams of ``async_prefetch``."""
    folder, options = place
    urls = [put(f"{folder}/{n}.csv", options, b'name,number\n"x, y",%d\n' % n) for n in range(4)]
    pipe = IterableWrapper(urls).async_prefetch(storage_options=options, part_bytes=7).parse_csv(skip_lines=1)
    assert list(pipe) == [["x, y", str(n)] for n in range(4)]


def test_open_files_by_fsspec_before_shard_tar_reader(place: tuple[str, dict[str, Any]]) -> None:
    """``shard_tar_reader`` reads what torchdata's fsspec opener opened."""
    folder, options = place
    written = write_small_shards(folder, num_shards=3, samples_per_shard=4, storage_options=options)
    urls = IterableWrapper([f"{folder}/{shard:06d}.tar" for shard in range(3)])
    pipe = urls.open_files_by_fsspec(mode="rb", **options).shard_tar_reader()
    assert list(pipe) == written


def test_open_files_by_fsspec_before_file_reader(place: tuple[str, dict[str, Any]]) -> None:
    """``file_reader`` reads what torchdata's fsspec opener opened."""
    folder, options = place
    urls = [put(f"{folder}/{n}.bin", options, b"%d" % n * n) for n in range(4)]
    opened = IterableWrapper(urls).open_files_by_fsspec(mode="rb", **options)
    assert [(sample["__url__"], sample["bin"]) for sample in opened.file_reader()] == [
        (url, b"%d" % n * n) for n, url in enumerate(urls)
    ]


def test_files_opened_as_text(memory_folder: str) -> None:
    """A stream that was opened as text is named as such."""
    from torchdata_remote.errors import RemoteDataError

    url = put(f"{memory_folder}/a.txt", {}, b"text")
    pipe = IterableWrapper([url]).open_files_by_fsspec(mode="r").file_reader()
    with pytest.raises(RemoteDataError, match=r"a\.txt was opened as text; open it with mode='rb'"):
        list(pipe)


def test_torch_file_opener(tmp_path: Any) -> None:
    """torch's own opener of local files works before ``shard_tar_reader`` too."""
    written = write_small_shards(str(tmp_path), num_shards=2, samples_per_shard=3)
    urls = [str(tmp_path / f"{shard:06d}.tar") for shard in range(2)]
    pipe = IterableWrapper(urls).open_files(mode="rb").shard_tar_reader()
    assert [sample["txt"] for sample in pipe] == [sample["txt"] for sample in written]


def test_other_pipes_between_ours(place: tuple[str, dict[str, Any]]) -> None:
    """torch's ``map``, ``filter``, ``batch`` and ``sharding_filter`` join in."""
    folder, options = place
    write_small_shards(folder, num_shards=4, samples_per_shard=5, storage_options=options)
    urls = IterableWrapper([folder]).list_remote(pattern="*.tar", storage_options=options)
    samples = urls.sharding_filter().async_prefetch(storage_options=options).shard_tar_reader()
    batches = list(samples.decode_sample().to_tuple("cls").map(int_of).filter(is_even).batch(3))
    assert [number for batch in batches for number in batch] == [n % 10 for n in range(20) if n % 2 == 0]


def int_of(pair: tuple[int]) -> int:
    return pair[0]


def is_even(number: int) -> bool:
    return number % 2 == 0
