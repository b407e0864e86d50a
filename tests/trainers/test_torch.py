"""torch alone: DDP, FSDP2 with ``torch.distributed.checkpoint``, and data-parallel groups that are not the world."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.launch import launch

from .data import KINDS, NUM_BEFORE, NUM_SAMPLES, RESUMABLE, STOPS, Cells
from .table import WHOLE, Row, epoch_rows, flat, outcome

pytestmark = pytest.mark.timeout(1200)  # the first test waits for all launches
Ranks = list[dict[str, Any]]
Runs = dict[int, Ranks]
PLACES = {
    "2 x 2": (2, [0, 0, 1, 1]), "4 x 1": (4, [0, 1, 2, 3]), "1 x 4": (1, [0] * 4), "permuted": (2, [0, 1, 1, 0]),
    "both": (4, [0, 1, 2, 3]), "shard": (2, [0, 1, 0, 1]),
}  # fmt: skip


@pytest.fixture(scope="module")
def runs(dataset: Path, cells: dict[int, Cells], tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """What the ranks of each number of ranks have reported: four save, two continue and save, three end the epoch."""
    elsewhere, checkpoints = (str(tmp_path_factory.mktemp(name)) for name in ("elsewhere", "checkpoints"))
    given: dict[str, Any] = {"folder": str(dataset), "elsewhere": elsewhere, "checkpoints": checkpoints}
    return {size: launch("tests.trainers.torch_program", size, cells=cells[size], **given) for size in (4, 2, 3)}


@pytest.fixture(scope="module")
def job(runs: Runs) -> Ranks:
    return runs[4]


@pytest.mark.parametrize("world_size", [2, 3])
def test_an_epoch_of_each_loader_has_each_sample_once_over_all_ranks(
    runs: Runs, cells: dict[int, Cells], world_size: int
) -> None:
    rows = epoch_rows("torch DDP", runs[world_size], cells[world_size])
    assert {row.result for row in rows} == {WHOLE}, "\n".join(map(str, rows))


@pytest.mark.parametrize("kind", KINDS)
def test_a_distributed_checkpoint_is_resumed_by_other_numbers_of_ranks(runs: Runs, kind: str) -> None:
    """Four ranks stop in mid-epoch, then two, then three end the epoch: each sample once, also if saved in a thread."""
    parts = [rank[f"FSDP2: {kind}"] for size in (4, 2, 3) for rank in runs[size]]
    row = Row(f"FSDP2, DCP {kind}", RESUMABLE, "4 -> 2 -> 3", KINDS[kind], outcome(parts), "resume")
    assert row.result == WHOLE, row
    assert [len(part) for part in parts[:6]] == [NUM_BEFORE] * 6
    for rank in (*runs[4], *runs[2]):  # as many ranks have the batches and weights that followed
        following, again, same_weights = rank[f"{kind}: again"]
        assert following == again != []
        assert same_weights


def reported(ranks: Ranks, name: str) -> list[Any]:
    return [rank[name] for rank in ranks]


def shares(per_rank: list[Any], place: list[int]) -> list[Any]:
    """The samples of each data-parallel rank; all of its processes must have the same."""
    by_place: dict[int, Any] = {}
    for had, number in zip(per_rank, place, strict=True):
        assert by_place.setdefault(number, had) == had, f"{place}: ranks of place {number} differ"
    return list(by_place.values())


def test_tensor_parallel_ranks_read_equal_batches_and_data_parallel_ones_the_epoch(
    job: Ranks, cells: dict[int, Cells]
) -> None:
    """Each sample once in each copy of the model."""
    place = PLACES["2 x 2"][1]
    for loader, workers in cells[4]:
        found = shares(reported(job, f"DeviceMesh 2 x 2: {loader}, {workers} workers"), place)
        row = Row("DeviceMesh 2 x 2", loader, "4", workers, outcome(found))
        assert row.result == WHOLE, row


def test_ranks_are_counted_by_the_coordinates_of_the_mesh(job: Ranks) -> None:
    """Over one dimension and over two; also if the rank numbers of the mesh are not ascending."""
    for rank, found in enumerate(reported(job, "places")):
        assert found == {mesh: [numbers[rank], size] for mesh, (size, numbers) in PLACES.items()}


@pytest.mark.parametrize("here", STOPS)
def test_the_state_of_all_ranks_of_a_group_resumes_in_any_mesh(job: Ranks, here: str) -> None:
    """In the mesh where it was saved the same batches; in others the rest of the epoch, each sample once."""
    workers, meshes = STOPS[here]
    what, place = f"{here}, {workers} workers", PLACES[here][1]
    states = reported(job, f"state, {what}")
    assert [list(state) for state in states] == [["all_ranks"]] * 4
    assert len({state["all_ranks"] for state in states}) == 1
    assert reported(job, f"all ranks' state in {here}, {what}") == reported(job, f"after, {what}")
    before = shares(reported(job, f"before, {what}"), place)
    for mesh in meshes:
        after = shares(reported(job, f"all ranks' state in {mesh}, {what}"), PLACES[mesh][1])
        assert outcome([*before, *after]) == WHOLE, mesh


def test_own_states_are_exchanged_in_the_data_parallel_group(job: Ranks) -> None:
    """With each rank's own state the same batches follow; a mesh whose groups lack some of the states is refused."""
    for what in ("2 x 2, 2 workers", "both, 0 workers"):
        assert reported(job, f"own state, {what}") == reported(job, f"after, {what}")
    for found in reported(job, "own state in 1 x 4, 2 x 2, 2 workers"):
        assert "StateError: The state has no stream" in found["error"], found


def test_process_groups_exchange_in_any_order(job: Ranks) -> None:
    """Groups of ``new_group`` read and save by themselves; ranks of no or another group are refused."""
    assert outcome(shares(reported(job, "new_group"), [0, 1, 0, 1])) == WHOLE
    assert len({state["all_ranks"] for state in reported(job, "state of a group")}) == 1
    for rank, found in enumerate(reported(job, "not in the group")):
        assert f"ValueError: Rank {rank} is not part of this process group" in found["error"]
    assert reported(job, "None is all ranks") == [4] * 4


def test_different_listings_within_a_group_are_noticed_in_that_group(job: Ranks) -> None:
    """By both ranks, by their numbers in the job; the other group reads."""
    found = reported(job, "differing")
    for rank in (0, 2):
        assert found[rank]["error"].startswith("UnequalListingError: Rank 0 and rank 2 list different objects"), found
    assert len(flat(found[1])) == len(flat(found[3])) == NUM_SAMPLES // 2


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("no such dimension", "ValueError: The mesh has no dimension 'cp': expected the names of the dimensions"),
        ("which dimension", "ValueError: dp=None: a mesh of 2 dimensions needs the names of the dimensions"),
        ("twice", "ValueError: dp=('dp', 'dp'): a mesh of 2 dimensions needs the names of the dimensions"),
        ("numbers", "TypeError: dp=(0,): expected the names of the dimensions that split the data"),
        ("without names", "none: pass mesh_dim_names=(...) to init_device_mesh"),
        (
            "destroyed",
            "it was destroyed, or this is a copy that came from another process. Create the World in each rank",
        ),
    ],
)
def test_invalid_groups_are_refused_with_the_valid_values(job: Ranks, name: str, says: str) -> None:
    for found in reported(job, name):
        assert says in found["error"]


def test_a_rank_outside_of_the_mesh_is_refused(job: Ranks) -> None:
    """The error names the ranks in the mesh; a mesh of one dimension needs no name."""
    first, second, *outside = reported(job, "not in the mesh")
    assert first == "World(rank=0, world_size=2, worker=0, num_workers=1, group=RankGroup(members=((0, 1),)))"
    assert second.startswith("World(rank=1, world_size=2")
    for rank, found in enumerate(outside, start=2):
        assert f"ValueError: Rank {rank} is not part of this mesh, which has the ranks [0, 1]" in found["error"]


def test_ranks_that_name_the_dimensions_in_different_orders_are_noticed(job: Ranks) -> None:
    found = [rank for rank in reported(job, "another order") if isinstance(rank, dict)]
    assert sum("or the same dp= in each rank" in rank["error"] for rank in found) == 3


def test_a_slice_of_a_mesh_and_a_copy_of_a_world_are_the_same_world(job: Ranks) -> None:
    assert reported(job, "equal") == [[True, True, True]] * 4
