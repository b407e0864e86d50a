"""Selected samples of shards: read exactly once, resumed anywhere, and never others than were selected."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data.datapipes.iter import IterableWrapper

from tests.servers.s3 import S3Server
from tests.support.requested_bytes import requested_bytes
from tests.support.selections import Chosen, Shards
from tests.support.shard_places import Place, memory_place
from torchdata_remote import (
    AsyncPrefetch,
    FileReader,
    RemoteUrl,
    ShardingFilterRank,
    ShardTarReader,
    ShardWriter,
    ShardZipReader,
    ShuffleShards,
    skip_with_warning,
    stateful_loader,
    stats,
)
from torchdata_remote.core.options import FetchOptions, StorageOptions
from torchdata_remote.core.shard_view import ShardView, view_url
from torchdata_remote.errors import (
    ObjectChangedError,
    RemoteDataError,
    ShardReadError,
    StateError,
    StorageError,
    UrlError,
)
from torchdata_remote.fetch.request_plan import RequestPlan
from torchdata_remote.loaders import Resumable
from torchdata_remote.storage import open_store
from torchdata_remote.testing import Faults, FaultyStore, all_worlds, assert_resumes_everywhere, write_small_shards

NUM_SHARDS, SAMPLES = 3, 6
CHOSEN = st.permutations([(shard, at) for shard in range(NUM_SHARDS) for at in range(SAMPLES)])


def small_shards(place: Place) -> tuple[Shards, list[list[dict[str, Any]]]]:
    """Shards of six samples each, and their samples."""
    samples = write_small_shards(
        place.url, num_shards=NUM_SHARDS, samples_per_shard=SAMPLES, storage_options=place.options
    )
    return Shards(place), [samples[SAMPLES * shard :][:SAMPLES] for shard in range(NUM_SHARDS)]


@pytest.fixture(scope="module")
def memory() -> tuple[Shards, list[list[dict[str, Any]]]]:
    return small_shards(memory_place())


def without_url(samples: Any) -> list[dict[str, Any]]:
    return [{name: data for name, data in sample.items() if name != "__url__"} for sample in samples]


def test_samples_are_read_from_every_store(place: Place) -> None:
    """In the order of the view, with the URL of its first shard."""
    shards, samples = small_shards(place)
    chosen = [(2, 0), (2, 1), (0, 5), (1, 3), (0, 0)]
    pipe = ShardTarReader(IterableWrapper([shards.select(chosen), shards.urls[1]]), storage_options=place.options)
    got = list(pipe)
    assert without_url(got) == without_url([*(samples[shard][at] for shard, at in chosen), *samples[1]])
    assert {sample["__url__"] for sample in got} == {str(url) for url in shards.urls[:2]}


@settings(max_examples=30)
@given(
    order=CHOSEN,
    sizes=st.lists(st.integers(0, 7), min_size=1, max_size=3),
    whole=st.booleans(),
    interleave=st.integers(1, 3),
    part_blocks=st.integers(1, 30),
    num_streams=st.integers(1, 2),
)
def test_a_chain_of_selections_resumes_everywhere(
    memory: tuple[Shards, Any],
    order: list[tuple[int, int]],
    sizes: list[int],
    whole: bool,
    interleave: int,
    part_blocks: int,
    num_streams: int,
) -> None:
    """Also interleaved, beside whole shards, split by samples, and stopped within a window."""
    shards, _ = memory
    if min(sum(sizes), len(order)) + SAMPLES * whole < num_streams:
        return
    unused = iter(order)
    listed = [RemoteUrl(url, url.size, num_samples=SAMPLES) for url in shards.urls[:whole]]
    listed += [shards.select(list(islice(unused, size))) for size in sizes]

    def chain() -> Any:
        prefetch = AsyncPrefetch(
            ShardingFilterRank(IterableWrapper(listed)), part_bytes=512 * part_blocks, interleave=interleave
        )
        return ShardTarReader(prefetch, interleave=interleave)

    assert_resumes_everywhere(chain, num_streams=num_streams)


@settings(max_examples=30)
@given(order=CHOSEN, cut=st.integers(1, 18), ranks=st.integers(1, 4), workers=st.integers(1, 3))
def test_each_selected_sample_reaches_exactly_one_slot(
    memory: tuple[Shards, Any], order: Chosen, cut: int, ranks: int, workers: int
) -> None:
    """Two views, split by samples over more slots than views."""
    shards, samples = memory
    urls = [shards.select(order[:cut]), shards.select(order[cut:])]
    got: list[str] = []
    for world in all_worlds(ranks, workers):
        share = ShardingFilterRank(ShuffleShards(IterableWrapper(urls), seed=1), world=world)
        got += [sample["__key__"] for sample in ShardTarReader(share)]
    assert sorted(got) == sorted(samples[shard][at]["__key__"] for shard, at in order)


def test_a_selection_of_nothing_has_no_samples(memory: tuple[Shards, Any]) -> None:
    """It is no error, unlike an archive without samples."""
    shards, _ = memory
    urls = [shards.select([]), shards.select([(0, 1)])]
    assert [sample["__key__"] for sample in ShardTarReader(IterableWrapper(urls))] == ["1/000001"]


@pytest.mark.system
def test_a_loader_with_workers_resumes_in_a_selection(tmp_path: Path) -> None:
    """Two worker processes, stopped after a batch, then the rest."""
    shards, samples = small_shards(Place(f"{tmp_path}/"))
    chosen = shards.all()[::2]

    def loader() -> Any:
        urls = IterableWrapper([shards.select(chosen[:5]), shards.select(chosen[5:])])
        return stateful_loader(ShardTarReader(ShardingFilterRank(urls)), batch_size=2, num_workers=2, collate_fn=list)

    first = loader()
    batches = iter(first)
    head = [next(batches)]
    state = first.state_dict()
    del batches
    rest = loader()
    rest.load_state_dict(state)
    got = [sample["__key__"] for batch in [*head, *rest] for sample in batch]
    assert sorted(got) == sorted(samples[shard][at]["__key__"] for shard, at in chosen)


_READS_FOR_EVER = """
import itertools, json, sys
from torchdata_remote import ShardTarReader
from torchdata_remote.core.urls import RemoteUrl
from torchdata_remote.loaders import Resumable
from torchdata_remote.pipes import ShardingFilterRank
from torchdata_remote.pipes.base.typed import IterableWrapper

urls = [RemoteUrl(*known) for known in json.loads(sys.stdin.readline())]
reader = Resumable(ShardTarReader(ShardingFilterRank(IterableWrapper(urls))))
for sample in reader:
    print(json.dumps([sample["__key__"], reader.state_dict()]), flush=True)
    sys.stdin.readline()
"""


@pytest.mark.system
def test_a_killed_process_continues_from_its_last_state(tmp_path: Path) -> None:
    """In the middle of a selection; nothing is read twice or left out."""
    shards, samples = small_shards(Place(f"{tmp_path}/"))
    chosen = [*shards.all()[::2], *shards.all()[1::4]]
    urls = [shards.select(chosen[:8]), shards.select(chosen[8:])]
    listed = [[str(url), url.size, url.etag, None, url.num_samples] for url in urls]
    with subprocess.Popen(
        [sys.executable, "-c", _READS_FOR_EVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(listed) + "\n")
        got = []
        for _ in range(5):
            process.stdin.write("\n")
            process.stdin.flush()
            key, state = json.loads(process.stdout.readline())
            got.append(key)
        process.kill()
    rest = Resumable(ShardTarReader(ShardingFilterRank(IterableWrapper(urls))))
    rest.load_state_dict(state)
    got += [sample["__key__"] for sample in rest]
    assert got == [samples[shard][at]["__key__"] for shard, at in chosen]


def shifted(view: ShardView, blocks: int) -> RemoteUrl:
    """As an index of another version of the shard would give it."""
    return view_url(view._replace(starts=view.starts + 512 * blocks, stops=view.stops + 512 * blocks))


def two_members(num_samples: int = 6) -> Shards:
    """One shard, whose samples have two members of a block and its header each."""
    place = memory_place()
    with ShardWriter(place.template()) as writer:
        for at in range(num_samples):
            writer.write({"__key__": f"{at:04d}", "a": b"x", "b": b"y"})
    return Shards(place)


@pytest.mark.parametrize(
    ("chosen", "blocks", "what"),
    [
        ([0, 1, 2], 2, "selected sample 0, from byte 1,024 of .* has members of several samples"),
        ([1], 2, "selected sample 0, from byte 3,072 of .* has members of several samples"),
        ([1, 3], 2, "selected sample 0, from byte 3,072 of .* has members of several samples"),
        ([1, 3], 1, r"at or behind byte 2,560 of memory://\S*/000000\.tar"),
    ],
)
def test_an_index_of_another_version_is_an_error(chosen: list[int], blocks: int, what: str) -> None:
    """Where samples do not begin where the selection has them; names the shard, its byte, and what to do."""
    shards = two_members()
    url = shifted(shards.view([(0, at) for at in chosen]), blocks)
    with pytest.raises(ShardReadError, match=rf"^{re.escape(str(shards.urls[0]))}.*{what}.*manifest --overwrite"):
        list(ShardTarReader(IterableWrapper([url])))
    reader = ShardTarReader(IterableWrapper([url, shards.urls[0]]), on_bad_shard=skip_with_warning)
    with pytest.warns(RuntimeWarning, match="select again"):
        got = list(reader)
    assert len(got) >= 6
    assert list(reader.skipped.shards) == [shards.urls[0]]


def test_selected_samples_that_are_one_sample_are_an_error() -> None:
    """Two ranges that have one key, as an index that splits samples gives them; also at the end of a view."""
    shards = two_members()
    whole = shards.view([(0, 0), (0, 1), (0, 2)])
    halves = ShardView(
        whole.urls,
        *(np.array(column, np.int64) for column in ([1, 1, 1], [0, 0, 0], [0, 1024, 4096], [1024, 2048, 6144])),
    )
    for view in (halves, halves.samples(0, 2)):
        with pytest.raises(ShardReadError, match=r"sample 1, from byte 1,024 of .* continues the sample before it"):
            list(ShardTarReader(IterableWrapper([view_url(view)])))
    two_ranges = halves._replace(counts=np.array([2, 1]))
    assert [sample["__key__"] for sample in ShardTarReader(IterableWrapper([view_url(two_ranges)]))] == ["0000", "0002"]


def test_members_of_several_shards_are_one_sample() -> None:
    """The ranges of a sample may be of several shards, as a join makes them."""
    places = [memory_place(), memory_place()]
    for place, name in zip(places, "ab", strict=True):
        with ShardWriter(place.template()) as writer:
            for at in range(6):
                writer.write({"__key__": f"{at:04d}", name: b"%d" % at})
    one, other = map(Shards, places)
    rows = [
        (shard, int(shards.offsets[0][at]), int(shards.offsets[0][at + 1]))
        for at in (4, 1)
        for shard, shards in enumerate((one, other))
    ]
    columns = [np.array(column, np.int64) for column in zip(*rows, strict=True)]
    view = ShardView((one.urls[0], other.urls[0]), np.array([2, 2]), *columns)
    got = list(ShardTarReader(IterableWrapper([view_url(view)])))
    assert without_url(got) == [{"__key__": "0004", "a": b"4", "b": b"4"}, {"__key__": "0001", "a": b"1", "b": b"1"}]
    assert_resumes_everywhere(lambda: ShardTarReader(IterableWrapper([view_url(view)])))
    stale = view._replace(
        starts=np.where(view.objects == 1, 0, view.starts), stops=np.where(view.objects == 1, 1024, view.stops)
    )
    what = rf"sample 0, from byte 4,096 of \S* on, has members of several .* begins at byte 0 of {places[1].url}"
    with pytest.raises(ShardReadError, match=what):
        list(ShardTarReader(IterableWrapper([view_url(stale)])))


@pytest.mark.parametrize("reader", [FileReader, ShardZipReader])
def test_readers_of_whole_objects_refuse_selections(memory: tuple[Shards, Any], reader: Callable[..., Any]) -> None:
    """By what they are, and by which pipe reads them."""
    url = memory[0].select([(0, 1), (0, 2), (0, 3)])
    for refused in (url, url.part(0, 2)):
        with pytest.raises(RemoteDataError, match=r"stands for selected samples, and .*shard_tar_reader\(\)"):
            list(reader(IterableWrapper([refused])))


def test_stores_refuse_selections(memory: tuple[Shards, Any]) -> None:
    """A URL that reaches a store, through a pipe that knows no views, is explained without its code."""
    url = memory[0].select([(0, 1), (0, 2)])
    for refused in (url, url.part(0, 1)):
        with pytest.raises(UrlError, match=r"view\+\.\.\.\+memory://.*stands for samples of a shard"):
            open_store(refused, StorageOptions())


@pytest.mark.parametrize("local", [False, True])
def test_a_state_of_another_selection_is_refused(local: bool, tmp_path: Path) -> None:
    """Of the same shards and the same number of samples."""
    shards, _ = small_shards(Place(f"{tmp_path}/") if local else memory_place())

    def chain(*chosen: tuple[int, int]) -> Resumable:
        urls = IterableWrapper([shards.select(chosen)])
        return Resumable(ShardTarReader(ShardingFilterRank(urls)))

    first = chain((0, 1), (0, 2))
    next(iter(first))
    state = first.state_dict()
    same = chain((0, 1), (0, 2))
    same.load_state_dict(state)
    assert len(list(same)) == 1
    other = chain((0, 1), (0, 3))
    with pytest.raises(StateError, match=r"view\+\.\.\.\+\S*000000\.tar\+view"):
        load_and_read(other, state)


def load_and_read(chain: Resumable, state: Any) -> None:
    chain.load_state_dict(state)
    list(chain)


def large_shards(place: Place, *, num_samples: int, sample_bytes: int) -> Shards:
    data = np.random.default_rng(0).bytes(sample_bytes)
    with ShardWriter(place.template(), max_shard_samples=num_samples, storage_options=place.options) as writer:
        for at in range(num_samples):
            writer.write({"__key__": f"{at:06d}", "bin": data, "cls": b"%d" % at})
    return Shards(place)


@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.5])
def test_s3_sends_little_more_than_was_selected(moto: S3Server, fraction: float) -> None:
    """At most 1.3 times the bytes and 8 MiB, as the requests and the statistics count them; through faults too."""
    place = Place(f"s3://{moto.new_bucket()}/", moto)
    shards = large_shards(place, num_samples=400, sample_bytes=94_000)
    wanted = np.flatnonzero(np.random.default_rng(2).random(400) < fraction)
    url = shards.select([(0, int(at)) for at in wanted])
    assert url.size is not None
    for faults in (Faults(), Faults.storm(0.1)):
        with FaultyStore(moto.endpoint_url, faults, seed=1) as store:
            before = stats().fetch
            storage_options = {**moto.storage_options, "endpoint_url": store.endpoint_url}
            reader = ShardTarReader(IterableWrapper([url]), storage_options=storage_options)
            got = [int(sample["cls"]) for sample in reader]
            after = stats().fetch
            assert got == wanted.tolist()
            if faults == Faults():
                num_bytes = requested_bytes(store, ".tar")
                assert url.size <= num_bytes <= 1.3 * url.size + (8 << 20)
                assert after.num_bytes - before.num_bytes == num_bytes
                assert after.requests - before.requests == len(store.requests)
                plan = RequestPlan(FetchOptions(), StorageOptions(storage_options), lambda url: None)
                assert plan.requests_for(url) == (len(store.requests), num_bytes)
                assert plan.requests_for(url.part(0, 1)).num_bytes == url.size // len(got)
                assert plan.requests_for(shards.select([])) == (0, 0)


def test_a_replaced_object_of_s3_is_an_error(moto: S3Server) -> None:
    """Another etag than that of the selection."""
    place = Place(f"s3://{moto.new_bucket()}/", moto)
    shards, _ = small_shards(place)
    url = shards.select([(1, 0), (0, 3)])
    place.put({"000001.tar": shards.contents[2]})
    with pytest.raises(ObjectChangedError, match=r"000001\.tar"):
        list(ShardTarReader(IterableWrapper([url]), storage_options=place.options))


def test_selections_of_local_files_are_copied_without_what_is_between(tmp_path: Path) -> None:
    """One request for a window, which counts the wanted bytes; a cache does not store them."""
    shards = large_shards(Place(f"{tmp_path}/d/"), num_samples=50, sample_bytes=3_000)
    url = shards.select([(0, at) for at in range(0, 50, 2)])
    plan = RequestPlan(FetchOptions(), StorageOptions(), lambda url: None)
    assert plan.requests_for(url) == (1, url.size)
    for _ in range(2):
        before = stats().fetch
        prefetch = AsyncPrefetch(IterableWrapper([url]), cache_dir=str(tmp_path / "cache"), cache_bytes=1 << 20)
        assert [int(sample["cls"]) for sample in ShardTarReader(prefetch)] == list(range(0, 50, 2))
        after = stats().fetch
        assert (after.requests - before.requests, after.num_bytes - before.num_bytes) == (1, url.size)


@pytest.mark.parametrize("change", ["replaced", "shortened", "removed"])
def test_a_changed_local_file_is_an_error(tmp_path: Path, change: str) -> None:
    """A file that is not the one that samples were selected from."""
    shards, _ = small_shards(Place(f"{tmp_path}/"))
    path = tmp_path / "000001.tar"
    if change == "removed":
        path.unlink()
    else:
        path.write_bytes(shards.contents[1][: None if change == "replaced" else 2048])
    url = shards.select([(0, 1), (1, 5)])
    with pytest.raises(StorageError, match=r"000001\.tar"):
        list(ShardTarReader(IterableWrapper([url])))
