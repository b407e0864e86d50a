"""Selected samples are read exactly once, others not fetched; a selection that does not fit the shards is an error."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections import Counter
from typing import Any

import fsspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import torchdata_remote as tdr
from torchdata_remote import IterableWrapper, IterDataPipe, RemoteUrl, Resumable, ShardWriter, World
from torchdata_remote.errors import (
    EmptyListingError,
    EmptyShareError,
    MissingKeyError,
    MissingMemberError,
    RemoteDataError,
    ShardReadError,
    StateError,
    UrlError,
)
from torchdata_remote.testing import all_worlds, write_small_shards

FOLDER = "memory://select-small/"
NUM_SHARDS, NUM_SAMPLES = 4, 5
SUBSETS = st.sets(st.integers(0, NUM_SHARDS * NUM_SAMPLES - 1), min_size=1)


@pytest.fixture(scope="module")
def samples() -> dict[str, dict[str, Any]]:
    """Shards in memory; their samples by key."""
    written = write_small_shards(FOLDER, num_shards=NUM_SHARDS, samples_per_shard=NUM_SAMPLES)
    return {sample["__key__"]: sample for sample in written}


def listed(name: str = "index.json", folder: str = FOLDER) -> IterDataPipe[RemoteUrl]:
    return IterableWrapper([folder + name]).list_remote(pattern=None if name else "*.tar")


def keys_of(pipe: Any) -> list[str]:
    return [sample["__key__"] for sample in pipe]


def write(folder: str, samples: list[dict[str, Any]], **options: Any) -> None:
    with ShardWriter(f"{folder}/{{shard}}.tar", overwrite=True, **options) as writer:
        for sample in samples:
            writer.write(dict(sample))


# What is selected


@settings(max_examples=20)
@given(
    numbers=SUBSETS,
    world=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    name=st.sampled_from(["index.json", ""]),
    interleave=st.integers(1, 3),
    equalize=st.sampled_from([None, "drop", "repeat"]),
)
def test_selected_samples_are_read_once_over_all_readers(
    samples: dict[str, Any],
    numbers: set[int],
    world: tuple[int, int],
    name: str,
    interleave: int,
    equalize: Any,
) -> None:
    """Whatever is selected, also with fewer shards than readers; with ``equalize_ranks`` as many as ``len`` says."""
    wanted = {key for at, key in enumerate(samples) if at in numbers}
    read: list[dict[str, Any]] = []
    counts = set()
    for slot in all_worlds(*world):
        chain: Any = listed(name).select(keys=wanted).shuffle_shards(seed=1).sharding_filter_rank(world=slot)
        chain = chain.shard_tar_reader(interleave=interleave)
        chain = chain if equalize is None else chain.equalize_ranks(mode=equalize)
        try:
            share = list(chain)
        except EmptyShareError:
            assert len(wanted) < world[0] * world[1]
            return
        if equalize:
            counts.add(len(share))
            assert len(chain) == len(share)
        read += share
    for sample in read:
        assert all(sample[member] == samples[sample["__key__"]][member] for member in ("cls", "txt"))
    times = Counter(sample["__key__"] for sample in read)
    if equalize is None:
        assert times == Counter(wanted)
    else:
        assert len(counts) == 1
        assert set(times) <= wanted
        assert len(wanted - set(times)) < world[0] * world[1]


def test_the_order_is_that_of_the_shards_and_a_key_may_be_in_several(samples: dict[str, Any]) -> None:
    chosen = list(samples)[2:17:3]
    assert keys_of(listed().select(keys=reversed(chosen)).shard_tar_reader()) == chosen
    write("memory://select-twice", [{"__key__": key, "cls": 1} for key in "abbcab"], max_shard_samples=2)
    twice = listed(folder="memory://select-twice/")
    assert keys_of(twice.select(keys=["b", "b"]).shard_tar_reader()) == ["b", "b", "b"]


def test_a_function_selects_by_key_shard_and_sizes(samples: dict[str, Any]) -> None:
    def is_wanted(sample: tdr.pipes.IndexedSample) -> bool:
        assert sample.members == {name: len(samples[sample.key][name]) for name in ("cls", "txt")}
        assert sample.url == samples[sample.key]["__url__"]
        return sample.members["txt"] > 40 and not sample.key.startswith("3/")

    expected = [key for key, one in samples.items() if len(one["txt"]) > 40 and not key.startswith("3/")]
    assert 0 < len(expected) < len(samples)
    assert keys_of(listed().select(where=is_wanted).shard_tar_reader()) == expected
    assert keys_of(listed().select(keys=expected[:3], where=is_wanted).shard_tar_reader()) == expected[:3]
    with pytest.raises(EmptyListingError, match="Check keys= and where="):
        list(listed().select(where=lambda sample: None))


PICTURES: dict[str, dict[str, Any]] = {
    "a": {"jpg": b"1" * 700, "cls": b"1", "json": b"{}"},
    "b": {"cls": b"2", "json": b"{}", "png": b"2" * 900},
    "c": {"json": b"{}", "jpg": b"3", "png": b"3" * 20, "cls": b"3"},
}


@pytest.fixture(scope="module")
def pictures() -> IterDataPipe[RemoteUrl]:
    """Samples with different members."""
    write("memory://select-pictures", [{"__key__": key, **members} for key, members in PICTURES.items()])
    return listed(folder="memory://select-pictures/")


@settings(max_examples=20)
@given(
    names=st.lists(st.sampled_from(["jpg;png", "png;JPG", "cls", "json"]), min_size=1, unique=True),
    keys=st.sets(st.sampled_from("abc"), min_size=1),
)
def test_only_the_chosen_members_are_read(pictures: Any, names: list[str], keys: set[str]) -> None:
    """Of alternatives the first one that the sample has is read, and no other member; their bytes are counted."""
    selected = pictures.select(members=names, keys=keys)
    expected = {}
    for key in keys:
        chosen = [next(one for one in name.lower().split(";") if one in PICTURES[key]) for name in names]
        expected[key] = {name: PICTURES[key][name] for name in chosen}
    found = {one["__key__"]: one for one in selected.shard_tar_reader()}
    assert {key: {n: v for n, v in one.items() if n[:2] != "__"} for key, one in found.items()} == expected
    padded = sum(512 + -(-len(value) // 512) * 512 for one in expected.values() for value in one.values())
    assert [url.size for url in selected] in ([padded], [url.size for url in pictures])


def test_a_selected_sample_without_the_member_is_an_error_that_says_what_it_has(pictures: Any) -> None:
    with pytest.raises(MissingMemberError, match=r"'b'.*has no 'jpg'.*\['cls', 'json', 'png'\]"):
        list(pictures.select(members=["jpg", "cls"]))
    only = pictures.select(members="jpg", where=lambda sample: "jpg" in sample.members)
    assert keys_of(only.shard_tar_reader()) == ["a", "c"]


def test_keys_of_no_shard_are_counted_and_named_and_a_selection_of_nothing_is_an_error(samples: dict[str, Any]) -> None:
    chosen = [next(iter(samples)), *(f"none/{at}" for at in range(7))]
    with pytest.raises(MissingKeyError, match=r"7 of 8 keys are in none of the shards, such as 'none/\d', "):
        next(iter(listed().select(keys=chosen)))
    with pytest.warns(RuntimeWarning, match="7 of 8 keys"):
        urls = list(listed().select(keys=chosen, on_missing_key=tdr.skip_with_warning))
    assert [url.num_samples for url in urls] == [1]
    with pytest.raises(EmptyListingError, match=r"none of the samples is selected"):
        list(listed().select(where=lambda sample: False))
    with pytest.raises(EmptyListingError):
        list(listed().select(keys=[]))


def test_a_shard_that_is_selected_completely_stays_as_it_is_and_others_are_left_out(samples: dict[str, Any]) -> None:
    """It is read by the verified path, with its checksums."""
    urls, chosen = list(listed()), list(samples)[: NUM_SAMPLES + 1]
    found = list(listed().select(keys=chosen))
    assert [url.num_samples for url in found] == [NUM_SAMPLES, 1]
    assert found[0] == urls[0]
    assert found[0].checksums == urls[0].checksums is not None
    # Without a manifest the number of samples is known only by the selection
    assert [url.num_samples for url in listed("").select(keys=chosen)] == [NUM_SAMPLES, 1]


# What is refused


@pytest.mark.parametrize("reader", ["file_reader", "shard_zip_reader"])
def test_readers_of_whole_objects_refuse_selections(samples: dict[str, Any], reader: str) -> None:
    (url,) = listed().select(keys=list(samples)[1:4])
    for refused in (url, url.part(0, 2)):
        with pytest.raises(RemoteDataError, match=r"stands for selected samples, and .*shard_tar_reader\(\)"):
            list(getattr(IterableWrapper([refused]), reader)())
    with pytest.raises(RemoteDataError, match=r"split by samples.* reads whole objects only"):
        list(getattr(IterableWrapper([next(iter(listed())).part(0, 2)]), reader)())


@pytest.mark.parametrize(
    "edit", [str, lambda url: url.replace("select-small", "copies"), lambda url: FOLDER + url.rpartition("/")[2]]
)
def test_a_map_that_makes_a_str_of_a_selection_is_an_error_that_says_where_to_put_it(
    samples: dict[str, Any], edit: Any
) -> None:
    chosen = listed().select(keys=list(samples)[1:4])
    for pipe in (chosen.map(edit), chosen.sharding_filter_rank(world=World(0, 3)).map(edit)):
        for reader in (pipe.shard_tar_reader(), pipe.async_prefetch().shard_tar_reader(), pipe.file_reader()):
            with pytest.raises(UrlError, match=r"put the pipe that made a str of it.* before\s+select\(\)"):
                list(reader)


def test_a_selection_is_an_item_that_pickles_with_all_that_it_reads(samples: dict[str, Any]) -> None:
    (url,) = listed().select(keys=list(samples)[1:4])
    for item in (url, url.part(1, 3), url.part(1, 3).part(1, 2)):
        copies = [pickle.loads(pickle.dumps(item)), copy.deepcopy(item)]
        assert [(one, one.size, one.etag, one.num_samples) for one in copies] == [
            (item, item.size, item.etag, item.num_samples)
        ] * 2
        first, *others = (keys_of(IterableWrapper([one]).shard_tar_reader()) for one in [item, *copies])
        assert others == [first] * 2
        assert first
    (other,) = listed().select(keys=list(samples)[2:4])
    assert url != other


def test_a_state_of_another_selection_is_refused(samples: dict[str, Any]) -> None:
    """Of the same shards and the same number of samples."""

    def chain(*numbers: int) -> Resumable:
        chosen = [list(samples)[number] for number in numbers]
        return Resumable(listed().select(keys=chosen).sharding_filter_rank().shard_tar_reader())

    first = chain(1, 2)
    next(iter(first))
    same, other = chain(1, 2), chain(1, 3)
    same.load_state_dict(first.state_dict())
    assert keys_of(same) == [list(samples)[2]]
    with pytest.raises(StateError, match=r"selection of \S*000000\.tar"):
        load_and_read(other, first.state_dict())


def load_and_read(chain: Resumable, state: Any) -> None:
    chain.load_state_dict(state)
    list(chain)


# Keys beside the shards


@pytest.mark.parametrize("lazy", [None, {"a"}])
@pytest.mark.parametrize(
    ("keys", "sizes", "num_refused"),
    [
        ("uvwxyz", [1, 3, 2, 1, 1, 1], 56),  # others have whole runs of samples that begin at the same bytes
        ("uwvxyz", [3, 1, 1, 2, 1, 1], 48),  # those without the two that have changed places
    ],
)
def test_keys_beside_other_samples_of_as_many_bytes_never_give_other_bytes(
    keys: str, sizes: list[int], num_refused: int, lazy: set[str] | None
) -> None:
    """Without a manifest: wherever a selection begins, it is an error, or right."""
    memory, folder = fsspec.filesystem("memory"), "memory://select-moved"

    def content(keys: str, sizes: list[int]) -> list[dict[str, Any]]:
        return [
            {"__key__": key, "a": key.encode() * 512 * size, "b": key.encode()}
            for key, size in zip(keys, sizes, strict=True)
        ]

    write(folder, content("uvwxyz", [3, 1, 1, 2, 1, 1]))
    stale = memory.cat("/select-moved/0.tar.keys")
    write(folder, content(keys, sizes))
    memory.pipe("/select-moved/0.tar.keys", stale)
    right = {sample["__key__"]: sample["b"] + sample["a"] for sample in content(keys, sizes)}
    refused = 0
    for count in range(1, 7):
        for wanted in itertools.combinations("uvwxyz", count):
            pipe = listed("", f"{folder}/").select(keys=wanted).shard_tar_reader(lazy=lazy)
            try:
                found = [
                    (sample["__key__"], sample["b"] + bytes(sample["a"].read() if lazy else sample["a"]))
                    for sample in pipe
                ]
            except ShardReadError:
                refused += 1
                continue
            assert found == [(key, right[key]) for key in wanted]
    assert refused == num_refused
    skipping = listed("", f"{folder}/").select(keys=["v"]).shard_tar_reader(on_bad_shard=tdr.skip_with_warning)
    with pytest.warns(RuntimeWarning, match="select again"):
        assert list(skipping) == []


# Requests, and objects that change
