"""All ranks end an epoch after the same number of batches, or are told once that one of them may wait for ever."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data.datapipes.datapipe import IterDataPipe
from torch.utils.data.datapipes.iter import IterableWrapper

import torchdata_remote as tdr
from torchdata_remote.errors import StateError

FOLDER = "memory://unequal/"
MANIFEST = f"{FOLDER}index.json"
NUM_SAMPLES = 150
LOADERS = pytest.mark.parametrize("make", [tdr.stateful_loader, tdr.thread_loader])


@pytest.fixture(scope="module", autouse=True)
def _data() -> None:
    """150 samples in 8 shards, and 8 equal shards."""
    for folder, num_samples in (("unequal", NUM_SAMPLES), ("equal", 160)):
        with tdr.ShardWriter(f"memory://{folder}/{{shard}}.tar", max_shard_samples=20, overwrite=True) as writer:
            for i in range(num_samples):
                writer.write({"__key__": f"{i:03d}", "cls": i})


def streamed(source: str, world: tdr.World, **options: Any) -> Any:
    return tdr.stream_shards(source, world=world, **{"seed": 0, "shuffle_buffer_size": 30, **options}).to_tuple(
        "__key__"
    )


def listed(batches: Any) -> list[list[str]]:
    """The keys of each batch; of loaders that do not batch, too."""
    return [[batch[0]] if isinstance(batch[0], str) else list(batch[0]) for batch in batches]


def reading(batches: Callable[[], Any]) -> tuple[list[list[str]], list[str]]:
    """The batches of a pass, and what is said of ranks."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = listed(batches())
    return found, [str(one.message) for one in caught if "different numbers of batches" in str(one.message)]


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (tdr.stateful_loader, {"batch_size": 4}),
        (tdr.stateful_loader, {"batch_size": 5, "num_streams": 28, "drop_last": True}),
        (tdr.stateful_loader, {"batch_size": 5, "num_workers": 2, "multiprocessing_context": "fork"}),
        (tdr.thread_loader, {"batch_size": 7}),
        (tdr.thread_loader, {"batch_size": None}),
    ],
)
@pytest.mark.parametrize("world_size", [2, 4, 7])
def test_all_ranks_end_each_epoch_after_the_same_number_of_batches(
    make: Any, options: dict[str, Any], world_size: int
) -> None:
    """No sample is read twice. What is left out is as many samples as are said, less than a batch of each worker."""
    most_left_out = world_size * (options["batch_size"] or 1) * options.get("num_workers", 1)
    dropped = options["batch_size"] * options["num_streams"] if "drop_last" in options else 0
    left_out = []
    loaders = [make(streamed(MANIFEST, tdr.World(rank, world_size)), **options) for rank in range(world_size)]
    for epoch in range(2):
        ranks, said = zip(*(reading(partial(iter, loader)) for loader in loaders), strict=True)
        assert {len(batches) for batches in ranks} == {len(loader) for loader in loaders}
        assert len({len(loader) for loader in loaders}) == 1
        assert {loader.state_dict()["epoch"] for loader in loaders} == {epoch + 1}
        counts = Counter(key for batches in ranks for batch in batches for key in batch)
        assert set(counts.values()) == {1}
        left_out.append(NUM_SAMPLES - len(counts))
        assert left_out[-1] < most_left_out + dropped
        numbers = [re.search(r"leaves out (\d+) of 150 samples", message) for message in said[0]]
        assert len(numbers) == (epoch == 0 and "drop_last" not in options and left_out[0] > 0) or dropped
        assert all(number is not None and int(number[1]) == left_out[0] for number in numbers) or dropped
        assert not any(said[1:])


@LOADERS
def test_without_equalize_all_samples_are_read_and_the_numbers_are_said(make: Any) -> None:
    loaders = [make(streamed(MANIFEST, tdr.World(rank, 4)), batch_size=None, equalize=False) for rank in range(4)]
    ranks, said = zip(*(reading(partial(iter, loader)) for loader in loaders), strict=True)
    assert sorted(map(len, ranks)) == [37, 37, 38, 38]
    assert [len(loader) for loader in loaders] == list(map(len, ranks))
    assert "rank 0 has 37 and rank 1 has 38 in this pass, by the manifest. A rank that has more waits" in said[0][0]
    assert "equalize_ranks()" in said[0][0]
    assert "torch.distributed.algorithms.Join" in said[0][0]
    assert not any(said[1:])
    assert reading(lambda: loaders[0])[1] == []


@LOADERS
def test_shards_that_are_not_shuffled_stay_whole_and_the_numbers_are_said(make: Any) -> None:
    """To evaluate: nothing may be left out, and each shard is read by one rank."""
    found, said = zip(
        *(reading(partial(make, streamed(MANIFEST, tdr.World(rank, 2), shuffle=False))) for rank in range(2)),
        strict=True,
    )
    assert sorted(map(len, found)) == [70, 80]
    assert "rank 1 has 70 and rank 0 has 80" in said[0][0]
    assert sorted(key for batches in found for batch in batches for key in batch) == [f"{i:03d}" for i in range(150)]


def test_a_shuffle_of_urls_is_none_of_samples() -> None:
    """The same samples would be left out in each epoch."""
    urls = IterableWrapper([MANIFEST]).list_remote().shuffle_samples(buffer_size=3)
    chains = [
        urls.sharding_filter_rank(world=tdr.World(rank, 2)).shard_tar_reader().to_tuple("__key__") for rank in (0, 1)
    ]
    found, said = zip(*(reading(partial(tdr.stateful_loader, chain)) for chain in chains), strict=True)
    assert sorted(map(len, found)) == [70, 80]
    assert "A rank that has more waits" in said[0][0]


@LOADERS
@pytest.mark.parametrize(
    "chain",
    [
        lambda world: streamed(f"{FOLDER}*.tar", world),
        lambda world: streamed(MANIFEST, world).filter(bool),
        lambda world: streamed(MANIFEST, world, on_bad_shard=tdr.skip_with_warning),
        lambda world: streamed(MANIFEST, world, on_bad_member=tdr.skip_with_warning),
        lambda world: tdr.mix({name: (streamed(MANIFEST, world), 1) for name in "ab"}, seed=0),
        lambda world: tdr.stream_shards(MANIFEST, world=world).equalize_ranks().filter(bool),
    ],
    ids=[
        "no manifest",
        "filter",
        "shards may be skipped",
        "members may be skipped",
        "mixture",
        "equalized and filtered",
    ],
)
def test_without_known_numbers_it_says_once_that_they_may_differ(make: Any, chain: Any) -> None:
    loader = make(chain(tdr.World(0, 2)), batch_size=4, collate_fn=list)
    (said,) = reading(lambda: islice(loader, 2))[1]
    assert said.startswith("Ranks may get different numbers of batches. ")
    assert reading(lambda: islice(loader, 2))[1] == []


@LOADERS
@pytest.mark.parametrize(
    "chain",
    [
        lambda: streamed(MANIFEST, tdr.World()),
        lambda: streamed(f"{FOLDER}*.tar", tdr.World(1, 2)),
        lambda: tdr.stream_shards(MANIFEST, world=tdr.World(0, 2)).equalize_ranks(),
        lambda: streamed("memory://equal/index.json", tdr.World(0, 2)),
        lambda: streamed("memory://equal/index.json", tdr.World(0, 2), shuffle=False),
        lambda: streamed(f"{FOLDER}*.tar", tdr.World(0, 2)).repeat_epochs(),
        lambda: streamed(f"{FOLDER}*.tar", tdr.World(0, 2)).repeat_epochs().take(100),
        lambda: tdr.mix({"a": (streamed(MANIFEST, tdr.World(0, 2)), 1)}, seed=0, stop=100),
    ],
    ids=["one rank", "not rank 0", "equalized", "equal", "equal shards", "endless", "bounded", "mixture with a number"],
)
def test_ranks_with_equal_numbers_are_told_nothing(make: Any, chain: Any) -> None:
    assert reading(lambda: islice(make(chain(), batch_size=4, collate_fn=list), 2))[1] == []


@pytest.mark.parametrize(
    "chain",
    [
        lambda pipe: pipe.take(101),
        lambda pipe: pipe.skip(7),
        lambda pipe: pipe.repeat_epochs(2),
        lambda pipe: pipe.batch(3),
    ],
    ids=["take", "skip", "repeat_epochs", "batch"],
)
def test_pipes_that_change_the_number_in_a_known_way_are_counted(chain: Any) -> None:
    loaders = [
        tdr.stateful_loader(chain(streamed(MANIFEST, tdr.World(rank, 4))), batch_size=5, collate_fn=list)
        for rank in range(4)
    ]
    counts = {sum(1 for _ in reading_loader) for reading_loader in loaders}
    assert counts == {len(loader) for loader in loaders}
    assert len(counts) == 1


class Counted(IterDataPipe[Any]):
    """A pipe of a user whose length is that of a whole pass, in all ranks."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Any:
        yield from self.source

    def __len__(self) -> int:
        return NUM_SAMPLES

    def state_dict(self) -> None: ...

    def load_state_dict(self, state: None) -> None: ...


def test_the_length_of_a_pipe_of_a_user_is_not_taken_for_that_of_a_share() -> None:
    loaders = [tdr.stateful_loader(Counted(streamed(MANIFEST, tdr.World(rank, 2))), batch_size=5) for rank in range(2)]
    ranks, said = zip(*(reading(partial(iter, loader)) for loader in loaders), strict=True)
    assert sum(len(batch) for batches in ranks for batch in batches) == NUM_SAMPLES
    assert said[0][0].startswith("Ranks may get different numbers of batches. ")
    with pytest.raises(TypeError, match="Counted does not say how many items a share has"):
        len(loaders[0])


@settings(max_examples=25)
@given(
    batch_size=st.integers(1, 9),
    stop=st.integers(0, 12),
    saved=st.integers(1, 3),
    world_size=st.integers(1, 5),
    num_streams=st.sampled_from([None, 4, 6]),
)
def test_ranks_that_continue_in_another_world_end_together_and_share_what_is_left(
    batch_size: int, stop: int, saved: int, world_size: int, num_streams: int | None
) -> None:
    """Each has as many samples left as the others, but for a buffer: nothing is read twice, and little is left out."""

    def loader(world: tdr.World, size: int, **options: Any) -> Any:
        return tdr.stateful_loader(streamed(MANIFEST, world), batch_size=size, num_streams=num_streams, **options)

    before: list[str] = []
    states = []
    for rank in range(saved):
        stopped = loader(tdr.World(rank, saved), 3)
        batches = iter(stopped)
        before += [key for batch in listed(islice(batches, stop)) for key in batch]
        states.append(stopped.state_dict())
    state = tdr.merge_states(states)
    counts: set[int] = set()
    after: list[str] = []
    everything: list[str] = []
    for rank in range(world_size):
        for equalize, found in ((True, after), (False, everything)):
            try:
                resumed = loader(tdr.World(rank, world_size), batch_size, equalize=equalize)
                resumed.load_state_dict(state)
                batches, _ = reading(partial(iter, resumed))
            except StateError:  # a fixed number of streams for more slots
                assert num_streams is not None
                return
            found += [key for batch in batches for key in batch]
            if equalize:
                counts.add(len(batches))
    assert len(counts) == 1
    assert sorted([*before, *everything]) == [f"{i:03d}" for i in range(NUM_SAMPLES)]
    assert len(set(after)) == len(after)
    assert set(after) <= set(everything)
