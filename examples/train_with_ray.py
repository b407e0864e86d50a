"""Train with Ray Train, stop at any step by Ray's checkpoint, and resume with any number of workers.

    python examples/train_with_ray.py --ranks 2 --stop-after 20
    python examples/train_with_ray.py --ranks 3

The first command stops in mid-epoch. The second one resumes there: three ranks train on the rest of the epoch, exactly
once. ``--url`` is a folder or bucket of shards with a manifest; without it the handwritten digits of scikit-learn are
written to one.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn

import torchdata_remote as tdr
from torchdata_remote.core.iter_datapipe import IterableWrapper

NUM_STREAMS = 24  # any number of ranks x workers that divides this resumes


def digits(url: str) -> None:
    """1,797 handwritten digits of 8 x 8 pixels as shards, once."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    with tdr.ShardWriter(f"{url}/train-{{shard:02d}}.tar", max_shard_samples=75) as writer:
        for number, (image, label) in enumerate(zip(images, labels, strict=True)):
            writer.write({"__key__": f"{number:04d}", "npy": (image / 16).astype("float32"), "cls": int(label)})


def to_example(sample: dict[str, Any]) -> tuple[torch.Tensor, int]:
    """Pixels, float32 of shape (64,), and the digit."""
    return torch.from_numpy(sample["npy"]), sample["cls"]


def make_loader(url: str, num_workers: int) -> tdr.loaders.StatefulLoader:
    """Batches of 32; its state is that of all ranks, of which Ray stores rank 0's."""
    pipe = IterableWrapper([f"{url}/index.json"]).list_remote().shuffle_shards(seed=0).sharding_filter_rank()
    pipe = pipe.shard_tar_reader().equalize_ranks(mode="drop").shuffle_samples(buffer_size=200, seed=0)
    pipe = pipe.decode_sample().map(to_example)
    how: dict[str, Any] = {"num_streams": NUM_STREAMS, "state_of_all_ranks": True}
    return tdr.stateful_loader(pipe, batch_size=32, num_workers=num_workers, **how)


def train(config: dict[str, Any]) -> None:
    """What each rank runs."""
    from ray.train import get_checkpoint
    from ray.train.torch import prepare_data_loader, prepare_model

    model = prepare_model(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)))
    net = model.module if hasattr(model, "module") else model
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    loader = make_loader(config["url"], config["workers"])
    at = {"epoch": 0, "step": 0}
    checkpoint = get_checkpoint() or config["checkpoint"]
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            saved = torch.load(f"{folder}/state.pt")
        net.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        at = saved["at"]
    batches = prepare_data_loader(loader)
    for epoch in range(at["epoch"], config["epochs"]):
        samples = 0
        for number, (pixels, labels) in enumerate(batches, 1):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(pixels), labels).backward()  # type: ignore[no-untyped-call]  # torch's
            optimizer.step()
            loader.trained(number)  # Ray has read the next batch already
            samples += len(labels)
            at["step"] += 1
            if at["step"] == config["stop_after"]:
                save(net, optimizer, loader, at, samples)
                return
        at["epoch"] = epoch + 1
        save(net, optimizer, loader, at, samples)


def save(
    net: nn.Module, optimizer: torch.optim.Optimizer, loader: tdr.loaders.StatefulLoader, at: Any, samples: int
) -> None:
    """Report a checkpoint; each rank has to do it, and rank 0's is stored."""
    from ray.train import Checkpoint, get_context, report

    state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict(), "at": at}
    with tempfile.TemporaryDirectory() as folder:
        torch.save(state, f"{folder}/state.pt")
        is_first = get_context().get_world_rank() == 0
        report({"samples": samples, **at}, checkpoint=Checkpoint.from_directory(folder) if is_first else None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="train_with_ray/digits", help="of shards")
    parser.add_argument("--checkpoints", default="train_with_ray/checkpoints", help="folder")
    parser.add_argument("--ranks", type=int, default=1, help="Ray's workers, which train")
    parser.add_argument("--workers", type=int, default=0, help="processes of each rank that load")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--stop-after", type=int, default=-1, metavar="STEPS")
    options = parser.parse_args()

    import ray
    from ray.train import Checkpoint, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    folder = Path(options.checkpoints).resolve()
    url = options.url if "://" in options.url else str(Path(options.url).resolve())
    if "://" not in url and not Path(url, "index.json").exists():
        digits(url)
    last = max(folder.rglob("state.pt"), key=lambda file: file.stat().st_mtime, default=None)
    ray.init(num_cpus=options.ranks + 1, include_dashboard=False, log_to_driver=False)
    given = {"url": url, "workers": options.workers, "epochs": options.epochs, "stop_after": options.stop_after}
    done = TorchTrainer(
        train,
        train_loop_config={**given, "checkpoint": None if last is None else Checkpoint(str(last.parent))},
        scaling_config=ScalingConfig(num_workers=options.ranks),
        run_config=RunConfig(storage_path=str(folder)),
    ).fit()
    metrics = dict(done.metrics or {})
    print(f"epoch {metrics['epoch']}, step {metrics['step']}: {metrics['samples']} samples of rank 0")
    ray.shutdown()


if __name__ == "__main__":
    main()
