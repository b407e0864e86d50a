"""Patterns in source URLs, and escaped names."""

from __future__ import annotations

import re
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from torch.utils.data.datapipes.iter import IterableWrapper

import torchdata_remote as tdr
from torchdata_remote import escape_url
from torchdata_remote.cli import main
from torchdata_remote.errors import EmptyListingError, ShardWriteError, UrlError
from torchdata_remote.testing import write_small_shards

NAMES = st.text("ab*?[]{},!.-0 ", min_size=1, max_size=6).filter(lambda name: name.strip(". "))
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)


def without_clashes(paths: set[str]) -> set[str]:
    """A file cannot be the folder of another one."""
    return {path for path in paths if not any(other.startswith(path + "/") for other in paths)}


@contextmanager
def written(root: str, paths: set[str]) -> Iterator[str]:
    """Files below a new folder, each with its path as its bytes; hands out the folder's URL, with a slash."""
    if root == "memory":
        folder = f"memory://{uuid.uuid4().hex}/"
        fsspec.filesystem("memory").pipe({folder[8:] + path: path.encode() for path in paths})
        yield folder
        return
    below = Path(tempfile.mkdtemp())
    try:
        for path in paths:
            (below / path).parent.mkdir(parents=True, exist_ok=True)
            (below / path).write_bytes(path.encode())
        yield f"file://{below}/"
    finally:
        shutil.rmtree(below)


@pytest.mark.parametrize("store", ["memory", "local"])
@given(paths=st.sets(PATHS, min_size=1, max_size=6).map(without_clashes))
@example(paths={"a*/b", "ab/b", "a[*]/b", "a{b,c}/b", "a?/b", "a[b]/b"})
def test_an_escaped_folder_or_file_is_listed_and_read_exactly_once(store: str, paths: set[str]) -> None:
    with written(store, paths) as root:
        folders = {path.partition("/")[0] + "/" for path in paths if "/" in path}
        for name in folders | paths:
            inside = sorted(path for path in paths if path == name or (name.endswith("/") and path.startswith(name)))
            listed = list(IterableWrapper([escape_url(root + name)]).list_remote())
            assert listed == [root + path for path in inside]
            assert list(IterableWrapper(listed).list_remote()) == listed  # which need no escaping
            assert [data for _, data in items(tdr.RemoteFiles(escape_url(root + name)))] == [
                path.encode() for path in sorted(inside, key=torchvision_order)
            ]
        for folder in folders:
            inside = sorted(path for path in paths if path.startswith(folder) and path.count("/") == 1)
            if inside:
                listed = list(IterableWrapper([escape_url(root + folder) + "*"]).list_remote())
                assert listed == [root + path for path in inside]


def items(dataset: Any) -> list[Any]:
    return [dataset[number] for number in range(len(dataset))]


def torchvision_order(path: str) -> tuple[str, str, str]:
    folder, _, name = path.rpartition("/")
    return folder.partition("/")[0], folder, name


ODD = "odd [1] {a,b} *?"


@pytest.mark.parametrize("store", ["memory", "local"])
def test_a_folder_with_an_odd_name_is_a_source_everywhere(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = f"memory://{uuid.uuid4().hex}" if store == "memory" else f"file://{tmp_path}"
    decoy = f"{root}/odd 1 a xy"
    write_small_shards(decoy, num_shards=1, samples_per_shard=1)
    folder = f"{root}/{ODD}"
    template = folder.replace("{", "{{").replace("}", "}}") + "/{shard:06d}.tar"
    with tdr.ShardWriter(template, max_shard_samples=2) as writer:
        samples: list[dict[str, Any]] = [{"__key__": str(i), "txt": f"{i}".encode()} for i in range(5)]
        for sample in samples:
            writer.write(sample)
    source = escape_url(folder) + "/"
    expected = [{**sample, "__url__": f"{folder}/{int(sample['__key__']) // 2:06d}.tar"} for sample in samples]
    assert list(tdr.stream_shards(source, seed=None)) == expected
    assert list(tdr.stream_shards(source + "*1.tar", seed=None)) == expected[2:4]
    for at in (source, folder, source + "index.json", folder + "/index.json"):
        assert items(tdr.ShardedDataset(at)) == expected
        assert main(["verify", at]) == 0
        assert [shard.num_samples for shard in tdr.index_shards(folder, overwrite=True)] == [2, 2, 1]
    assert main(["ls", source]) == 0
    assert f"{folder}/000002.tar" in capsys.readouterr().out
    assert main(["inspect", source]) == 0
    to = f"{root}/{{{{new}}}}/{{shard}}.tar"
    (shard,) = tdr.shard_dataset(source, to, seed=None, progress=False)
    assert (shard.url, shard.num_samples) == (f"{root}/{{new}}/0.tar", 5)
    with pytest.raises(ShardWriteError, match="is inside the source"):
        tdr.shard_dataset(source, template.replace("/{shard", "/more/{shard"), progress=False)


def test_a_name_taken_for_a_pattern_is_explained(tmp_path: Path) -> None:
    (tmp_path / "what?" / "a").mkdir(parents=True)
    for name in ("what[1]/", "a{b}c/*.tar", "what?/none/*"):
        with pytest.raises(EmptyListingError, match=r"escaped by tdr.escape_url\(\)"):
            list(IterableWrapper([f"{tmp_path}/{name}"]).list_remote())
    for name in ("what", escape_url("what[1]/")):
        with pytest.raises(EmptyListingError) as caught:
            list(IterableWrapper([f"{tmp_path}/{name}"]).list_remote())
        assert "escape_url" not in str(caught.value)


@pytest.mark.parametrize(
    "braces",
    ["{0..10000000}", "{0..9999999999}", "{0..1" + "0" * 3000 + "}"],
)
def test_more_than_ten_million_names_are_refused_at_once(braces: str) -> None:
    with pytest.raises(UrlError, match="more than 10,000,000 names"):
        next(iter(IterableWrapper([f"memory://b/{braces}.tar"]).list_remote()))


def expanded(pattern: str) -> list[str]:
    """What a source stands for, without a request."""
    nowhere = {"endpoint_url": "http://127.0.0.1:1", "key": "k", "secret": "s"}
    urls = IterableWrapper([f"s3://b/{pattern}"]).list_remote(storage_options=nowhere)
    return [url.removeprefix("s3://b/") for url in urls]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("{8..10}", ["8", "9", "10"]),
        ("{08..10}", ["08", "09", "10"]),
        ("{000..1}", ["000", "001"]),
        ("{98..102}", ["98", "99", "100", "101", "102"]),
        ("{7..7}", ["7"]),
        ("{x,y}{0..1}", ["x0", "x1", "y0", "y1"]),
        ("{a,b}/{0..1}.tar", ["a/0.tar", "a/1.tar", "b/0.tar", "b/1.tar"]),
        ("a{,b}", ["a", "ab"]),
        ("{0..1}{x}", ["0{x}", "1{x}"]),
        ("{x}{0..1}", ["{x}0", "{x}1"]),
    ],
)
def test_braces_stand_for_names_as_in_a_shell(pattern: str, names: list[str]) -> None:
    assert expanded(pattern) == names


@given(names=st.lists(st.text("ab*?[]{}!0", min_size=1, max_size=5), min_size=2, max_size=3))
def test_escaped_names_are_choices_of_a_brace_list(names: list[str]) -> None:
    assert expanded("{" + ",".join(map(escape_url, names)) + "}/x.tar") == [f"{name}/x.tar" for name in names]


@pytest.mark.parametrize("braces", ["{10..09}", "{3..1}", "{0..10..2}", "{a,{b,c}}", "{x{0..1},y}"])
def test_a_range_that_runs_backwards_or_has_a_step_and_braces_within_braces_are_refused(braces: str) -> None:
    with pytest.raises(UrlError, match=re.escape(braces)) as caught:
        list(IterableWrapper([f"https://host/{braces}.tar?token=SECRET"]).list_remote())
    assert "SECRET" not in str(caught.value)
