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

TEXTS = ["/data/x/", b"/data/x/", bytearray(b"/data/x/"), Path("/data/x")]


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
        assert list(tdr.pipes.ShardingFilterRank(source, world=tdr.World(0, 1))) == urls
