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
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from torch.utils.data.datapipes.iter import IterableWrapper

import torchdata_remote as tdr
from tests.servers.s3 import S3Server
from torchdata_remote.cli import main
from torchdata_remote.errors import EmptyListingError, ShardWriteError, UrlError
from torchdata_remote.fetch.listing.globs import glob_start
from torchdata_remote.fetch.listing.patterns import (
    _num_names,
    escape_url,
    expand_braces,
    has_braces,
    literal_url,
    path_below,
)
from torchdata_remote.fetch.listing.shard_set import find_shards
from torchdata_remote.inspection.verification import verify_shards
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
@settings(max_examples=60)
@given(paths=st.sets(PATHS, min_size=1, max_size=6).map(without_clashes))
@example(paths={"a*/b", "ab/b", "a[*]/b", "a{b,c}/b", "a?/b", "a[b]/b"})
def test_an_escaped_folder_or_file_is_listed_and_read_exactly_once(store: str, paths: set[str]) -> None:
    """With any name, and beside objects that the name would match as a pattern."""
    with written(store, paths) as root:
        folders = {path.partition("/")[0] + "/" for path in paths if "/" in path}
        for name in folders | paths:
            inside = sorted(path for path in paths if path == name or (name.endswith("/") and path.startswith(name)))
            listed = list(IterableWrapper([escape_url(root + name)]).list_remote())
            assert listed == [root + path for path in inside]
            assert list(IterableWrapper(listed).list_remote()) == listed  # which need no escaping
            below = path_below(escape_url(root + name))
            assert [below(url) for url in listed] == [
                path[len(name) :] if name.endswith("/") else path.rpartition("/")[2] for path in inside
            ]
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


@given(name=st.text("ab*?[]{},!/0", max_size=12))
@example("[*]")
@example("[[]")
@example("]{")
def test_escaping_is_undone_and_leaves_no_pattern(name: str) -> None:
    """Escaping and unescaping returns the name."""
    for url in (f"s3://b/{name}", f"/data/{name}", f"https://host/{name}"):
        escaped = escape_url(url)
        assert literal_url(escaped) == url
        assert list(expand_braces(escaped)) == [escaped]
        assert url.startswith("https") or glob_start(escaped) is None


@given(names=st.lists(st.text("ab*?[]{}!0", min_size=1, max_size=5), min_size=2, max_size=3))
def test_escaped_names_are_choices_of_a_brace_list(names: list[str]) -> None:
    """Braces within a name neither open nor close one."""
    source = "s3://b/{" + ",".join(map(escape_url, names)) + "}/x.tar"
    assert list(map(literal_url, expand_braces(source))) == [f"s3://b/{name}/x.tar" for name in names]


ODD = "odd [1] {a,b} *?"


@pytest.mark.parametrize("store", ["memory", "local"])
def test_a_folder_with_an_odd_name_is_a_source_everywhere(
    store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """For shards, manifests, indexes and commands, beside a folder that the name matches as a pattern."""
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
    assert list(tdr.stream_shards(source + "{000000..000001}.tar", seed=None)) == expected[:4]
    manifest = IterableWrapper([source + "index.json"]).list_remote()
    assert [url.num_samples for url in manifest] == [2, 2, 1]
    for at in (source, folder, source + "index.json", folder + "/index.json"):
        assert items(tdr.ShardedDataset(at)) == expected
        assert verify_shards(at).faults == []
    assert len(find_shards(source, *options()).shards) == 3
    for at in (source, folder):
        assert [shard.num_samples for shard in tdr.index_shards(at, overwrite=True)] == [2, 2, 1]
    index = f"{root}/list.json"
    assert main(["index", source, "-o", index, "--pattern", "*.tar"]) == 0
    assert [url for url, _ in items(tdr.RemoteFiles(source, index=index))] == [
        f"{folder}/{i:06d}.tar" for i in range(3)
    ]
    assert main(["ls", source]) == 0
    assert f"{folder}/000002.tar" in capsys.readouterr().out
    assert main(["inspect", source]) == 0
    to = f"{root}/{{{{new}}}}/{{shard}}.tar"
    (shard,) = tdr.shard_dataset(source, to, seed=None, progress=False)
    assert (shard.url, shard.num_samples) == (f"{root}/{{new}}/0.tar", 5)
    with pytest.raises(ShardWriteError, match="is inside the source"):
        tdr.shard_dataset(source, template.replace("/{shard", "/more/{shard"), progress=False)


def test_keys_of_a_bucket_with_odd_names(moto: S3Server) -> None:
    """Listed by an escaped folder or key, and read."""
    bucket, names = moto.new_bucket(), ["a*/b?.txt", "a*/b[1]{x,y}.txt", "ab/bc.txt", "a[*]/b.txt"]
    for name in names:
        moto.client().put_object(Bucket=bucket, Key=name, Body=name.encode())
    for source, expected in {"a*/": ["a*/b?.txt", "a*/b[1]{x,y}.txt"], **{name: [name] for name in names}}.items():
        url = escape_url(f"s3://{bucket}/{source}")
        pipe = tdr.stream_files(url, seed=None, storage_options=moto.storage_options)
        assert [sample["txt"].decode() for sample in pipe] == expected


def options() -> tuple[tdr.StorageOptions, tdr.RetryPolicy]:
    return tdr.StorageOptions(), tdr.RetryPolicy()


def test_a_name_taken_for_a_pattern_is_explained(tmp_path: Path) -> None:
    """Where nothing is found, the error says how to escape; and says nothing of it where there is nothing to escape."""
    (tmp_path / "what?" / "a").mkdir(parents=True)
    for name in ("what[1]/", "a{b}c/*.tar", "what?/none/*"):
        with pytest.raises(EmptyListingError, match=re.escape(escape_url(f"{tmp_path}/{name}"))):
            list(IterableWrapper([f"{tmp_path}/{name}"]).list_remote())
    for name in ("what", escape_url("what[1]/")):
        with pytest.raises(EmptyListingError) as caught:
            list(IterableWrapper([f"{tmp_path}/{name}"]).list_remote())
        assert "escape_url" not in str(caught.value)


def test_a_folder_of_a_template_has_its_braces_doubled() -> None:
    """As ``str.format`` wants them; others are refused with that advice."""
    with pytest.raises(ShardWriteError, match=re.escape("{{")):
        tdr.ShardWriter("memory://a{b}/{shard}.tar")


@pytest.mark.parametrize(
    ("source", "url", "path"),
    [
        ("s3://b/train", "s3://b/train/cat/1.jpg", "cat/1.jpg"),
        ("s3://b/train/", "s3://b/train/cat/1.jpg", "cat/1.jpg"),
        ("s3://b", "s3://b/1.jpg", "1.jpg"),
        ("s3://b/train/1.jpg", "s3://b/train/1.jpg", "1.jpg"),
        ("s3://b/t*/c{0..9}/", "s3://b/train/c1/1.jpg", "train/c1/1.jpg"),
        ("/data/train", "file:///data/train/cat/1.jpg", "cat/1.jpg"),
        ("memory://a", "memory://a/1.jpg", "1.jpg"),
        ("s3://b/train/", "s3://other/x/1.jpg", "x/1.jpg"),
        ("s3://b/train/", "https://host/x/1.jpg?token=0", "x/1.jpg"),
    ],
)
def test_a_path_below_is_what_the_source_does_not_say(source: str, url: str, path: str) -> None:
    """From the folder on, or from the first folder that has a glob; of an object elsewhere it is the whole path."""
    assert path_below(source)(url) == path


@given(first=st.integers(0, 200), count=st.integers(1, 30), width=st.integers(1, 6))
def test_a_brace_range_counts_from_first_to_last(first: int, count: int, width: int) -> None:
    """Each number once, in order, padded to the written width if the first one is."""
    last = first + count - 1
    padded = [f"s3://b/{i:0{width}d}.tar" for i in range(first, last + 1)]
    assume(len(f"{first:0{width}d}") == len(f"{last:0{width}d}"))
    assert list(expand_braces(f"s3://b/{{{first:0{width}d}..{last:0{width}d}}}.tar")) == padded
    assert list(expand_braces(f"s3://b/{{{first}..{last}}}.tar")) == [f"s3://b/{i}.tar" for i in range(first, last + 1)]


def test_zeros_are_kept_where_the_width_grows() -> None:
    """``{08..10}`` has two digits throughout, ``{8..10}`` has not."""
    assert list(expand_braces("{08..10}")) == ["08", "09", "10"]
    assert list(expand_braces("{8..10}")) == ["8", "9", "10"]
    assert list(expand_braces("{000..1}")) == ["000", "001"]


@pytest.mark.parametrize(
    "braces", ["{0..9999999999}", "{a,b}" * 40, "{00..99}{000..999}{000..999}", "{0..1" + "0" * 3000 + "}"]
)
def test_more_than_ten_million_names_are_refused_at_once(braces: str) -> None:
    """A digit too many would be minutes without a sign: names are counted before they are made."""
    with pytest.raises(UrlError, match="more than 10,000,000 names"):
        next(iter(IterableWrapper([f"memory://b/{braces}.tar"]).list_remote()))


def test_names_up_to_the_limit_are_expanded_one_by_one() -> None:
    """Nested choices are counted like those that are made, and only the names that are taken are made."""
    assert next(expand_braces("{0..9999999}")) == "0"
    assert (
        len(list(expand_braces("{a{0..3},{b,c}{0..1}}{x}{7,8}"))) == _num_names("{a{0..3},{b,c}{0..1}}{x}{7,8}") == 16
    )


def test_comma_lists_and_ranges_multiply() -> None:
    """The first brace varies slowest, an empty choice is a choice."""
    assert list(expand_braces("s3://{a,b}/{x,y}{0..1}")) == [
        f"s3://{bucket}/{letter}{i}" for bucket in "ab" for letter in "xy" for i in (0, 1)
    ]
    assert list(expand_braces("a{,b}")) == ["a", "ab"]


def test_nested_braces_give_each_url_once() -> None:
    """As in a shell: a repeated shard would be trained on twice."""
    assert list(expand_braces("{a,{b,c}}")) == ["a", "b", "c"]
    assert list(expand_braces("{x{0..1},y}")) == ["x0", "x1", "y"]


def test_a_backwards_range_is_refused() -> None:
    """Silently empty would be a dataset without shards; the error shows the range and no credentials."""
    with pytest.raises(UrlError, match=re.escape("{10..09}")) as caught:
        list(expand_braces("https://me:SECRET@host/{10..09}.tar?token=SECRET"))
    assert "SECRET" not in str(caught.value)


@given(st.text("a{}0,.", max_size=12))
def test_has_braces_tells_what_would_be_expanded(url: str) -> None:
    """It is false for exactly the URLs that stand for themselves."""
    try:
        stays = list(expand_braces(url)) == [url]
    except UrlError:
        stays = False
    assert has_braces(url) != stays


def test_a_range_with_a_step_is_refused() -> None:
    """A shell would know it; taken literally it would only be an object that does not exist."""
    with pytest.raises(UrlError, match=re.escape("{0..10..2}")):
        list(expand_braces("s3://b/{0..10..2}.tar"))
