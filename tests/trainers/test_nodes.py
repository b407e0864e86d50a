"""``torchdata.nodes`` over a chain: each sample once, epochs of their own orders, resumed by any number of ranks."""

from __future__ import annotations

import importlib.util
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import torchdata_remote as tdr
from tests.support.paths import ROOT
from torchdata_remote.errors import StateError

from .data import samples_of
from .launch import Row, launch, outcome

FRAMEWORK, LOADER, WORKERS = "torchdata.nodes", "to_node(pipe)", (0, 2)
CHECKS = (
    "_plain_json",
    "_resumes_anywhere",
    "_an_epoch_has_an_item",
    "_weighted",
    "_merges",
    "_unsplit_chains_are_refused",
    "_errors_reach_the_loader",
)
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


@pytest.mark.usefixtures("torchdata_with_nodes")
def test_exactly_once_and_resumed_by_one_two_and_three_ranks(dataset: Path, tmp_path: Path) -> None:
    """Two ranks read epochs and stop in the second one; two, one and three ranks resume it."""
    given: dict[str, Any] = {"folder": str(dataset), "checkpoints": str(tmp_path), "num_workers": WORKERS}
    program = "tests.trainers.nodes_program"
    two = launch(program, 2, **given, stop=True)
    three = launch(program, 3, **given, stop=False)
    one = launch(program, 1, **given, stop=False, single=True)
    assert {name: one[0][name] for name in CHECKS} == dict.fromkeys(CHECKS, True)
    rows = []
    for workers in WORKERS:
        for rank in two:
            assert isinstance(rank[f"load in rank 0, {workers} workers"], list), rank
            assert "ranks 0 and 1 differ in the chain" in rank[f"another seed, {workers} workers"]["error"]
        epochs = [rank[f"epochs, {workers} workers"] for rank in two]
        for number in range(3):
            rows.append(Row(FRAMEWORK, LOADER, "2", workers, outcome(_part(epochs, number))))
        stopped = [rank[f"stop, {workers} workers"] for rank in two]
        for world, ranks in {"2 -> 2": two, "2 -> 3": three, "2 -> 1": one}.items():
            rest = [rank[f"resume, {workers} workers"] for rank in ranks]
            rows.append(Row(FRAMEWORK, LOADER, world, workers, outcome([*stopped, *_part(rest, 0)]), "resume"))
            rows.append(Row(FRAMEWORK, LOADER, world[-1], workers, outcome(_part(rest, 1))))
        resumed = [rank[f"resume, {workers} workers"] for rank in two]
        for whole, before, after in zip(epochs, stopped, resumed, strict=True):
            assert [whole[1], whole[2]] == [before + after[0], after[1]]
            assert len({str(epoch) for epoch in whole}) == 3
    assert {row.result for row in rows} == {"120 of 120"}, "\n".join(map(str, rows))


def _part(ranks: list[Any], number: int) -> list[Any]:
    """That epoch of each rank, or its error."""
    return [rank if isinstance(rank, dict) else rank[number] for rank in ranks]


@pytest.mark.usefixtures("torchdata_with_nodes")
def test_the_nodes_recipe_is_resumed_by_another_number_of_processes(tmp_path: Path) -> None:
    """Two processes stop after three steps; one reads the rest of the epoch, and another epoch."""
    with tdr.ShardWriter(f"{tmp_path}/{{shard}}.tar", max_shard_samples=6) as writer:
        for number in range(48):
            picture = io.BytesIO()
            Image.new("RGB", (4, 4), (number, 90, 200)).save(picture, "PNG")
            writer.write({"__key__": f"{number:02d}", "png": picture.getvalue(), "cls": number % 10})

    def run(num_processes: int, *options: str) -> str:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_processes}"]
        command += ["examples/train_with_nodes.py", f"--url={tmp_path}/index.json", "--epochs=2", *options]
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        command += [f"--checkpoint={tmp_path}/checkpoint.pt"]
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "epoch 0: 24 samples by 2 ranks" in run(2, "--stop-after=3")
    printed = run(1)
    assert "epoch 0: 24 samples by 1 ranks" in printed
    assert "epoch 1: 48 samples by 1 ranks" in printed


def test_states_of_different_steps_are_refused() -> None:
    """Unless a rank has fewer items, and all of them were handed out."""

    def state(num_yielded: int, stream: int, at: Any) -> dict[str, Any]:
        of_chain = {"version": 2, "chain": [], "listing": None, "epoch": 0, "num_streams": 2, "streams": [[stream, at]]}
        return {"num_yielded": num_yielded, "root": {"source": of_chain}}

    begun = {"passed": 3, "at": {"next": 1}}
    with pytest.raises(StateError, match=r"different steps: their loaders have handed out \[3, 5\] items"):
        tdr.merge_node_states([state(3, 0, begun), state(5, 1, begun)])
    merged = tdr.merge_node_states([state(5, 0, begun), state(3, 1, "ended")])
    assert merged["root"]["source"]["streams"] == [[0, begun], [1, "ended"]]


@pytest.mark.skipif(HAS_NODES, reason="torchdata has nodes")
def test_a_torchdata_without_nodes_is_an_import_error(dataset: Path) -> None:
    """The error names a release that has them."""
    with pytest.raises(ImportError, match=r"Use 0\.10 or later.*torchdata>=0\.11"):
        tdr.to_node(samples_of(dataset))
    with pytest.raises(ValueError, match="num_streams belongs to the Resumable"):
        tdr.to_node(tdr.Resumable(samples_of(dataset)), num_streams=2)
