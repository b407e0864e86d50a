"""The table of the files of a map-style dataset."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote.core.urls import RemoteUrl
from torchdata_remote.datasets._file_table import FileTable

PATHS = st.text("abé/.", min_size=1, max_size=8) | st.binary(min_size=1, max_size=8).map(
    lambda name: name.decode("utf-8", "surrogateescape")
)
PREFIXES = st.sampled_from(["s3://b/train/", "s3://other/", ""])
SIZES, ETAGS = st.none() | st.integers(0, 1 << 50), st.none() | st.text("0123456789abcdef-", min_size=1)
FILES = st.lists(
    st.builds(
        lambda prefix, path, ending, size, etag: (RemoteUrl(prefix + path + ending, size, etag), path),
        PREFIXES,
        PATHS,
        st.sampled_from(["", "", "", "?v=1"]),
        SIZES,
        ETAGS,
    ),
    max_size=8,
)


def contents(table: FileTable) -> list[Any]:
    labels = [None] * len(table) if table.labels is None else table.labels.tolist()
    urls = [(str(url), url.size, url.etag) for url in table.urls]
    return list(zip(urls, table.paths, labels, strict=True))


def expected(files: list[tuple[RemoteUrl, str]], labels: list[Any]) -> list[Any]:
    return [((str(url), url.size, url.etag), path, label) for (url, path), label in zip(files, labels, strict=True)]


@given(files=FILES, data=st.data())
def test_a_table_holds_what_was_put_in(files: list[tuple[RemoteUrl, str]], data: st.DataObject) -> None:
    """URLs that end in their paths or not, with labels, restored from a pickle, and some of the files."""
    table = FileTable(files)
    assert contents(table) == expected(files, [None] * len(files))
    labels = np.arange(len(files), dtype=np.int32)[::-1].copy()
    labelled = table.with_labels(labels)
    assert contents(pickle.loads(pickle.dumps(labelled))) == contents(labelled) == expected(files, labels.tolist())
    numbers = data.draw(st.lists(st.integers(0, len(files) - 1), max_size=5) if files else st.just([]))
    assert contents(labelled.chosen(numbers)) == [contents(labelled)[number] for number in numbers]
    limit = data.draw(st.none() | st.integers(0, 9))
    assert contents(labelled.first(limit)) == contents(labelled)[:limit]


def test_urls_are_a_sequence() -> None:
    """By negative index and slice; one that is out of range is an error; they pickle."""
    urls = FileTable((RemoteUrl(f"s3://b/{n}", n, f"e{n}"), str(n)) for n in range(4)).urls
    assert (len(urls), urls[-1], urls[1:3], urls[::-2]) == (4, "s3://b/3", ["s3://b/1", "s3://b/2"], urls[3:0:-2])
    again = pickle.loads(pickle.dumps(urls))
    assert [(str(url), url.size, url.etag) for url in again] == [(f"s3://b/{n}", n, f"e{n}") for n in range(4)]
    with pytest.raises(IndexError):
        urls[4]


def test_a_file_takes_24_bytes_more_than_its_path_and_its_etag() -> None:
    """The folder of all files is stored once."""
    names = [f"n{number:08d}/{number:08d}.JPEG" for number in range(1_000)]
    table = FileTable((RemoteUrl(f"s3://bucket/train/{name}", 94_000, "d41d8cd98f00b204"), name) for name in names)
    characters = sum(len(name) + 16 for name in names)
    assert sum(column.nbytes for column in table._columns.columns.values()) == characters + 24 * len(names)


def test_a_copy_of_a_dataset_shares_its_table() -> None:
    """A table is not changed."""
    table = FileTable([("s3://b/1", "1")])
    assert copy.deepcopy([table])[0] is table
