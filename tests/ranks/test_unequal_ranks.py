"""Ranks that may get different numbers of batches are told so once, before one of them waits for ever."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import torchdata_remote as tdr

FOLDER = "memory://unequal/"
Chain = Callable[[str, tdr.World], Any]


@pytest.fixture(scope="module", autouse=True)
def _data() -> None:
    """150 samples in 8 shards, and 8 equal shards."""
    for folder, num_samples in (("unequal", 150), ("equal", 160)):
        with tdr.ShardWriter(f"memory://{folder}/{{shard}}.tar", max_shard_samples=20, overwrite=True) as writer:
            for i in range(num_samples):
                writer.write({"__key__": f"{i:03d}", "cls": i})


def streamed(source: str, world: tdr.World, **options: Any) -> Any:
    return tdr.stream_shards(source, world=world, seed=0, **options).to_tuple("__key__")


def messages(make: Callable[..., Any], pipe: Any, **options: Any) -> list[str]:
    """What the first batch, and the later ones, say."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loader = make(pipe, **{"batch_size": 4, **options})
        batches = iter(loader)
        next(batches)
        said = [str(warning.message) for warning in caught if "different numbers of batches" in str(warning.message)]
        next(batches)
        next(iter(loader))
    assert len([warning for warning in caught if "different numbers of batches" in str(warning.message)]) == len(said)
    return said


def num_batches(make: Callable[..., Any], rank: int, **options: Any) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pipe = streamed(f"{FOLDER}index.json", tdr.World(rank, 2))
        return sum(1 for _ in make(pipe, **{"batch_size": 4, **options}))


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (tdr.stateful_loader, {}),
        (tdr.stateful_loader, {"num_streams": 6, "drop_last": True}),
        (tdr.stateful_loader, {"num_workers": 2, "multiprocessing_context": "fork"}),
        (tdr.thread_loader, {"batch_size": None}),
    ],
)
def test_the_first_batch_says_the_numbers_of_the_manifest(make: Any, options: dict[str, Any]) -> None:
    """Those that the ranks then have; and what to do."""
    (said,) = messages(make, streamed(f"{FOLDER}index.json", tdr.World(0, 2)), **options)
    counts = [num_batches(make, rank, **options) for rank in range(2)]
    fewest, most = min(counts), max(counts)
    assert fewest < most
    assert f": rank {counts.index(fewest)} gets {fewest} and rank {counts.index(most)} gets {most} in" in said
    assert "equalize_ranks()" in said
    assert "torch.distributed.algorithms.Join" in said


@pytest.mark.parametrize("make", [tdr.stateful_loader, tdr.thread_loader])
@pytest.mark.parametrize(
    "chain",
    [
        lambda world: streamed(f"{FOLDER}*.tar", world),
        lambda world: streamed(f"{FOLDER}index.json", world).filter(bool),
        lambda world: streamed(f"{FOLDER}index.json", world).batch(3),
        lambda world: streamed(f"{FOLDER}index.json", world).take(101),
        lambda world: tdr.mix({name: (streamed(f"{FOLDER}index.json", world), 1) for name in "ab"}, seed=0),
        lambda world: streamed(f"{FOLDER}index.json", world).repeat_epochs(2),
        lambda world: tdr.stream_shards(f"{FOLDER}index.json", world=world).equalize_ranks().filter(bool),
    ],
)
def test_without_known_numbers_it_says_that_they_may_differ(make: Any, chain: Any) -> None:
    (said,) = messages(make, chain(tdr.World(0, 2)), collate_fn=list)
    assert said.startswith("Ranks may get different numbers of batches. ")


@pytest.mark.parametrize("make", [tdr.stateful_loader, tdr.thread_loader])
@pytest.mark.parametrize(
    "chain",
    [
        lambda: streamed(f"{FOLDER}index.json", tdr.World()),
        lambda: streamed(f"{FOLDER}index.json", tdr.World(1, 2)),
        lambda: tdr.stream_shards(f"{FOLDER}index.json", world=tdr.World(0, 2)).equalize_ranks(),
        lambda: streamed("memory://equal/index.json", tdr.World(0, 2)),
        lambda: streamed(f"{FOLDER}index.json", tdr.World(0, 2)).repeat_epochs(),
        lambda: streamed(f"{FOLDER}index.json", tdr.World(0, 2)).repeat_epochs().take(100),
        lambda: tdr.mix({"a": (streamed(f"{FOLDER}index.json", tdr.World(0, 2)), 1)}, seed=0, stop=100),
    ],
    ids=["one rank", "not rank 0", "equalized", "equal shards", "endless", "bounded", "mixture with a number"],
)
def test_ranks_with_equal_numbers_are_told_nothing(make: Any, chain: Any) -> None:
    assert messages(make, chain(), collate_fn=list) == []


@given(
    batch_size=st.integers(1, 9), stop=st.integers(0, 10), num_streams=st.sampled_from([2, 4]), equalizes=st.booleans()
)
@settings(max_examples=15)
def test_ranks_that_continue_from_another_world_are_told_the_numbers_that_they_have_left(
    batch_size: int, stop: int, num_streams: int, equalizes: bool
) -> None:
    """Whole epochs would be equal, what is left of this one need not be."""

    def loader(world: tdr.World, size: int) -> Any:
        pipe = tdr.stream_shards("memory://equal/index.json", world=world, seed=0)
        pipe = pipe.equalize_ranks() if equalizes else pipe
        return tdr.stateful_loader(pipe.to_tuple("__key__"), batch_size=size, num_streams=num_streams)

    alone = loader(tdr.World(0, 1), batch_size)
    batches = iter(alone)
    for _ in range(stop):
        next(batches)
    state = alone.state_dict()
    said, counts = [], []
    for rank in range(2):
        resumed = loader(tdr.World(rank, 2), 4)
        resumed.load_state_dict(state)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            counts.append(len(list(resumed)))
        said.append([str(one.message) for one in caught if "different numbers of batches" in str(one.message)])
    assert said[1] == []
    if counts[0] != counts[1]:
        assert f": rank {int(counts[1] < counts[0])} gets {min(counts)} and rank" in said[0][0]
        assert f"gets {max(counts)} in this pass" in said[0][0]
    elif said[0]:
        assert "gets" not in said[0][0]
