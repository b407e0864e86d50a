"""Data-parallel groups that are not the world: ranks of one tensor-parallel group read the same data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from .data import LOADERS, NUM_SAMPLES, Cells
from .launch import Row, launch, outcome

Ranks = list[dict[str, Any]]
PLACES = {"2 x 2": (2, [0, 0, 1, 1]), "4 x 1": (4, [0, 1, 2, 3]), "1 x 4": (1, [0] * 4), "permuted": (2, [0, 1, 1, 0])}
CELLS_OF_HSDP = [*((loader, 0) for loader in LOADERS), ("stateful_loader(pipe)", 2)]
HSDP_PLACES = {"both": (4, [0, 0, 1, 1, 2, 2, 3, 3]), "one": (2, [0, 0, 1, 1] * 2)}


@pytest.fixture(scope="module")
def job(dataset: Path, complete: bool, tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    """The reports of four ranks."""
    elsewhere = str(tmp_path_factory.mktemp("elsewhere"))
    cells = cells_of_job(complete=complete)
    return launch("tests.trainers.mesh_program", 4, folder=str(dataset), elsewhere=elsewhere, shape=[2, 2], cells=cells)


@pytest.fixture(scope="module")
def hsdp(dataset: Path) -> Ranks:
    """The reports of eight ranks."""
    return launch(
        "tests.trainers.mesh_program", 8, folder=str(dataset), elsewhere="", shape=[2, 2, 2], cells=CELLS_OF_HSDP
    )


def cells_of_job(*, complete: bool) -> Cells:
    """Each loader, without workers or with two; all of them if complete."""
    if complete:
        return [(loader, workers) for loader in LOADERS for workers in (0, 2)]
    return [(loader, number % 2 * 2) for number, loader in enumerate(LOADERS)]


def reported(ranks: Ranks, name: str) -> list[Any]:
    return [rank[name] for rank in ranks]


def shares(per_rank: list[Any], place: list[int]) -> list[Any]:
    """The samples of each data-parallel rank; all of its processes must have the same."""
    by_place: dict[int, Any] = {}
    for had, number in zip(per_rank, place, strict=True):
        assert by_place.setdefault(number, had) == had, f"{place}: ranks of place {number} differ"
    return list(by_place.values())


def flat(batches: Any) -> Any:
    """The numbers of all batches; an error is not changed."""
    return batches if isinstance(batches, dict) else [number for batch in batches for number in batch]


def rows(ranks: Ranks, framework: str, place: list[int], cells: Cells) -> list[Row]:
    """An epoch of each loader, each data-parallel rank counted once."""
    return [
        Row(framework, loader, str(len(ranks)), workers, outcome(shares(found, place)))
        for loader, workers in cells
        for found in [reported(ranks, f"{loader}, {workers} workers")]
    ]


def test_an_epoch_has_each_sample_once_in_each_model_copy(job: Ranks, complete: bool) -> None:
    """tp ranks read equal batches, dp ranks disjoint ones that make up the epoch."""
    found = rows(job, "DeviceMesh 2 x 2", PLACES["2 x 2"][1], cells_of_job(complete=complete))
    assert {row.result for row in found} == {"120 of 120"}, "\n".join(map(str, found))


def test_an_epoch_over_two_data_parallel_dimensions_has_each_sample_once(hsdp: Ranks) -> None:
    """As with HSDP and tensor parallelism: four shares, each read by two ranks."""
    found = rows(hsdp, "DeviceMesh 2 x 2 x 2", HSDP_PLACES["both"][1], CELLS_OF_HSDP)
    assert {row.result for row in found} == {"120 of 120"}, "\n".join(map(str, found))


@pytest.mark.parametrize(("name", "places"), [("job", PLACES), ("hsdp", HSDP_PLACES)])
def test_ranks_are_counted_by_the_coordinates_of_the_mesh(
    name: str, places: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    """Also if the rank numbers of the mesh are not ascending."""
    for rank, found in enumerate(reported(request.getfixturevalue(name), "places")):
        assert found == {mesh: [numbers[rank], size] for mesh, (size, numbers) in places.items()}


@pytest.mark.parametrize("name", ["job", "hsdp"])
def test_each_rank_receives_the_broadcast_of_its_groups_first_rank(name: str, request: pytest.FixtureRequest) -> None:
    """Over one dimension and over two."""
    ranks = reported(request.getfixturevalue(name), "from rank 0")
    for found in ranks:
        assert all(broadcast == gathered for broadcast, gathered in found.values()), found
    assert len({found[mesh][0] for found in ranks for mesh in found}) > 1, "groups differ in their first rank"


@pytest.mark.parametrize(
    ("name", "places", "workers"), [("job", PLACES, 0), ("job", PLACES, 2), ("hsdp", HSDP_PLACES, 0)]
)
def test_the_state_of_all_ranks_resumes_in_any_mesh(
    name: str, places: dict[str, Any], workers: int, request: pytest.FixtureRequest
) -> None:
    """In the mesh where it was saved the same batches; in others the rest of the epoch, each sample once."""
    ranks, what = request.getfixturevalue(name), f"{workers} workers"
    here, place = next((mesh, numbers) for mesh, (_, numbers) in places.items())
    states = reported(ranks, f"state, {what}")
    assert [list(state) for state in states] == [["all_ranks"]] * len(ranks)
    assert len({state["all_ranks"] for state in states}) == 1
    assert reported(ranks, f"all ranks' state in {here}, {what}") == reported(ranks, f"after, {what}")
    before = [number for share in shares(reported(ranks, f"before, {what}"), place) for number in flat(share)]
    for mesh, (_, numbers) in places.items():
        after = [flat(share) for share in shares(reported(ranks, f"all ranks' state in {mesh}, {what}"), numbers)]
        assert outcome([before, *after]) == f"{NUM_SAMPLES} of {NUM_SAMPLES}", mesh


@pytest.mark.parametrize("workers", [0, 2])
def test_own_states_are_exchanged_in_the_data_parallel_group(job: Ranks, workers: int) -> None:
    """With each rank's own state the same batches follow; a mesh whose groups lack some of the states is refused."""
    assert reported(job, f"own state, {workers} workers") == reported(job, f"after, {workers} workers")
    for found in reported(job, f"own state in 1 x 4, {workers} workers"):
        assert "StateError: The state has no stream" in found["error"], found


def test_process_groups_exchange_in_any_order(job: Ranks) -> None:
    """Groups of ``new_group`` read and save by themselves; ranks of no or another group are refused."""
    epoch = shares(reported(job, "new_group"), [0, 1, 0, 1])
    assert outcome(map(flat, epoch)) == f"{NUM_SAMPLES} of {NUM_SAMPLES}"
    assert len({state["all_ranks"] for state in reported(job, "state of a group")}) == 1
    for rank, found in enumerate(reported(job, "not in the group")):
        assert f"ValueError: Rank {rank} is not part of this process group" in found["error"]


def test_different_listings_within_a_group_are_detected(job: Ranks) -> None:
    """In both ranks of the group, by their numbers in the job; the other group reads."""
    found = reported(job, "differing")
    for rank in (0, 2):
        assert found[rank]["error"].startswith("UnequalListingError: Rank 0 and rank 2 list different objects"), found
    assert len(flat(found[1])) == len(flat(found[3])) == NUM_SAMPLES // 2


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("no such dimension", "ValueError: The mesh has no dimension 'cp': its dimensions are 'dp', 'tp'."),
        ("which dimension", "ValueError: A mesh of 2 dimensions (its dimensions are 'dp', 'tp'): which of them split"),
        ("twice", "ValueError: dp=('dp', 'dp'): expected the names of one or more dimensions, each once"),
        ("numbers", "TypeError: dp=(0,): expected the names of one or more dimensions, such as"),
        ("without names", "ValueError: The mesh has no dimension 'dp': its dimensions have no names"),
        ("destroyed", "RuntimeError: RankGroup(members=((0, 1, 2, 3),)) has no process group in this process"),
    ],
)
def test_invalid_groups_are_refused(job: Ranks, name: str, says: str) -> None:
    """The error names the valid values."""
    for found in reported(job, name):
        assert says in found["error"]


def test_a_rank_outside_of_the_mesh_is_refused(job: Ranks) -> None:
    """The error names the ranks in the mesh; a mesh of one dimension needs no name."""
    first, second, *outside = reported(job, "not in the mesh")
    assert first == "World(rank=0, world_size=2, worker=0, num_workers=1, group=RankGroup(members=((0, 1),)))"
    assert second.startswith("World(rank=1, world_size=2")
    for rank, found in enumerate(outside, start=2):
        assert f"ValueError: Rank {rank} is not part of this mesh, which has the ranks [0, 1]" in found["error"]


def test_ranks_that_name_different_dimensions_are_detected(job: Ranks) -> None:
    """An exchange checks that each rank takes part once."""
    found = reported(job, "another order")
    assert (
        sum("Pass the same data-parallel dimensions" in rank["error"] for rank in found if isinstance(rank, dict)) == 3
    )


def test_group_none_is_the_group_of_all_ranks(job: Ranks) -> None:
    """As torch takes ``group=None``."""
    assert reported(job, "None is all ranks") == [4] * 4


def test_a_slice_of_a_mesh_and_a_copy_are_the_same_group(job: Ranks) -> None:
    """``mesh["dp"]`` makes an equal world, and a copy of a world exchanges with the same ranks."""
    assert reported(job, "part of a mesh") == [True] * 4
    assert reported(job, "copy") == [[0, 2], [1, 3], [0, 2], [1, 3]]
