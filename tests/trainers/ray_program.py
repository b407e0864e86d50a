"""Ray Train: an epoch of each loader, and checkpoints that are saved and resumed, on one local cluster."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch

import torchdata_remote as tdr
from tests.support.launch import report

from .data import NUM_STREAMS, loader_of, numbers_of, pipe_of

STOP_AFTER = 5  # batches
BATCH_SIZE = 4


def main(*, folder: str, loaders: list[str], world_sizes: list[int], num_workers: int, storage: str) -> None:
    """Report for each number of ranks what each loader delivers, and what is trained on around a checkpoint.

    Args:
        folder: of the dataset.
        loaders: whose epoch is reported.
        world_sizes: the first one saves a checkpoint, which all resume.
        num_workers: of each loader.
        storage: folder for checkpoints.
    """
    os.environ.update(RAY_AUTH_MODE="disabled", RAY_TRAIN_V2_ENABLED="1", RAY_USAGE_STATS_ENABLED="0")
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    ray.init(num_cpus=max(world_sizes) + 1, include_dashboard=False, log_to_driver=False)
    for world_size in world_sizes:
        results = Path(storage, f"results-{world_size}")
        results.mkdir()
        given: dict[str, Any] = {
            "folder": folder,
            "loaders": loaders,
            "results": str(results),
            "storage": storage,
            "num_workers": num_workers,
        }
        TorchTrainer(
            train,
            train_loop_config={**given, "saves": world_size == world_sizes[0]},
            scaling_config=ScalingConfig(num_workers=world_size, use_gpu=False),
            run_config=RunConfig(storage_path=storage, name=f"run-{world_size}"),
        ).fit()
        ranks = [json.loads((results / f"{rank}.json").read_text()) for rank in range(world_size)]
        report(f"{world_size}", ranks)
    ray.shutdown()


def train(config: dict[str, Any]) -> None:
    """What Ray runs in each rank."""
    import ray.train
    from ray.train.torch import prepare_data_loader, prepare_model

    multiprocessing.set_forkserver_preload(["tests.trainers.data"])
    model = prepare_model(torch.nn.Linear(4, 1))
    found: dict[str, Any] = {}

    def step(batch: Any) -> list[int]:
        model(batch["x"]).sum().backward()
        return numbers_of(batch)

    def attempt(name: str, function: Any) -> None:
        try:
            found[name] = function()
        except Exception as error:  # it is what the row shows
            found[name] = {"error": f"{type(error).__name__}: {error}"}

    workers = config["num_workers"]

    def epoch(name: str) -> list[int]:
        given = loader_of(name, Path(config["folder"]), batch_size=BATCH_SIZE, num_workers=workers)
        return [number for batch in prepare_data_loader(given) for number in step(batch)]

    def stateful() -> Any:
        options: dict[str, Any] = {"num_workers": workers, "num_streams": NUM_STREAMS, "state_of_all_ranks": True}
        return tdr.stateful_loader(pipe_of(Path(config["folder"])), batch_size=BATCH_SIZE, **options)

    def save_mid_epoch() -> list[list[int]]:
        loader = stateful()
        prepared, numbers = prepare_data_loader(loader), []
        for number, batch in enumerate(prepared, 1):
            numbers.append(step(batch))
            loader.trained(number)  # Ray's wrapper reads one ahead
            if number == STOP_AFTER:
                save({"loader": loader.state_dict()})
        return numbers

    def save(state: dict[str, Any]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = None
            if ray.train.get_context().get_world_rank() == 0:
                torch.save(state, f"{folder}/state.pt")
                checkpoint = ray.train.Checkpoint.from_directory(folder)
            ray.train.report({}, checkpoint=checkpoint, checkpoint_dir_name="mid-epoch")

    def resume() -> list[list[int]]:
        (path,) = Path(config["storage"]).glob("run-*/mid-epoch/state.pt")
        loader = stateful()
        loader.load_state_dict(torch.load(path)["loader"])
        return [step(batch) for batch in prepare_data_loader(loader)]

    for name in config["loaders"]:
        attempt(f"Ray Train: {name}, {workers} workers", partial(epoch, name))
    if config["saves"]:
        attempt("whole", save_mid_epoch)
    attempt("resumed", resume)
    rank = ray.train.get_context().get_world_rank()
    Path(config["results"], f"{rank}.json").write_text(json.dumps(found))
    ray.train.report({})


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
