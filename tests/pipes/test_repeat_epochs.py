"""Several passes in one: each complete, in another order, wherever it is stopped."""

from __future__ import annotations

import pickle
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader
from torch.utils.data.datapipes.iter import IterableWrapper

from tests.support.paths import ROOT
from tests.support.resumed_loaders import assert_loader_continues
from tests.support.shuffled_keys import key_of, shuffled_keys
from torchdata_remote import RepeatEpochs, Resumable, World, mix, stateful_loader, thread_loader
from torchdata_remote.errors import SampleError
from torchdata_remote.testing import assert_resumes_everywhere, write_small_shards


@pytest.fixture(scope="module", autouse=True)
def _shards() -> None:
    write_small_shards("memory://repeated/", num_shards=4, samples_per_shard=3)


def shards(world: World | None = None, interleave: int = 1, folder: str = "memory://repeated/") -> Any:
    return shuffled_keys(folder, world, interleave)


def shuffled(num_items: int) -> Any:
    return IterableWrapper(range(num_items)).sharding_filter_rank().shuffle_samples(buffer_size=50, seed=1)


@given(num_items=st.integers(0, 20), times=st.integers(1, 4))
def test_each_pass_has_all_items(num_items: int, times: int) -> None:
    pipe = RepeatEpochs(IterableWrapper(range(num_items)).shuffle_samples(buffer_size=50), times)
    items = list(pipe)
    assert len(pipe) == len(items) == times * num_items
    for start in range(0, len(items), num_items or 1):
        assert sorted(items[start : start + num_items]) == list(range(num_items))


def test_each_pass_of_each_epoch_has_an_order_of_its_own() -> None:
    pipe = shuffled(20).repeat_epochs(3)
    items = [*pipe, *pipe]
    assert len({tuple(items[start : start + 20]) for start in range(0, 120, 20)}) == 6
    pipe.set_epoch(1)
    assert list(pipe) == items[60:]


def test_the_first_pass_is_that_of_the_epoch() -> None:
    assert list(shuffled(20).repeat_epochs(2))[:20] == list(shuffled(20))


def test_without_a_number_it_does_not_end() -> None:
    pipe = RepeatEpochs(IterableWrapper(range(3)))
    assert list(islice(pipe, 100)) == [number % 3 for number in range(100)]
    with pytest.raises(TypeError, match=r"repeat_epochs\(\) has no end"):
        len(pipe)


def test_an_empty_source_is_an_error_only_without_a_number() -> None:
    assert list(RepeatEpochs(IterableWrapper([]), 5)) == []
    with pytest.raises(SampleError, match="repeat_epochs: a pass over the source has no items"):
        list(RepeatEpochs(IterableWrapper([])))


@settings(max_examples=10, deadline=None)
@given(num_items=st.integers(1, 5), times=st.integers(1, 3))
def test_resumes_after_each_item(num_items: int, times: int) -> None:
    assert_resumes_everywhere(lambda: shuffled(num_items).repeat_epochs(times))


def test_resumes_in_chains() -> None:
    for make in (
        lambda: shards(interleave=2).repeat_epochs(2),
        lambda: shards().repeat_epochs(2).shuffle_samples(buffer_size=4, seed=1),
        lambda: shards().shuffle_samples(buffer_size=4, seed=1).repeat_epochs(2).batch(3),
        lambda: mix({"one": (shards(World()).repeat_epochs(), 1), "other": (shards(World()), 2)}, stop=14),
        lambda: shards().repeat_epochs(2).repeat_epochs(2).take(16),
    ):
        assert_resumes_everywhere(make, num_streams=2)


def test_a_state_loads_with_another_number_of_times() -> None:
    """A training that was planned too short goes on."""
    short = Resumable(shards().repeat_epochs(2))
    head = list(islice(short, 20))
    longer = Resumable(shards().repeat_epochs(3))
    longer.load_state_dict(short.state_dict())
    assert [*head, *longer] == list(Resumable(shards().repeat_epochs(3)))


def test_a_pipe_in_use_is_pickled() -> None:
    pipe = shuffled(5).repeat_epochs(2)
    next(iter(pipe))
    assert sorted(pickle.loads(pickle.dumps(pipe))) == sorted([*range(5)] * 2)


def test_passes_by_workers(tmp_path: Path) -> None:
    write_small_shards(str(tmp_path), num_shards=4, samples_per_shard=3)
    data = Resumable(shards(folder=str(tmp_path)).repeat_epochs(3), num_streams=2)
    loader = DataLoader(data, batch_size=None, num_workers=2, multiprocessing_context="forkserver")
    assert sorted(loader) == sorted([*shards(World())] * 3)


@pytest.mark.parametrize("make_loader", [stateful_loader, thread_loader])
def test_loaders_continue(make_loader: Any) -> None:
    def loader() -> Any:
        return make_loader(shards().repeat_epochs(2), batch_size=5, num_streams=2)

    assert_loader_continues(loader, 3)


def test_urls_are_repeated_too() -> None:
    urls = IterableWrapper(["memory://repeated/"]).list_remote(pattern="*.tar").shuffle_shards(seed=2).repeat_epochs()
    for slot in range(3):
        keys = list(urls.sharding_filter_rank(world=World(slot, 3)).shard_tar_reader().map(key_of).take(18))
        assert len(keys) == 6


def test_equalize_ranks_comes_before_an_endless_repeat() -> None:
    urls = IterableWrapper(["memory://repeated/"]).list_remote(pattern="*.tar")
    with pytest.raises(ValueError, match="equalize_ranks counts the samples of a pass, and repeat"):
        urls.repeat_epochs().sharding_filter_rank().shard_tar_reader().equalize_ranks()
    with pytest.raises(ValueError, match="equalize_ranks counts samples, and RepeatEpochs changes their number"):
        urls.sharding_filter_rank().shard_tar_reader().repeat_epochs(2).equalize_ranks()


@pytest.mark.parametrize("first", ["torchdata.datapipes.iter", "torchdata_remote.pipes"])
def test_torchdata_has_none_of_these_names(first: str) -> None:
    """Whichever is imported first, there is no warning, and the names build ours on torch's pipes too."""
    # Not imported here: it would stay imported for the tests that follow
    found = subprocess.run([sys.executable, "-c", "import torchdata.datapipes.iter"], capture_output=True, check=False)
    if found.returncode:
        pytest.skip("DataPipes left torchdata in 0.10")
    program = f"""
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import {first}
    import torchdata_remote as tdr, torchdata_remote.pipes, torchdata.datapipes.iter
print([str(warning.message) for warning in caught if "belongs to two pipes" in str(warning.message)])
items = tdr.IterableWrapper("ab")
calls = ("repeat_epochs", [2]), ("flat_map", [str.split]), ("take", [1]), ("skip", [1])
print([list(getattr(items, name)(*args)) for name, args in calls])
"""
    lines = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout.splitlines()
    assert lines[-2:] == ["[]", "[['a', 'b', 'a', 'b'], ['a', 'b'], ['a'], ['b']]"]
