from __future__ import annotations

from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from torch.utils.data.datapipes.iter import IterableWrapper

from tests.servers.files_over_http import files_over_http
from tests.support.tables import FORMATS, file_bytes, numbered, put_table
from torchdata_remote import RemoteUrl, World
from torchdata_remote.core.urls import split_sample_range
from torchdata_remote.errors import ObjectNotFoundError, ShardReadError
from torchdata_remote.testing import FaultyStore


def ranges(pipe: Any) -> list[tuple[int, int] | None]:
    return [split_sample_range(url)[1] for url in pipe]


@pytest.mark.parametrize("form", FORMATS)
def test_each_row_group_is_a_part_with_its_rows(memory_folder: str, form: str) -> None:
    """In the order of files and rows, with size and etag of the file."""
    urls = [put_table(f"{memory_folder}/{at}", numbered(count), form, rows=10) for at, count in enumerate([25, 10, 0])]
    groups = list(IterableWrapper(urls).list_row_groups())
    assert ranges(groups) == [(0, 10), (10, 20), (20, 25), None]
    assert [group.num_samples for group in groups] == [10, 10, 5, 10]
    assert groups[3] == urls[1]
    listed = list(IterableWrapper(urls[:1]).list_remote())
    assert all((group.size, group.etag) == (listed[0].size, listed[0].etag) for group in groups[:3])


def test_row_groups_of_a_part_are_its_own(memory_folder: str) -> None:
    """A split before the listing holds."""
    url = RemoteUrl(put_table(f"{memory_folder}/t.parquet", numbered(30), rows=10)).part(5, 15)
    assert ranges(IterableWrapper([url]).list_row_groups()) == [(5, 10), (10, 15)]


def test_fewer_row_groups_than_readers_are_split_by_rows(memory_folder: str) -> None:
    url = put_table(f"{memory_folder}/t.parquet", numbered(20), rows=10)
    shares = [
        ranges(IterableWrapper([url]).list_row_groups().sharding_filter_rank(world=World(rank, 4))) for rank in range(4)
    ]
    assert shares == [[(0, 5)], [(5, 10)], [(10, 15)], [(15, 20)]]


def test_excluded_row_groups_are_not_listed(memory_folder: str) -> None:
    """By a condition on a number and a text; a condition that excludes none lists all."""
    url = put_table(f"{memory_folder}/t.parquet", numbered(100), rows=10)
    pipe = IterableWrapper([url])
    assert ranges(pipe.list_row_groups(filter=pc.field("n").isin([5, 95]))) == [(0, 10), (90, 100)]
    both = [("n", ">", 75), ("text", ">=", "row 9")]
    assert ranges(pipe.list_row_groups(filter=both)) == [(90, 100)]
    assert len(ranges(pipe.list_row_groups(filter=pc.field("vector").is_valid()))) == 10


def test_a_long_footer_takes_a_second_request(tmp_path: Path) -> None:
    """Of a file whose footer is longer than 64 KiB, the rest of the footer is read, and nothing else."""
    table = pa.table({f"column {i}": [i] * 40 for i in range(60)})
    data = file_bytes(table, rows=1)
    assert int.from_bytes(data[-8:-4], "little") > 64 << 10
    (tmp_path / "t.parquet").write_bytes(data)
    with files_over_http(tmp_path) as server, FaultyStore(server) as store:
        assert len(list(IterableWrapper([f"{store.endpoint_url}/t.parquet"]).list_row_groups())) == 40
        assert [request.method for request in store.requests] == ["HEAD", "GET", "GET"]


def test_an_error_follows_the_files_before_it(memory_folder: str) -> None:
    """Files are read ahead, and errors are raised in their place."""
    good = put_table(f"{memory_folder}/t.parquet", numbered(10))
    pipe = iter(IterableWrapper([good, f"{memory_folder}/missing.parquet"]).list_row_groups())
    assert next(pipe) == good
    with pytest.raises(ObjectNotFoundError):
        next(pipe)


def test_what_is_no_table_is_named(memory_folder: str) -> None:
    fsspec.filesystem("memory").pipe(f"{memory_folder}/0.tar", b"no table")
    with pytest.raises(ShardReadError, match=r"0\.tar is neither a Parquet nor an Arrow file.*list_remote\(pattern="):
        list(IterableWrapper([f"{memory_folder}/0.tar"]).list_row_groups())


def test_pyarrow_is_asked_for_by_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchdata_remote.formats.tables.library.find_spec", lambda name: None)
    for name in ("list_row_groups", "table_reader"):
        with pytest.raises(ImportError, match=rf"{name} needs pyarrow: pip install 'torchdata_remote\[tables\]'"):
            getattr(IterableWrapper(["s3://b/x.parquet"]), name)()
