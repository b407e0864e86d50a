"""Two ranks in processes of their own: they share epochs, listings and states, and differences are errors in each."""

from __future__ import annotations

import collections
from pathlib import Path
from typing import Any

import pytest

from tests.servers.scripted import Request, Response, scripted
from tests.support.launch import close_server, launch
from tests.support.loaders import keys
from torchdata_remote.testing import write_small_shards

NUM_SHARDS, SAMPLES_PER_SHARD = 6, 4
ALL_KEYS = sorted(f"{number % 10}/{number:06d}" for number in range(NUM_SHARDS * SAMPLES_PER_SHARD))
pytestmark = pytest.mark.timeout(600)  # the first test waits for the launch
Ranks = list[dict[str, Any]]
# Several exchanges that do not fit together are errors of the package, in whatever rank they are noticed
OURS = ("StateError", "RemoteDataError", "UnequalListingError", "UnsplitError", "ValueError: The ranks")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ranks, collections.Counter[str]]:
    """What two ranks have reported, and how often each manifest was read."""
    at = tmp_path_factory.mktemp("groups")
    write_small_shards(f"{at}/whole", num_shards=NUM_SHARDS, samples_per_shard=SAMPLES_PER_SHARD)
    write_small_shards(f"{at}/half", num_shards=NUM_SHARDS - 1, samples_per_shard=SAMPLES_PER_SHARD)
    (at / "store").mkdir()

    def respond(request: Request) -> Response:
        kind, _, name = request.target.lstrip("/").rpartition("/")
        if kind.startswith("no"):
            return Response(404)
        return Response.of_object(request, Path(at, "whole", name).read_bytes())

    with scripted(respond) as server:
        try:
            ranks = launch("tests.ranks.group_program", 2, folder=f"{at}/whole", url=server.url, store=f"{at}/store")
        finally:
            close_server()
        listed = collections.Counter(
            request.target.rpartition("/")[0][1:] for request in server.requests if request.target.endswith("json")
        )
    return ranks, listed


@pytest.fixture(scope="module")
def ranks(job: tuple[Ranks, Any]) -> Ranks:
    return job[0]


@pytest.mark.parametrize(
    "loader",
    [
        "environment",
        "DataLoader, 0 workers, False",
        "DataLoader, 2 workers, False",
        "DataLoader, 2 workers, True",
        "DataLoader, rank 0 has read",
        "DataLoader2",
    ],
)
def test_torchs_loaders_read_each_sample_once_over_ranks_and_workers(ranks: Ranks, loader: str) -> None:
    """In each epoch, whose shards other ranks read; also where the environment alone tells the ranks."""
    if loader == "DataLoader2" and loader not in ranks[0]:
        pytest.skip("DataLoader2 left torchdata in 0.10")
    for epochs in zip(*(rank[loader] for rank in ranks), strict=True):
        assert sorted(key for share in epochs for key in share) == ALL_KEYS
        assert all(epochs)
    for rank in ranks:
        first, second = rank[loader]
        assert first != second
    assert any(sorted(rank[loader][0]) != sorted(rank[loader][1]) for rank in ranks)


@pytest.mark.parametrize("name", ["environment, few shards", "few shards"])
def test_fewer_shards_than_readers_are_an_error_in_every_rank(ranks: Ranks, name: str) -> None:
    """So that no rank waits for the others."""
    for rank in ranks:
        assert rank[name]["error"].startswith("EmptyShareError")
        assert "3 shards for 4 readers (2 ranks x 2 workers)" in rank[name]["error"]


def test_ranks_of_a_group_share_each_epoch(ranks: Ranks) -> None:
    """Each sample once over ranks and workers, each epoch in another order."""
    for epochs in zip(*(rank["epochs"] for rank in ranks), strict=True):
        assert keys(*epochs) == ALL_KEYS
    assert ranks[0]["epochs"][0] != ranks[0]["epochs"][1]


def test_ranks_of_a_group_exchange_their_states(ranks: Ranks) -> None:
    """Whether each has its own, one has all, or all are merged: every rank continues with its batches."""
    for rank in ranks:
        first, second = rank["epochs"]
        assert rank["head"] + rank["rest"][0] == rank["head"] + rank["rest of one"] == first
        assert rank["rest"][1] == second
        assert "no state to merge" in rank["no state"]["error"]
    assert [[v for v, _ in rank["state"]["streams"]] for rank in ranks] == [[0, 2], [1, 3]]
    heads = [rank["head"] for rank in ranks]
    for rest in ("rest of merged", "rest of all ranks"):
        assert keys(*heads, *(rank[rest] for rank in ranks)) == ALL_KEYS


def test_the_state_of_one_rank_warns_once_unless_it_was_asked_for(ranks: Ranks) -> None:
    for rank in ranks:
        (message,) = rank["warned"]
        assert "state of this rank" in message
        assert "state_of_all_ranks=True" in message


def test_the_state_of_all_ranks_is_one_text_that_every_rank_gets(ranks: Ranks) -> None:
    """Without a process group it is refused: it would be the state of one rank, which is noticed only when loaded."""
    for rank in ranks:
        assert rank["state of all ranks"] == [["all_ranks"], 1, "str"]
        for name in ("without a group", "process group destroyed"):
            assert rank[name]["error"].startswith("StateError")
            assert "2 of 4 streams" in rank[name]["error"]
            assert "there is no process group" in rank[name]["error"]


def test_rank_0_lists_for_all_ranks(job: tuple[Ranks, collections.Counter[str]]) -> None:
    """In a process group, once an epoch or once for all; an error of rank 0 is raised in all ranks."""
    ranks, listed = job
    listed = listed.copy()
    assert listed.pop("alone") == 2
    for workers in (0, 2):
        assert listed.pop(f"each/{workers}") == 2
        for kind in ("once", "none", "rank0"):
            assert listed.pop(f"{kind}/{workers}") == 1
        for name in ("each", "once"):
            for epochs in zip(*(rank[f"{name} {workers}"] for rank in ranks), strict=True):
                assert keys(*epochs) == ALL_KEYS
        assert keys(*(rank[f"only {workers}"] for rank in ranks)) == ALL_KEYS
        own, other = (rank[f"failing {workers}"]["error"] for rank in ranks)
        assert own.startswith("ObjectNotFoundError")
        assert "Rank 0" not in own
        assert other.startswith("RemoteDataError: Rank 0 failed to list for all ranks: ObjectNotFoundError: ")
    assert not listed


def errors_of(ranks: Ranks, name: str) -> list[str]:
    return [rank[name]["error"] if isinstance(rank[name], dict) else "" for rank in ranks]


def test_ranks_that_list_different_objects_name_the_difference(ranks: Ranks) -> None:
    """In each rank, before the first batch."""
    for error in errors_of(ranks, "unlike: listing"):
        assert error.startswith("UnequalListingError: Rank 0 and rank 1 list different objects: 5 objects and 6")


@pytest.mark.parametrize("name", ["failing", "failing in a thread"])
def test_the_failure_of_a_rank_is_raised_in_all_ranks(ranks: Ranks, name: str) -> None:
    """The others name the rank and its error; that rank raises its own error."""
    other, own = errors_of(ranks, f"unlike: {name}")
    assert other.startswith("RemoteDataError: Rank 1 failed to take its first batch: ")
    assert own.partition(":")[0] in other
    assert not own.startswith(("RemoteDataError", "StateError"))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("seed", "Ranks 0 and 1 differ in the chain: 'ShuffleShards(seed=0)' and 'ShuffleShards(seed=1)'"),
        ("epoch", "Ranks 0 and 1 differ in the epoch: 1 and 0"),
        ("num_streams", "Ranks 0 and 1 differ in the number of streams: 4 and 6"),
        ("place", "rank 0 reads as rank 0, rank 1 reads as rank 0 of 2"),
        ("state", "differ in the "),
        *(
            (f"PrefetchingLoader, {what}", f"differ in the {of}")
            for what, of in {
                "seed": "chain",
                "shuffle": "chain",
                "equalize": "chain",
                "samples": "chain",
                "epoch": "epoch",
                "state": "",
            }.items()
        ),
        ("PrefetchingLoader, place", ""),
    ],
)
def test_ranks_that_would_read_different_orders_raise_an_error(ranks: Ranks, name: str, says: str) -> None:
    """In each of them, before the first batch: samples would be lost and others repeated silently."""
    for error in errors_of(ranks, f"unlike: {name}"):
        assert error.startswith(OURS), (name, error)
        assert says in error, error


@pytest.mark.parametrize(
    "name", ["load in rank 0", "state in rank 0", "cut off", "without file", "list_now in rank 0", "another exchange"]
)
def test_a_call_of_one_rank_alone_does_not_block_the_other(ranks: Ranks, name: str) -> None:
    """Nor is one exchange taken for another: each rank has an error, or they read each sample once."""
    errors = errors_of(ranks, name)
    assert all(error.startswith(OURS) for error in errors) or not any(errors), errors
    if not any(errors):
        assert keys(*(rank[name] for rank in ranks)) == ALL_KEYS


def test_rank_0_says_that_ranks_get_different_numbers_of_batches(ranks: Ranks) -> None:
    (first, said), (second, nothing) = (rank["unequal ranks"] for rank in ranks)
    assert (first, second) == (4, 2)
    assert nothing == []
    assert len(said) == 1
    assert said[0].startswith("Ranks may get different numbers of batches")
