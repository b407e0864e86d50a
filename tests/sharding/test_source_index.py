"""The index of a source's archives, as it is saved for a resumed job."""

from __future__ import annotations

import io
import logging
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fetch.test_sample_table import MEMBER
from tests.support.parsing_threads import fail_literal_eval
from tests.support.shard_places import memory_place
from torchdata_remote.core.options import StorageOptions
from torchdata_remote.core.urls import RemoteUrl
from torchdata_remote.fetch.sample_table import SampleTable
from torchdata_remote.sharding.source_index import dump_index, load_index, read_index
from torchdata_remote.writing.shard_folder import ShardFolder
from torchdata_remote.writing.template import ShardTemplate

ARCHIVES = [RemoteUrl(f"https://host/{number}.tar?signature=secret", 7, f"etag{number}") for number in range(3)]
SCRATCH = "s3://bucket/set/_unfinished-"
OBJECTS = st.one_of(st.sampled_from(ARCHIVES), st.sampled_from([RemoteUrl(f"{SCRATCH}unpacked-{n}") for n in (0, 1)]))
SAMPLES = st.lists(st.lists(MEMBER, max_size=3), max_size=4)


def table_of(objects: list[tuple[RemoteUrl, list[Any]]]) -> SampleTable:
    table = SampleTable()
    for url, samples in objects:
        table.add_object(url)
        for members in samples:
            table.start_sample()
            for member in members:
                table.add_member(*member)
    return table


def contents(table: SampleTable) -> Any:
    columns = {name: column.tolist() for name, column in table.columns().items()}
    return columns, [(str(url), url.size, url.etag) for url in table.urls]


TABLES = st.lists(st.tuples(OBJECTS, SAMPLES), max_size=5).map(table_of)
SMALL = table_of([(ARCHIVES[1], [[("a.jpg", 512, 3), ("a.cls", 2048, 1)]]), (ARCHIVES[0], [[("b.jpg", 9, 9)]])])


@given(TABLES)
def test_a_saved_index_loads_with_the_archives_of_the_present_listing(table: SampleTable) -> None:
    """The same table, whose objects are those that were listed now, with their sizes and etags."""
    assert contents(load_index(dump_index(table, ARCHIVES, SCRATCH), ARCHIVES, SCRATCH)) == contents(table)


def test_an_index_loads_while_other_threads_parse(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPython's ``literal_eval`` fails now and then beside other threads: an intact index would be made again."""
    data = dump_index(SMALL, ARCHIVES, SCRATCH)
    fail_literal_eval(monkeypatch)
    assert contents(load_index(data, ARCHIVES, SCRATCH)) == contents(SMALL)


@given(at=st.integers(0), how=st.sampled_from(["flip", "cut", "longer"]), bit=st.integers(0, 7))
def test_any_damage_of_a_saved_index_is_an_error(at: int, how: str, bit: int) -> None:
    """A flipped bit, a lost end, and surplus bytes."""
    data = bytearray(dump_index(SMALL, ARCHIVES, SCRATCH))
    at %= len(data)
    if how == "flip":
        data[at] ^= 1 << bit
    elif how == "cut":
        del data[at:]
    else:
        data += b"\0"
    with pytest.raises(ValueError, match=r"Error: "):
        load_index(bytes(data), ARCHIVES, SCRATCH)


def test_an_index_for_other_archives_is_an_error() -> None:
    """Fewer than it names."""
    with pytest.raises(ValueError, match="IndexError"):
        load_index(dump_index(SMALL, ARCHIVES, SCRATCH), ARCHIVES[:1], SCRATCH)


def test_a_saved_index_is_compact_and_holds_no_url() -> None:
    """At most 16 bytes for a sample of one member; a signature in the URL of an archive is not saved."""
    samples = [[(f"train/n{n % 100:08d}/{n * 7919 % 1_000_003:07d}.JPEG", n * 94_208 + 512, 93_000 + n % 999)]
               for n in range(20_000)]  # fmt: skip
    data = dump_index(table_of([(ARCHIVES[2], samples)]), ARCHIVES, SCRATCH)
    assert len(data) < 16 * len(samples)
    columns = np.load(io.BytesIO(zlib.decompress(data[data.index(b"\n") + 17 :])))
    assert all(b"secret" not in column.tobytes() for column in columns.values())


def test_a_damaged_index_is_logged_and_counts_as_missing(caplog: pytest.LogCaptureFixture) -> None:
    """So that the source is indexed again; the log names the object."""
    place = memory_place()
    folder = ShardFolder(ShardTemplate(place.template()), StorageOptions())
    assert read_index(folder, "_unfinished-index-1", ARCHIVES) is None
    place.put({"_unfinished-index-1": dump_index(SMALL, ARCHIVES, f"{place.url}_unfinished-")})
    found = read_index(folder, "_unfinished-index-1", ARCHIVES)
    assert found is not None
    assert contents(found) == contents(SMALL)
    place.put({"_unfinished-index-1": b"torn"})
    with caplog.at_level(logging.WARNING, "torchdata_remote"):
        assert read_index(folder, "_unfinished-index-1", ARCHIVES) is None
    assert f"{place.url}_unfinished-index-1 is damaged" in caplog.text
