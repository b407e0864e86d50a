"""``torchdata.nodes`` over a chain: each sample once, epochs of their own orders, resumed by any number of ranks."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import torchdata_remote as tdr
from tests.support.launch import launch

from .data import samples_of
from .table import WHOLE, Row, outcome

FRAMEWORK, LOADER, WORKERS = "torchdata.nodes", "to_node(pipe)", 2
CHECKS = (
    "_plain_json",
    "_resumes_anywhere",
    "_an_epoch_has_an_item",
    "_weighted",
    "_merges",
    "_unsplit_chains_are_refused",
    "_errors_reach_the_loader",
)
pytestmark = pytest.mark.timeout(900)  # the first test waits for all launches
HAS_NODES = importlib.util.find_spec("torchdata.nodes") is not None


@pytest.fixture(scope="module")
def torchdata_with_nodes(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A torchdata that has nodes, in the path of started processes: 0.9, which DataLoader2 needs, has none."""
    with pytest.MonkeyPatch.context() as patch:
        if not HAS_NODES:
            folder = tmp_path_factory.mktemp("torchdata")
            command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder)]
            subprocess.run([*command, "torchdata==0.11.0"], check=True, timeout=200)
            patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")])))
        yield


@pytest.fixture(scope="module")
def runs(dataset: Path, torchdata_with_nodes: None, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Any]:
    """Two ranks read epochs and stop in the second one; two and one rank resume it."""
    place = str(tmp_path_factory.mktemp("nodes"))
    given: dict[str, Any] = {"folder": str(dataset), "checkpoint": f"{place}/state.pt", "num_workers": WORKERS}
    return {size: launch("tests.trainers.nodes_program", size, **given) for size in (2, 1)}


@pytest.mark.parametrize("check", CHECKS)
def test_a_graph_over_a_chain_has_the_state_of_the_chain(runs: dict[int, Any], check: str) -> None:
    """Plain JSON; resumes anywhere; counts epochs by items; by weights; merged; unsplit chains and errors."""
    assert runs[1][0][check] is True


def test_ranks_that_begin_at_different_places_or_have_different_chains_are_refused(runs: dict[int, Any]) -> None:
    for rank in runs[2]:
        assert isinstance(rank["load in rank 0"], list), rank
        assert "Ranks 0 and 1 differ in the chain" in rank["another seed"]["error"]


def test_each_sample_once_an_epoch_and_resumed_by_any_number_of_ranks(runs: dict[int, Any]) -> None:
    two = runs[2]
    epochs = [rank["epochs"] for rank in two]
    rows = [Row(FRAMEWORK, LOADER, "2", WORKERS, outcome(_part(epochs, number))) for number in range(3)]
    stopped = [rank["stop"] for rank in two]
    for size, ranks in runs.items():
        rest = [rank["resume"] for rank in ranks]
        found = outcome([*stopped, *_part(rest, 0)])
        rows.append(Row(FRAMEWORK, LOADER, f"2 -> {size}", WORKERS, found, "resume"))
        rows.append(Row(FRAMEWORK, LOADER, f"{size}", WORKERS, outcome(_part(rest, 1))))
    assert {row.result for row in rows} == {WHOLE}, "\n".join(map(str, rows))
    resumed = [rank["resume"] for rank in two]
    for whole, before, after in zip(epochs, stopped, resumed, strict=True):
        assert [whole[1], whole[2]] == [before + after[0], after[1]]
        assert len({str(epoch) for epoch in whole}) == 3


def _part(ranks: list[Any], number: int) -> list[Any]:
    """That epoch of each rank, or its error."""
    return [rank if isinstance(rank, dict) else rank[number] for rank in ranks]


@pytest.mark.skipif(HAS_NODES, reason="torchdata has nodes")
def test_a_torchdata_without_nodes_is_an_import_error(dataset: Path) -> None:
    """The error names a release that has them."""
    with pytest.raises(ImportError, match=r"Use 0\.10 or later.*torchdata>=0\.11"):
        tdr.to_node(samples_of(dataset))
    with pytest.raises(ValueError, match="num_streams belongs to the Resumable"):
        tdr.to_node(tdr.Resumable(samples_of(dataset)), num_streams=2)
