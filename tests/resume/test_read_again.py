"""What a resumed pass reads again is bounded: consumed bytes, files and samples are not requested or made once more."""

from __future__ import annotations

import io
import json
import tarfile
import uuid
from collections.abc import Iterator, Sequence
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data.datapipes.iter import IterableWrapper

import torchdata_remote as tdr
from tests.servers.files_over_http import files_over_http
from tests.support.counted_items import Counted
from torchdata_remote import RemoteUrl, Resumable
from torchdata_remote.testing import FaultyStore

LONG = "very-long-é/" * 12


class Served:
    """Files that are requested by one reader after another, each under a query of its own."""

    def __init__(self, folder: Path, store: FaultyStore) -> None:
        self.folder, self.store = folder, store

    def urls(self, contents: Sequence[bytes], *, sizes: bool = True) -> list[list[str]]:
        """Store the contents, and return their URLs for two readers."""
        name = uuid.uuid4().hex
        (self.folder / name).mkdir()
        found = []
        for reader in "12":
            urls: list[str] = []
            for number, data in enumerate(contents):
                (self.folder / name / f"{number}.bin").write_bytes(data)
                url = f"{self.store.endpoint_url}/{name}/{number}.bin?reader={reader}{name}"
                urls.append(RemoteUrl(url, len(data) if sizes else None))
            found.append(urls)
        return found

    def ranges(self, url: str) -> list[tuple[int, int]]:
        """First byte and last one of the GETs of a URL."""
        path, query = url.removeprefix(self.store.endpoint_url).split("?")
        seen = [one for one in self.store.requests if (one.path, one.query, one.method) == (path, query, "GET")]
        pairs = [(one.range or "bytes=0-").removeprefix("bytes=").split("-") for one in seen]
        return [(int(first), int(last or 1 << 40)) for first, last in pairs]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    with files_over_http(folder) as address, FaultyStore(address) as store:
        yield Served(folder, store)


def stopped_and_resumed(make: Any, urls: list[list[str]], stop: int) -> tuple[list[Any], list[Any]]:
    first, second = (Resumable(make(one)) for one in urls)
    items = iter(first)
    head = list(islice(items, stop))
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    del items
    return head, list(second)


def archive_of(shard: int, sizes: Sequence[int], tar_format: int | None) -> tuple[bytes, list[int]]:
    """An archive of samples with two members, and where each sample begins, with the headers of long names."""
    data = io.BytesIO()
    with tarfile.open(
        fileobj=data, mode="w", format=tarfile.PAX_FORMAT if tar_format is None else tar_format
    ) as archive:
        for at, size in enumerate(sizes):
            for name in ("cls", "jpg"):
                member = tarfile.TarInfo(f"{'' if tar_format is None else LONG}{shard}-{at}.{name}")
                member.size = size
                archive.addfile(member, io.BytesIO(bytes([at]) * size))
    with tarfile.open(fileobj=io.BytesIO(data.getvalue())) as archive:
        begins = [member.offset for member in archive if member.name.endswith(".cls")]
    return data.getvalue(), begins


@settings(max_examples=15)
@given(
    sizes=st.lists(st.lists(st.integers(0, 2000), min_size=1, max_size=5), min_size=1, max_size=3),
    tar_format=st.sampled_from([None, tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]),
    interleave=st.integers(1, 3),
    stop=st.integers(0, 15),
    listed=st.booleans(),
)
def test_no_byte_of_a_tar_before_the_next_sample_is_requested_again(
    served: Served, sizes: list[list[int]], tar_format: int | None, interleave: int, stop: int, listed: bool
) -> None:
    """An open shard is read from its next sample on, extended headers included; one that has ended not at all."""
    archives = [archive_of(shard, of_samples, tar_format) for shard, of_samples in enumerate(sizes)]
    urls = served.urls([data for data, _ in archives], sizes=listed)

    def make(urls: list[str]) -> Any:
        streams = IterableWrapper(urls).async_prefetch(part_bytes=700, max_buffer_bytes=2000)
        return (
            streams.shard_tar_reader(interleave=interleave).map(itemgetter("__key__")).parallel_map(str, num_threads=0)
        )

    head, rest = stopped_and_resumed(make, urls, stop)
    found = [tuple(map(int, key.rpartition("/")[2].split("-"))) for key in [*head, *rest]]
    assert [*head, *rest] == list(make(urls[0]))
    assert sorted(found) == [(shard, at) for shard, of_samples in enumerate(sizes) for at in range(len(of_samples))]
    for shard, (_, begins) in enumerate(archives):
        asked = [first for first, _ in served.ranges(urls[1][shard])]
        left = [at for number, at in found[len(head) :] if number == shard]
        if left:
            assert min(asked) == (begins[left[0]] if left[0] else 0)
            assert len(asked) == len(set(asked))
        else:
            assert asked == []


def after(make: Any, num_items: int) -> tuple[list[Any], list[Any], list[Any]]:
    """Stop a chain: return what it took, what a resumed one takes for its next item, and that item."""
    before, again = Counted(), Counted()
    first, second = Resumable(make(before)), Resumable(make(again))
    list(islice(first, num_items))
    second.load_state_dict(first.state_dict())
    following = list(islice(second, 1))
    return before.taken, again.taken, following


def items(counted: Counted, values: Any) -> Any:
    return IterableWrapper(list(values)).sharding_filter_rank().map(counted)


ONCE: dict[str, tuple[Any, int, int]] = {  # items handed out and taken
    "flat_map": (lambda numbers: numbers.flat_map(lambda one: [one] * 3), 11, 4),
    "skip": (lambda numbers: numbers.skip(4), 2, 6),
    "take": (lambda numbers: numbers.take(4), 3, 3),
    "mix": (lambda numbers: tdr.mix({"a": (numbers, 1)}, stop="all_exhausted"), 5, 5),
    "take to its end": (lambda numbers: numbers.take(4), 4, 4),
}


@pytest.mark.parametrize("name", ONCE)
def test_a_resumed_pipe_that_counts_reads_nothing_before_its_next_item(name: str) -> None:
    make, num_items, num_taken = ONCE[name]
    taken, again, following = after(lambda counted: make(items(counted, range(9))), num_items)
    assert (len(taken), again) == (num_taken, following)


def test_a_resumed_bucket_reads_at_most_max_wait_items_again() -> None:
    lengths = list(enumerate([9, *[1, 2] * 30]))
    taken, again, _ = after(lambda counted: items(counted, lengths).bucket(4, length=itemgetter(1), max_wait=10), 6)
    assert 0 <= len(taken) - again[0][0] <= 10


@pytest.mark.parametrize(("options", "most"), [({}, 1), ({"split": False, "max_wait": 8}, 8)])
def test_a_resumed_pack_reads_one_document_again_or_those_that_wait(options: Any, most: int) -> None:
    texts = [[number] * 5 for number in range(40)]
    taken, again, _ = after(lambda counted: items(counted, texts).pack(7, **options), 12)
    assert 0 < len(taken) - again[0][0] <= most


@given(num_samples=st.integers(0, 60), buffer_size=st.integers(1, 40), num_passed=st.integers(0, 60))
def test_a_resumed_shuffle_reads_at_most_two_buffers_again(num_samples: int, buffer_size: int, num_passed: int) -> None:
    taken, again, following = after(
        lambda counted: items(counted, range(num_samples)).shuffle_samples(buffer_size=buffer_size), num_passed
    )
    assert len(taken) <= num_passed + buffer_size
    assert len(again) <= 2 * buffer_size + 1
    assert bool(following) == (num_passed < num_samples)
