"""One URL, several URLs and a pipe of URLs are distinguished before anything is listed."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data.datapipes.iter import IterableWrapper

import torchdata_remote as tdr
from torchdata_remote.errors import UrlError
from torchdata_remote.testing import write_small_shards

URL_PIPES: dict[str, Callable[[Any], Any]] = {
    "list_remote": tdr.ListRemote,
    "shuffle_shards": tdr.ShuffleShards,
    "sharding_filter_rank": tdr.ShardingFilterRank,
    "async_prefetch": tdr.AsyncPrefetch,
    "file_reader": tdr.FileReader,
    "shard_tar_reader": tdr.ShardTarReader,
    "shard_zip_reader": tdr.ShardZipReader,
}
ONE_URL: dict[str, Callable[[Any], object]] = {
    "RemoteFiles": tdr.RemoteFiles,
    "RemoteImageFolder": tdr.RemoteImageFolder,
    "ShardedDataset": tdr.ShardedDataset,
    "index_shards": tdr.index_shards,
    "shard_dataset": lambda source: tdr.shard_dataset(source, "memory://never/{shard}.tar"),
    "pull": lambda source: tdr.pull(source, "/nonexistent"),
    "push": lambda source: tdr.push("/nonexistent", source),
}
TEXTS = ["/data/x/", b"/data/x/", bytearray(b"/data/x/"), Path("/data/x")]


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: type(text).__name__)
@pytest.mark.parametrize("name", URL_PIPES)
def test_a_text_where_a_pipe_of_urls_belongs_is_refused_with_the_right_spelling(name: str, text: Any) -> None:
    right = re.escape(f"IterableWrapper(['/data/x{'' if isinstance(text, Path) else '/'}']).{name}(")
    wrapped = IterableWrapper(text)
    for source in [text, wrapped]:
        with pytest.raises(UrlError, match=right):
            URL_PIPES[name](source)


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: type(text).__name__)
@pytest.mark.parametrize("stream", [tdr.stream_shards, tdr.stream_files])
def test_several_urls_are_no_characters_of_a_text(stream: Callable[[Any], Any], text: Any) -> None:
    right = re.escape(f"{stream.__name__}('/data/x{'' if isinstance(text, Path) else '/'}')")
    with pytest.raises(UrlError, match=right):
        stream(IterableWrapper(text))


def test_a_path_can_be_escaped() -> None:
    assert tdr.escape_url(Path("/data/[raw]")) == "/data/[[]raw]" == tdr.escape_url("/data/[raw]")
    wrong: list[Any] = [b"/data", ["/data"], None]
    for url in wrong:
        with pytest.raises(UrlError, match="escape_url: expected one URL or path"):
            tdr.escape_url(url)


@pytest.mark.parametrize("sources", [["a/", "b/"], ("a/",), [Path("a")], b"a/"], ids=repr)
@pytest.mark.parametrize("name", ONE_URL)
def test_several_urls_or_bytes_where_one_url_belongs_are_refused(name: str, sources: Any) -> None:
    with pytest.raises(UrlError, match=f"{name}.*: expected one URL or path"):
        ONE_URL[name](sources)


@pytest.mark.parametrize("stream", [tdr.stream_shards, tdr.stream_files])
def test_bytes_and_numbers_are_no_urls(stream: Callable[[Any], Any]) -> None:
    for source in (b"/data/x/", ["/data/x/", b"/data/y/"], ["/data/x/", 3], 3):
        with pytest.raises(UrlError, match="expected one URL or path"):
            stream(source)


def test_bytes_in_a_pipe_are_named_with_what_to_write() -> None:
    wrong: Any = b"/data/x/"
    for pipe in (tdr.ListRemote, tdr.AsyncPrefetch):
        with pytest.raises(UrlError, match=r"expected one URL or path.*'/data/x/' \(bytes\)"):
            list(pipe(IterableWrapper([wrong])))


def test_paths_are_urls(tmp_path: Path) -> None:
    samples = write_small_shards(f"file://{tmp_path}", num_shards=2, samples_per_shard=3)
    shards = [tmp_path / "000000.tar", tmp_path / "000001.tar"]
    listed = list(IterableWrapper([tmp_path]).list_remote(pattern="*.tar"))
    assert listed == [f"file://{shard}" for shard in shards]
    for source in (tmp_path, [tmp_path], shards):
        assert list(tdr.stream_shards(source, seed=None)) == samples
    for pipe in (IterableWrapper(shards), IterableWrapper(shards).async_prefetch()):
        found = list(pipe.shard_tar_reader())
        assert [sample["txt"] for sample in found] == [sample["txt"] for sample in samples]
        assert {type(sample["__url__"]) for sample in found} == {str}


def test_other_iterables_are_sources_still() -> None:
    urls = ["memory://a/1", "memory://a/2"]
    for source in (IterableWrapper(urls), IterableWrapper(tuple(urls)), IterableWrapper(iter(urls), deepcopy=False)):
        assert list(tdr.ShardingFilterRank(source, world=tdr.World(0, 1))) == urls
