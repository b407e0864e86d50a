"""The same number of samples in each rank, without communication."""

from __future__ import annotations

import pickle
import uuid
from collections import Counter
from itertools import chain, pairwise
from typing import Any

import fsspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterDataPipe
from torch.utils.data.datapipes.iter import IterableWrapper

from torchdata_remote import EqualizeRanks, Resumable, ShardWriter, World, stateful_loader
from torchdata_remote.errors import EmptyShareError, ManifestError, SampleError
from torchdata_remote.formats.error_policy import skip_with_warning
from torchdata_remote.testing import all_worlds, assert_resumes_everywhere, write_small_shards

Keys = list[str]


def write_shards(folder: str, counts: list[int]) -> Keys:
    """Shards of so many samples; returns all keys."""
    keys = []
    with ShardWriter(f"{folder}/{{shard:03d}}.tar", max_shard_samples=1_000, max_shard_bytes=10_000) as writer:
        for shard, count in enumerate(counts):
            for number in range(count):
                keys.append(f"{shard}/{number}")
                writer.write({"__key__": keys[-1], "txt": "x" * (5_000 // count)})  # so that the next shard begins anew
    return keys


def share(folder: str, world: World | None = None, seed: int | None = None) -> IterDataPipe[str]:
    """URLs of one slot."""
    urls: Any = IterableWrapper([f"{folder}/index.json"]).list_remote()
    return (urls if seed is None else urls.shuffle_shards(seed=seed)).sharding_filter_rank(world=world)  # type: ignore[no-any-return]


def samples(folder: str, world: World | None = None, seed: int | None = None, **options: Any) -> IterDataPipe[Any]:
    pipe: Any = share(folder, world, seed)
    return pipe.shard_tar_reader(**options)  # type: ignore[no-any-return]


def keys_in(pipe: Any) -> Keys:
    return [sample["__key__"] for sample in pipe]


def key_of(sample: Any) -> str:
    key: str = sample["__key__"]
    return key


def is_even(sample: Any) -> bool:
    return int(sample["__key__"][-1]) % 2 == 0


@settings(max_examples=40)
@given(
    counts=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    ranks=st.integers(1, 4),
    workers=st.integers(1, 3),
    mode=st.sampled_from(["drop", "repeat"]),
    seed=st.none() | st.integers(0, 9),
    interleave=st.integers(1, 3),
)
def test_every_slot_has_exactly_len_samples(
    counts: list[int], ranks: int, workers: int, mode: Any, seed: int | None, interleave: int
) -> None:
    """As ``len`` says, exactly; ``drop`` loses and ``repeat`` repeats fewer samples than there are slots."""
    folder, slots = f"memory://{uuid.uuid4().hex}", ranks * workers
    keys = write_shards(folder, counts)
    shares: list[Keys] = []
    for world in all_worlds(ranks, workers):
        pipe = EqualizeRanks(samples(folder, world, seed, interleave=interleave), mode=mode)
        if mode == "drop" and len(keys) < slots:
            with pytest.raises(EmptyShareError, match=f"{len(keys)} samples? for {slots} readers"):
                list(pipe)
            with pytest.raises(EmptyShareError):
                len(pipe)
            continue
        shares.append(keys_in(pipe))
        assert len(pipe) == len(shares[-1])
    times = Counter(chain.from_iterable(shares))
    if mode == "repeat":
        assert {len(keys) for keys in shares} == {-(-len(keys) // slots)}
        assert set(times) == set(keys)
        assert times.total() - len(keys) < slots
    elif shares:
        assert {len(keys) for keys in shares} == {len(keys) // slots}
        assert set(times.values()) == {1}
        assert set(times) <= set(keys)
    fsspec.filesystem("memory").rm(folder, recursive=True)


@pytest.mark.parametrize("mode", ["drop", "repeat"])
def test_each_epoch_drops_other_samples(memory_folder: str, mode: Any) -> None:
    """Whatever order each epoch has: a sample that was left out or repeated is not in the next epoch again."""
    keys = write_shards(memory_folder, [5, 6, 7, 4])  # 22 samples for 5 slots: 2 are dropped, or 3 repeated
    pipes = [EqualizeRanks(samples(memory_folder, world, seed=1), mode=mode) for world in all_worlds(5, 1)]
    unusual = []
    for _ in range(8):
        times = Counter(chain.from_iterable(keys_in(pipe) for pipe in pipes))
        unusual.append({key for key in keys if times[key] != 1})
        assert len(unusual[-1]) == (2 if mode == "drop" else 3)
    assert all(not first & second for first, second in pairwise(unusual))
    assert len(set().union(*unusual)) > 12


def test_len_is_exact_and_starts_no_epoch(memory_folder: str) -> None:
    """At any time."""
    write_shards(memory_folder, [5, 6])
    asked, silent = (EqualizeRanks(samples(memory_folder, World(1, 2), seed=0), mode="drop") for _ in range(2))
    assert len(asked) == 5
    for _ in range(3):
        assert keys_in(asked) == keys_in(silent)
        assert len(asked) == 5
    started = iter(asked)
    next(started)
    assert len(asked) == 5
    assert len(list(started)) == 4


def test_pipes_after_it_have_a_length(memory_folder: str) -> None:
    """One for one pipes of ours, and torch's map and batch."""
    write_shards(memory_folder, [5, 6])
    pipe: Any = EqualizeRanks(samples(memory_folder, World(1, 2)), mode="repeat")
    assert len(pipe.to_tuple("__key__")) == len(pipe.map(key_of)) == 6
    assert len(pipe.batch(4)) == 2
    assert len(pipe.shuffle_samples(buffer_size=3, seed=0)) == 6


# What is refused, and what is noticed


def test_missing_manifest_is_an_error_that_names_the_command(memory_folder: str) -> None:
    """On iteration and on ``len``."""
    write_shards(memory_folder, [3, 3])
    urls: Any = IterableWrapper([f"{memory_folder}/"]).list_remote(pattern="*.tar")
    pipe = urls.sharding_filter_rank().shard_tar_reader().equalize_ranks(mode="drop")
    for ask in (len, list):
        with pytest.raises(ManifestError, match=r"000\.tar.*index\.json.*torchdata-remote manifest FOLDER"):
            ask(pipe)


def test_missing_index_is_an_error_that_names_the_command(memory_folder: str) -> None:
    """If a shard has to be split."""
    write_shards(memory_folder, [3, 3, 3])
    for number in range(3):
        fsspec.filesystem("memory").rm(f"{memory_folder}/{number:03d}.tar.idx".removeprefix("memory:/"))
    with pytest.raises(ManifestError, match=r"\.idx is missing.*torchdata-remote manifest --overwrite"):
        list(EqualizeRanks(samples(memory_folder, World(0, 2)), mode="drop"))


@pytest.mark.parametrize("what", ["batch", "filter"])
def test_pipes_above_that_change_the_count_are_refused(memory_folder: str, what: str) -> None:
    """When the chain is built, by name, with the way out; behind it they are fine."""
    write_shards(memory_folder, [4, 4])
    pipe: Any = samples(memory_folder, World(0, 2))
    with pytest.raises(ValueError, match=r"(Batcher|Filter)\w* changes their number: put it after equalize_ranks"):
        (pipe.batch(2) if what == "batch" else pipe.filter(is_even)).equalize_ranks(mode="drop")
    after: Any = EqualizeRanks(samples(memory_folder, World(0, 2)), mode="drop")
    assert len(list(after.batch(2) if what == "batch" else after.filter(is_even))) == 2


def test_filter_on_shards_is_allowed(memory_folder: str) -> None:
    """Before the split it does not change the counts."""
    write_shards(memory_folder, [4, 4, 4])
    urls: Any = IterableWrapper([f"{memory_folder}/index.json"]).list_remote().filter(is_not_the_first)
    pipe = urls.sharding_filter_rank(world=World(0, 2)).shard_tar_reader().equalize_ranks(mode="drop")
    assert keys_in(pipe) == ["1/0", "1/1", "1/2", "1/3"]


def is_not_the_first(url: str) -> bool:
    return not url.endswith("000.tar")


def test_chain_without_exactly_one_split_is_refused() -> None:
    """None, or two in a mixture."""
    with pytest.raises(ValueError, match=r"needs one sharding_filter_rank.*there are 0"):
        EqualizeRanks(IterableWrapper(["memory://a/0.tar"]).shard_tar_reader(), mode="drop")
    with pytest.raises(ValueError, match="halve"):
        EqualizeRanks(samples("memory://a"), mode="halve")  # type: ignore[arg-type]
    repeated = IterableWrapper(["memory://a/0.tar"]).sharding_filter_rank(split=False).shard_tar_reader()
    with pytest.raises(ValueError, match=r"split=False.*no shares that equalize_ranks could make equal"):
        EqualizeRanks(repeated, mode="drop")


class LeavesOut(IterDataPipe[Any]):
    """A pipe of somebody's that drops every third sample, or hands it out twice."""

    def __init__(self, source_datapipe: IterDataPipe[Any], times: int) -> None:
        self.source_datapipe, self.times = source_datapipe, times

    def __iter__(self) -> Any:
        for number, sample in enumerate(self.source_datapipe):
            yield from [sample] * (self.times if number % 3 == 2 else 1)


@pytest.mark.parametrize(("times", "num_read"), [(0, 4), (2, 8)])
def test_changed_number_of_samples_is_an_error(memory_folder: str, times: int, num_read: int) -> None:
    """At the end of the pass, with both numbers."""
    write_shards(memory_folder, [6, 6])
    pipe = EqualizeRanks(LeavesOut(samples(memory_folder, World(0, 2)), times), mode="drop")
    with pytest.raises(SampleError, match=f"{num_read} samples were read, and the manifest has 6"):
        list(pipe)


def test_skipped_shard_is_an_error(memory_folder: str) -> None:
    """A policy cannot make ranks unequal silently."""
    write_shards(memory_folder, [4, 4, 4])
    with fsspec.open(f"{memory_folder}/001.tar", "r+b") as file:
        file.seek(10)
        file.write(b"\xff")
    pipe = EqualizeRanks(samples(memory_folder, World(0, 1), on_bad_shard=skip_with_warning), mode="drop")
    with (
        pytest.warns(RuntimeWarning, match=r"001\.tar"),
        pytest.raises(SampleError, match=r"8 samples were read.*manifest has 12"),
    ):
        list(pipe)


def test_wrong_counts_in_the_manifest_are_an_error(memory_folder: str) -> None:
    """More or fewer samples than a shard has."""
    write_shards(memory_folder, [4, 4])
    path = f"{memory_folder}/index.json".removeprefix("memory:/")
    data: bytes = fsspec.filesystem("memory").cat_file(path)
    fsspec.filesystem("memory").pipe_file(path, data.replace(b'"nsamples": 4', b'"nsamples": 5'))
    with pytest.raises(SampleError, match="8 samples were read, and the manifest has 10"):
        list(EqualizeRanks(samples(memory_folder, World(0, 1)), mode="drop"))


# Under loaders, and stopped


@pytest.mark.parametrize("num_streams", [1, 3])
@pytest.mark.parametrize("mode", ["drop", "repeat"])
def test_resumes_everywhere(memory_folder: str, mode: Any, num_streams: int) -> None:
    """Also in the middle of a part of a shard, and into the next epoch, which drops others."""
    write_shards(memory_folder, [5, 3, 6])

    def make() -> IterDataPipe[Any]:
        pipe: Any = EqualizeRanks(samples(memory_folder, seed=2, interleave=2), mode=mode)
        return pipe.shuffle_samples(buffer_size=2, seed=2).map(key_of)  # type: ignore[no-any-return]

    assert_resumes_everywhere(make, num_streams=num_streams)


@pytest.mark.parametrize("mode", ["drop", "repeat"])
def test_streams_have_equal_numbers_of_samples(memory_folder: str, mode: Any) -> None:
    """The length of a slot with several streams is their sum."""
    write_shards(memory_folder, [5, 3, 6])
    for num_streams in (1, 2, 3, 4, 5, 14):
        pipe: Any = EqualizeRanks(samples(memory_folder, seed=2), mode=mode)
        data = Resumable(pipe, num_streams=num_streams)
        expected = num_streams * (14 // num_streams if mode == "drop" else -(-14 // num_streams))
        assert len(data) == expected
        for _ in range(2):
            assert len(list(data)) == expected


@pytest.fixture(scope="module")
def local_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """5 shards of 7 samples that worker processes can read."""
    folder = tmp_path_factory.mktemp("shards").as_uri()
    write_small_shards(folder, num_shards=5, samples_per_shard=7)
    return folder


@pytest.mark.parametrize("mode", ["drop", "repeat"])
def test_workers_have_equal_numbers_of_samples(local_folder: str, mode: Any) -> None:
    """Under torch's DataLoader with persistent workers: each epoch whole but for the rest of the division."""
    pipe: Any = EqualizeRanks(samples(local_folder, seed=0), mode=mode)
    loader: DataLoader[Any] = DataLoader(pipe.map(key_of), batch_size=None, num_workers=2, persistent_workers=True)
    epochs = [list(loader) for _ in range(2)]
    assert [len(keys) for keys in epochs] == [34, 34] if mode == "drop" else [36, 36]
    assert [len(set(keys)) for keys in epochs] == [34, 34] if mode == "drop" else [35, 35]
    assert set(epochs[0]) | set(epochs[1]) == set(keys_in(samples(local_folder)))


def test_len_of_the_loader_is_equal_in_all_ranks(local_folder: str) -> None:
    """In each rank as many, which is what DDP needs; with workers that have several streams too."""
    for num_workers, num_streams, drop_last in [(0, 2, False), (2, 4, False), (0, 3, True), (0, None, True)]:
        pipe: Any = EqualizeRanks(samples(local_folder, seed=0), mode="drop")
        loader = stateful_loader(
            pipe.map(key_of), batch_size=4, num_workers=num_workers, num_streams=num_streams, drop_last=drop_last
        )
        assert len(loader) == len(list(loader))


def test_pickled_copy_yields_the_same_samples(local_folder: str) -> None:
    """A copy in another process hands out the same."""
    pipe = EqualizeRanks(samples(local_folder, World(1, 3)), mode="repeat")
    assert keys_in(pickle.loads(pickle.dumps(pipe))) == keys_in(pipe)
