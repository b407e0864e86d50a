"""Lines of text files: each exactly once, wherever files are cut and passes are stopped."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import uuid
from collections.abc import Callable
from typing import Any

import fsspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import torchdata_remote as tdr
from torchdata_remote.errors import (
    EmptyListingError,
    EmptyShareError,
    RemoteDataError,
    ShardReadError,
)
from torchdata_remote.testing import assert_resumes_everywhere

LINE = st.binary(max_size=12).map(lambda line: line.replace(b"\n", b"").rstrip(b"\r"))
TEXT = st.builds(lambda lines, end: b"\n".join(lines) + end, st.lists(LINE, max_size=9), st.sampled_from([b"", b"\n"]))
JSON = [json.dumps({"number": number, "text": "x" * (7 * number % 11)}).encode() for number in range(20)]


def stored(files: dict[str, bytes]) -> str:
    """Store files in a folder of their own; return its URL."""
    folder = f"lines-{uuid.uuid4().hex}"
    fsspec.filesystem("memory").pipe({f"/{folder}/{name}": data for name, data in files.items()})
    return f"memory://{folder}/"


def lines_in(data: bytes) -> list[bytes]:
    """What a text editor shows as lines; the byte order mark is not part of the first one."""
    lines = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    return [line.removesuffix(b"\r") for line in lines[: -1 if not lines[-1] else None]]


@settings(deadline=None)
@given(texts=st.lists(TEXT, min_size=1, max_size=3), range_bytes=st.integers(1, 40))
def test_each_line_comes_once_in_order_however_files_are_cut(texts: list[bytes], range_bytes: int) -> None:
    url = stored({f"{number}.txt": text for number, text in enumerate(texts)})
    pipe = tdr.stream_lines(url, range_bytes=range_bytes, shuffle=False)
    assert [sample["txt"] for sample in pipe] == [line for text in texts for line in lines_in(text)]


@settings(deadline=None)
@given(text=TEXT, range_bytes=st.integers(1, 20), most=st.integers(1, 3), prefetches=st.booleans())
def test_readers_have_all_lines_together_with_keys_of_their_own(
    text: bytes, range_bytes: int, most: int, prefetches: bool
) -> None:
    url = f"{stored({'a.txt': text})}a.txt"
    urls = tdr.IterableWrapper([url]).list_remote().list_line_ranges(range_bytes=range_bytes).shuffle_shards(seed=1)
    world_size = min(most, len(list(urls)))
    found = []
    for rank in range(world_size):
        share = urls.sharding_filter_rank(world=tdr.World(rank, world_size))
        found += list((share.async_prefetch() if prefetches else share).line_reader(interleave=2))
    assert sorted(sample["txt"] for sample in found) == sorted(lines_in(text))
    assert len({sample["__key__"] for sample in found}) == len(found)
    assert {sample["__url__"] for sample in found} <= {url}


@pytest.mark.parametrize(
    ("name", "compress"), [("a.jsonl", bytes), ("a.jsonl.gz", gzip.compress), ("a.ndjson.bz2", bz2.compress)]
)
def test_lines_resume_anywhere(name: str, compress: Callable[[bytes], bytes]) -> None:
    url = stored({name: compress(b"\n".join([*JSON[:7], b"", *JSON[7:]])), "b.jsonl": JSON[0]})

    def chain() -> Any:
        ranges = tdr.IterableWrapper([url]).list_remote().list_line_ranges(range_bytes=100).shuffle_shards(seed=2)
        return ranges.sharding_filter_rank().line_reader(interleave=2).decode_sample()

    assert sorted(sample["json"]["number"] for sample in chain()) == [0, *range(20)]
    assert_resumes_everywhere(chain, num_streams=2)


def test_rows_of_a_table_are_samples_and_resume_anywhere() -> None:
    file = io.StringIO(newline="")
    writer = csv.writer(file)
    writer.writerows([["name", "remark"], *([f"{number}", f'a "b",\nc\r\n{number}'] for number in range(9))])
    url = stored({"a.csv": file.getvalue().encode("utf-8-sig"), "b.tsv.gz": gzip.compress(b"name\tremark\nx\ty\n")})

    def chain() -> Any:
        return tdr.stream_lines(url, shuffle="shards", seed=1).to_tuple("name", "remark", "__key__")

    assert sorted(row[:2] for row in chain()) == [
        *((f"{number}", f'a "b",\nc\r\n{number}') for number in range(9)),
        ("x", "y"),
    ]
    assert_resumes_everywhere(chain, num_streams=2)


def test_the_member_is_json_or_txt_or_what_is_asked_for() -> None:
    url = stored({"a.jsonl": b'{"n": 1}\n\n', "b.log.txt": b"one\n\n", "README.md": b"no text of the data set"})
    samples = list(tdr.stream_lines(url, shuffle=False).decode_sample())
    assert [{name: sample[name] for name in sample if name[0] != "_"} for sample in samples] == [
        {"json": {"n": 1}},
        {"txt": "one"},
        {"txt": ""},
    ]
    assert [sample["__key__"].partition("/")[2] for sample in samples] == [
        "a.jsonl/000000000000",
        "b.log.txt/000000000000",
        "b.log.txt/000000000004",
    ]
    assert [sample["md"] for sample in tdr.stream_lines(f"{url}README.md", member="md")] == [b"no text of the data set"]


@pytest.mark.parametrize("range_bytes", [10, 1 << 20])
@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_a_line_that_is_too_long_is_an_error_that_says_where(range_bytes: int, name: str) -> None:
    text = b"short\n" + b"x" * 300_000 + b"\nshort\n"
    url = stored({name: gzip.compress(text) if name.endswith("gz") else text})
    pipe = tdr.stream_lines(url, range_bytes=range_bytes, max_line_bytes=1000, shuffle=False)
    with pytest.raises(ShardReadError, match=r"a\.txt.*the line at byte \d+ is longer than max_line_bytes=1,000"):
        list(pipe)


def test_fewer_files_than_readers_are_an_error_unless_they_can_be_cut() -> None:
    plain, packed = stored({"a.txt": b"a\nb\nc\n"}), stored({"a.txt.gz": gzip.compress(b"a\nb\nc\n")})
    world = tdr.World(0, 2)
    with pytest.raises(EmptyShareError, match="1 shard for 2 readers"):
        list(tdr.stream_lines(packed, range_bytes=1, world=world))
    assert len(list(tdr.stream_lines(plain, range_bytes=1, world=world))) == 2
    with pytest.raises(EmptyListingError, match="that are files of text"):
        list(tdr.stream_lines(stored({"a.tar": b""})))


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.txt.gz", gzip.compress(b"a\n" * 1000, mtime=0)[:-20], "a.txt.gz"),
        ("a.csv", b"a,b\n1,2\n3\n", "row 1 has 1 columns, and the first row names 2"),
        ("a.csv", b"a,a\n1,2\n", "a name for each column"),
        ("a.csv", b'a,b\n1,"2\n', "damaged near line"),
        ("a.csv", b"a,b\n1,\xff\n", "damaged near line"),
    ],
)
def test_damaged_files_are_errors_that_a_policy_may_skip(name: str, data: bytes, message: str) -> None:
    url = stored({name: data, "b.txt": b"good\n"})
    with pytest.raises(ShardReadError, match=message):
        list(tdr.stream_lines(url, shuffle=False))
    skipped: list[ShardReadError] = []
    pipe = tdr.stream_lines(url, shuffle=False, on_bad_shard=skipped.append)
    assert list(pipe)[-1]["txt"] == b"good"
    assert len(skipped) == 1


@pytest.mark.parametrize("reader", ["shard_tar_reader", "file_reader", "shard_zip_reader"])
def test_other_readers_refuse_ranges_of_lines(reader: str) -> None:
    ranges = tdr.IterableWrapper([stored({"a.txt": b"a\nb\n"})]).list_remote().list_line_ranges(range_bytes=1)
    with pytest.raises(RemoteDataError, match="stands for lines, which line_reader"):
        list(getattr(ranges.async_prefetch(), reader)())


def test_tables_have_a_short_form() -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    url = stored({"_SUCCESS": b""})
    with fsspec.open(f"{url}a.parquet", "wb") as file:
        pq.write_table(pa.table({"n": range(30), "text": [str(n) for n in range(30)]}), file, row_group_size=4)

    def chain() -> Any:
        return tdr.stream_tables(url, columns={"n": "cls"}, filter=[("n", "<", 25)], seed=3).to_tuple("cls")

    found = [cls for (cls,) in chain()]
    assert sorted(found) == list(range(25)) != found
    assert_resumes_everywhere(chain, num_streams=2)


def test_lines_before_a_fault_are_handed_out_and_its_place_is_right() -> None:
    rows = b"".join(b"%d,x\n" % number for number in range(900))
    files = {
        "a.csv": b"n,t\n" + rows + b"1\n" + rows,
        "b.txt": b"short\n" * 900 + b"y" * 5_000 + b"\nshort\n",
    }
    url = stored(files)
    found: list[ShardReadError] = []
    pipe = tdr.stream_lines(url, shuffle=False, max_line_bytes=1_000, on_bad_shard=found.append)
    assert len(list(pipe)) == 1_800
    assert [str(error).partition(": ")[2].partition(",")[0] for error in found] == [
        "row 900 has 1 columns",
        "the line at byte 5",
    ]
    assert "byte 5,400 is longer" in str(found[1])


def test_long_fields_blank_lines_and_files_of_one_name_are_read() -> None:
    files = {
        "a.csv": b"n,t\r\n1," + b"x" * 200_000 + b"\r\n",
        "a.jsonl": b'{"n": 1}\r\n\r\n{"n": 2}\r\n',
        "a.txt": b"one",
    }
    samples = list(tdr.stream_lines(stored(files), shuffle=False).decode_sample())
    assert len(samples[0]["t"]) == 200_000
    assert [sample["json"] for sample in samples[1:3]] == [{"n": 1}, {"n": 2}]
    assert len({sample["__key__"] for sample in samples}) == 4
