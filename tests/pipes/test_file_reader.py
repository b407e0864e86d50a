from __future__ import annotations

import io
import os
import pickle
from pathlib import Path
from typing import Any

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data.datapipes.iter import IterableWrapper

from tests.support.fake_store import store_of
from torchdata_remote import FileReader, RemoteUrl, stream_files
from torchdata_remote.errors import ObjectNotFoundError, RemoteDataError, SampleError, StateError
from torchdata_remote.testing import assert_resumes_everywhere, write_small_shards

SIGNED = "https://host/pets/cat.jpg?X-Amz-Signature=SECRET"


class _Slow(io.BytesIO):
    """A stream that hands out a few bytes at a time."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(5)


@given(st.lists(st.tuples(st.sampled_from(["jpg", "JPG", "seg.png"]), st.binary(max_size=30)), max_size=6))
def test_each_object_is_a_sample(files: list[tuple[str, bytes]]) -> None:
    """In order, with all its bytes, in whatever pieces they come, under the extension in lower case."""
    pairs = [(f"s3://b/v1.0/{i}.{extension}", _Slow(data)) for i, (extension, data) in enumerate(files)]
    assert list(FileReader(IterableWrapper(pairs, deepcopy=False))) == [
        {"__key__": f"v1.0/{i}", "__url__": f"s3://b/v1.0/{i}.{extension}", extension.lower(): data}
        for i, (extension, data) in enumerate(files)
    ]


def test_bare_urls_are_opened_by_the_reader(memory_folder: str) -> None:
    """Bare URLs are opened by the reader, an empty object among them; the URL in the sample is a plain str."""
    files = {f"{memory_folder}/{i}.txt": b"x" * i for i in range(40)}
    fsspec.filesystem("memory").pipe(files)
    urls = [RemoteUrl(url, size=len(data)) for url, data in files.items()]
    for source in (urls, list(files)):
        pipe = FileReader(IterableWrapper(source))
        samples = list(pipe)
        assert [(sample["__url__"], sample["txt"]) for sample in samples] == list(files.items())
        assert {type(sample["__url__"]) for sample in samples} == {str}
        assert list(pipe) == samples, "the next epoch reads them again"
    assert list(IterableWrapper(urls[:1]).file_reader()) == samples[:1]


def test_local_paths_are_read(tmp_path: Path) -> None:
    """A bare path and a ``file://`` URL give the same key and the same bytes."""
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "1.bin").write_bytes(data := os.urandom(100))
    path = str(tmp_path / "cat" / "1.bin")
    bare, url = FileReader(IterableWrapper([path, f"file://{path}"]))
    assert bare["__key__"] == url["__key__"] == path.removeprefix("/").removesuffix(".bin")
    assert bare["bin"] == url["bin"] == data


def test_streams_of_torchdata_are_read(memory_folder: str) -> None:
    """After torchdata's own opener the samples are the same."""
    pytest.importorskip("torchdata.datapipes.iter", reason="DataPipes left torchdata in 0.10")

    fsspec.filesystem("memory").pipe(f"{memory_folder}/cat/1.jpg", b"\xff\xd8")
    urls: Any = IterableWrapper([f"{memory_folder}/cat/1.jpg"])
    (sample,) = urls.open_files_by_fsspec(mode="rb").file_reader()
    assert (sample["__key__"].rpartition("/")[0][-4:], sample["jpg"]) == ("/cat", b"\xff\xd8")
    assert list(FileReader(urls)) == [sample]


@pytest.mark.parametrize("data", [b"ascii", "é".encode(), b"\xff\xd8\xff\xe0"])
def test_text_stream_is_refused(memory_folder: str, data: bytes) -> None:
    """torchdata's default; the error names the object and the right mode, even if the bytes are no text at all."""
    pytest.importorskip("torchdata.datapipes.iter", reason="DataPipes left torchdata in 0.10")

    url = f"{memory_folder}/1.jpg"
    fsspec.filesystem("memory").pipe(url, data)
    urls: Any = IterableWrapper([url])
    with pytest.raises(RemoteDataError, match=r"mode='rb'") as caught:
        list(urls.open_files_by_fsspec().file_reader())
    assert url in str(caught.value)


@pytest.mark.parametrize(("name", "missing"), [("README", "extension"), (".hidden", "key"), ("a.", "extension")])
def test_name_without_key_or_extension_is_an_error(name: str, missing: str) -> None:
    """The error names the object and what its name lacks; the stream is closed."""
    stream = io.BytesIO(b"x")
    url = f"s3://b/v1.0/{name}"
    with pytest.raises(SampleError, match=f"no {missing}.*pattern=") as caught:
        list(FileReader(IterableWrapper([(url, stream)], deepcopy=False)))
    assert url in str(caught.value)
    assert caught.value.url == url
    assert stream.closed


def test_streams_are_closed_after_reading() -> None:
    """So that a million files do not stay open."""
    streams = [io.BytesIO(b"1"), io.BytesIO(b"2")]
    list(FileReader(IterableWrapper([(f"s3://b/{i}.x", s) for i, s in enumerate(streams)], deepcopy=False)))
    assert all(stream.closed for stream in streams)


def test_errors_and_samples_show_no_url_signature() -> None:
    """The query of a signed URL opens the object for whoever reads a log, or a sample that was kept."""
    (sample,) = FileReader(IterableWrapper([(SIGNED, io.BytesIO(b"x"))]))
    assert sample == {"__key__": "pets/cat", "__url__": "https://host/pets/cat.jpg", "jpg": b"x"}
    with pytest.raises(SampleError) as caught:
        list(FileReader(IterableWrapper([(SIGNED.replace(".jpg", ""), io.BytesIO())])))
    assert "SECRET" not in f"{caught.value} {caught.value.url}"


def test_url_of_a_sample_opens_its_object(memory_folder: str) -> None:
    """Hiding credentials takes nothing from a URL that has none, whatever characters its path has."""
    url = f"{memory_folder}@home/what?/a@b#c.jpg"
    fsspec.filesystem("memory").pipe(url, b"x")
    (sample,) = FileReader(IterableWrapper([url]))
    assert sample["__url__"] == url


def test_missing_object_is_an_error(memory_folder: str) -> None:
    """It names the URL and is a ``FileNotFoundError``; what came before it was handed out."""
    fsspec.filesystem("memory").pipe(f"{memory_folder}/0.x", b"0")
    iterator = iter(FileReader(IterableWrapper([f"{memory_folder}/0.x", f"{memory_folder}/1.x"])))
    assert next(iterator)["x"] == b"0"
    with pytest.raises(ObjectNotFoundError, match=f"{memory_folder}/1.x") as caught:
        next(iterator)
    assert isinstance(caught.value, FileNotFoundError)


@pytest.mark.parametrize(
    ("items", "message"),
    [([3], "int"), ([("s3://b/a.x", 3)], "tuple"), ([("s3://b/a.x", io.BytesIO()), "s3://b/b.x"], "str")],
)
def test_items_that_are_neither_url_nor_stream_are_refused(items: list[Any], message: str) -> None:
    """The error names the type that came and what was expected."""
    with pytest.raises(RemoteDataError, match=rf"Expected a URL.*{message}"):
        list(FileReader(IterableWrapper(items, deepcopy=False)))


def test_pipe_pickles_before_and_after_a_pass(memory_folder: str) -> None:
    """It goes to worker processes with what it needs."""
    fsspec.filesystem("memory").pipe(f"{memory_folder}/0.x", b"0")
    pipe = FileReader(IterableWrapper([f"{memory_folder}/0.x"]))
    samples = list(pickle.loads(pickle.dumps(pipe)))
    assert samples == list(pipe)
    assert samples == list(pickle.loads(pickle.dumps(pipe)))


def test_storage_options_are_not_in_errors() -> None:
    """torch adds the pipe's attributes to the message of an error: storage options are none of them."""
    pipe = FileReader(IterableWrapper[Any]([3]), storage_options={"key": "k", "secret": "HUSH"})
    with pytest.raises(RemoteDataError) as caught:
        list(pipe)
    assert "HUSH" not in f"{caught.value} {pipe!r} {pipe}"


def _small_files(folder: str) -> list[str]:
    files = {f"{folder}/{i}.txt": b"x" * i for i in range(8)}
    fsspec.filesystem("memory").pipe(files)
    return list(files)


def _is_odd(pair: tuple[str, Any]) -> bool:
    return int(pair[0][-5]) % 2 == 1


def test_it_resumes_after_any_file(memory_folder: str) -> None:
    """After URLs, after streams, and where torch's own pipes stand between."""
    urls = _small_files(memory_folder)
    assert_resumes_everywhere(lambda: IterableWrapper(urls).file_reader())
    assert_resumes_everywhere(lambda: IterableWrapper(urls).async_prefetch(part_bytes=3).file_reader())
    assert_resumes_everywhere(lambda: IterableWrapper(urls).async_prefetch().filter(_is_odd).file_reader())
    assert_resumes_everywhere(lambda: IterableWrapper(urls).sharding_filter_rank().file_reader(), num_streams=3)


def test_resuming_requests_no_file_again() -> None:
    """A pass that goes on begins with the next one."""
    with store_of({f"s3://b/{i}.txt": b"x" for i in range(5)}) as store:
        pipe = FileReader(IterableWrapper(list(store.objects)))
        samples = iter(pipe)
        next(samples)
        next(samples)
        state = pipe.state_dict()
        assert state == {"next": 2}
        del samples
        again = FileReader(IterableWrapper(list(store.objects)))
        again.load_state_dict(state)
        store.reads.clear()
        assert [sample["__key__"] for sample in again] == ["2", "3", "4"]
        assert sorted(path for path, *_ in store.reads) == [f"s3://b/{i}.txt" for i in (2, 3, 4)]
        assert again.state_dict() == {"next": 5}
        again.load_state_dict({"next": 4})
        assert list(again.warm_up()) == []
        assert [sample["__key__"] for sample in again] == ["4"]


def test_streams_of_other_openers_have_no_state() -> None:
    """They could not be opened again; they are read all the same."""
    pipe = FileReader(IterableWrapper([("s3://b/1.x", io.BytesIO(b"1"))], deepcopy=False))
    assert [sample["x"] for sample in pipe] == [b"1"]
    with pytest.raises(StateError, match="cannot be opened again"):
        pipe.state_dict()


@pytest.mark.parametrize("end", ["#samples=3-9", "+samples+3-9"])
def test_key_that_looks_like_a_range_is_read_completely(memory_folder: str, end: str) -> None:
    """With and without fetching ahead; the listing returns the key as it is."""
    url = f"{memory_folder}/1.txt{end}"
    with fsspec.open(url, "wb") as file:
        file.write(b"whole")
    listed = IterableWrapper([f"{memory_folder}/"]).list_remote()
    for source in (listed, listed.async_prefetch()):
        (sample,) = FileReader(source)
        assert sample["__url__"] == url
        assert sample[f"txt{end}"] == b"whole"


def test_range_of_a_shard_is_refused(memory_folder: str) -> None:
    """Where there are fewer shards than readers, and the manifest tells their samples."""
    write_small_shards(memory_folder, num_shards=1, samples_per_shard=4)
    (shard,) = IterableWrapper([f"{memory_folder}/index.json"]).list_remote()
    with pytest.raises(RemoteDataError, match=r"split by samples.* FileReader reads whole objects only"):
        list(FileReader(IterableWrapper([shard.part(0, 2)])))


def test_a_file_whose_extension_is_an_entry_of_the_reader_is_refused(memory_folder: str) -> None:
    """It replaced the URL, or the key, of its sample."""
    for name in ("__url__", "__key__"):
        fsspec.filesystem("memory").pipe(f"{memory_folder}/{name}/a.{name}", b"x")
        with pytest.raises(SampleError, match=f"the name has the extension '{name}', so it cannot be part of a sample"):
            list(stream_files(f"{memory_folder}/{name}/"))
