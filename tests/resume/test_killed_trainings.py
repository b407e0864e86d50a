"""Trainings that are killed at any moment, and go on from their last saved state with no sample lost or repeated."""

from __future__ import annotations

import contextlib
import itertools
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import torchdata_remote as tdr
from torchdata_remote.testing import write_small_shards

NUM_SHARDS, SAMPLES_PER_SHARD = 12, 17
NUM_SAMPLES = NUM_SHARDS * SAMPLES_PER_SHARD

# Each line on stdin allows one step, and its end allows all: so the training cannot run ahead of the test, and is
# killed at an unknown point. An all_reduce keeps ranks in step; one of them may have saved a step that another has
# not, so each keeps two states, and the latest one that all have is loaded.
TRAINING = r"""
import json, os, sys
from pathlib import Path

import torch.distributed
import torchdata_remote as tdr


def make_loader(given):
    pipe = tdr.IterableWrapper([given["manifest"]]).list_remote().shuffle_shards(seed=3).sharding_filter_rank()
    pipe = pipe.async_prefetch(interleave=2).shard_tar_reader(interleave=2)
    if given["equalize"] is not None:
        pipe = pipe.equalize_ranks(mode=given["equalize"])
    pipe = pipe.shuffle_samples(buffer_size=4, seed=3).to_tuple("__key__").map(key_of)
    return tdr.stateful_loader(
        pipe, batch_size=given["batch_size"], num_workers=given["num_workers"], num_streams=given["num_streams"]
    )


def key_of(values):
    return values[0]


def agreed(number, how):
    if not torch.distributed.is_initialized():
        return number
    shared = torch.tensor(number)
    torch.distributed.all_reduce(shared, how)
    return int(shared)


def main():
    given = json.loads(sys.argv[1])
    folder, rank, world_size = Path(given["folder"]), given["rank"], given["world_size"]
    if world_size > 1:
        torch.distributed.init_process_group("gloo", init_method=given["meet"], rank=rank, world_size=world_size)
    loader, smallest, largest = make_loader(given), torch.distributed.ReduceOp.MIN, torch.distributed.ReduceOp.MAX
    log = open(folder / f"log-{rank}", "ab")
    states = sorted(folder.glob(f"state-{rank}-*.json"))
    step = agreed(int(states[-1].stem.rpartition("-")[2]) if states else 0, smallest)
    for path in states:
        if int(path.stem.rpartition("-")[2]) > step:
            path.unlink()  # its end of the log is gone below
    if step > 0:
        saved = json.loads((folder / f"state-{rank}-{step:06d}.json").read_text())
        loader.load_state_dict(saved["state"])
        log.truncate(saved["log_bytes"])
    else:
        log.truncate(0)
        if given["states"] is not None:  # of another world: one rank has them, the others learn them from it
            loader.load_state_dict(given["states"] if rank == 0 else [])
    log.seek(0, os.SEEK_END)
    print("ready", flush=True)
    batches, epoch = iter(loader), loader.state_dict()["epoch"]
    sys.stdin.readline()
    while epoch < given["num_epochs"]:
        batch = next(batches, None)
        if not agreed(int(batch is not None), largest):
            batches, epoch = iter(loader), epoch + 1
            continue
        step += 1
        for key in batch or []:
            log.write(f"{epoch} {key}\n".encode())
            log.flush()
        print("logged", flush=True)
        saved = json.dumps({"state": loader.state_dict(), "log_bytes": log.tell()})
        (folder / f"new-{rank}").write_text(saved)
        print("written", flush=True)
        os.replace(folder / f"new-{rank}", folder / f"state-{rank}-{step:06d}.json")
        for old in sorted(folder.glob(f"state-{rank}-*.json"))[:-2]:
            old.unlink()
        print("saved", flush=True)
        sys.stdin.readline()
    print("complete", flush=True)


if __name__ == "__main__":
    main()
"""
LINES_OF_A_STEP = 3
Data = tuple[str, list[str]]


class Ranks:
    """The processes of a training, which end with the block, by SIGKILL.

    Args:
        folder: for the script, logs and states.
        world_size: how many.
        **given: what the script is told.
    """

    def __init__(self, folder: Path, world_size: int, **given: Any) -> None:
        self.folder, self.world_size = folder, world_size
        self._given = {"equalize": None, "states": None, **given, "folder": str(folder), "world_size": world_size}
        self.processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Ranks:
        script = self.folder / "training.py"
        script.write_text(TRAINING)
        meet = self.folder / "meet"
        meet.unlink(missing_ok=True)
        for rank in range(self.world_size):
            given = {**self._given, "rank": rank, "meet": f"file://{meet}"}
            with (self.folder / f"errors-{rank}").open("w") as errors:
                self.processes.append(
                    subprocess.Popen(
                        [sys.executable, str(script), json.dumps(given)],
                        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.getcwd()},
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=errors,
                        text=True,
                        start_new_session=True,  # so that its workers can be ended with it
                    )
                )
        return self

    def __exit__(self, *exception: object) -> None:
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def allow(self, num_steps: int | None) -> None:
        """Let each rank run so many steps; ``None`` lets it run to its end."""
        for process in self.processes:
            assert process.stdin is not None
            if num_steps is None:
                process.stdin.close()
            else:
                process.stdin.write("\n" * num_steps)
                process.stdin.flush()

    def read(self, rank: int, num_lines: int | None = None) -> None:
        """Wait for so many lines of a rank, or for its end."""
        output = self.processes[rank].stdout
        assert output is not None
        line = ""
        for line in itertools.islice(iter(output.readline, ""), num_lines):
            if num_lines is None and line == "complete\n":
                break
        expected = line == "complete\n" if num_lines is None else line != ""
        assert expected, f"rank {rank} ended after {line!r}: {(self.folder / f'errors-{rank}').read_text()}"

    def complete(self) -> None:
        """Let all ranks run to their end."""
        self.allow(None)
        for rank in range(len(self.processes)):
            self.read(rank)


def logs(folder: Path) -> list[list[str]]:
    """The log of each rank: epoch and key."""
    return [path.read_text().splitlines() for path in sorted(folder.glob("log-*"))]


def saved_at(folder: Path, rank: int, step: int) -> dict[str, Any]:
    """What a rank saved at a step."""
    saved: dict[str, Any] = json.loads((folder / f"state-{rank}-{step:06d}.json").read_text())
    return saved


def common_step(folder: Path, world_size: int) -> int:
    """The last one that all ranks have saved."""
    last = [max(folder.glob(f"state-{rank}-*.json"), default=None) for rank in range(world_size)]
    return min(0 if path is None else int(path.stem.rpartition("-")[2]) for path in last)


def train(folder: Path, world_size: int = 1, **given: Any) -> list[list[str]]:
    """Train to the end; returns the log of each rank."""
    with Ranks(folder, world_size, **given) as ranks:
        ranks.complete()
    return logs(folder)


def train_and_kill(folder: Path, chance: random.Random, num_steps: int, world_size: int = 1, **given: Any) -> None:
    """Start a training with a limit of steps, and kill one of its ranks within them."""
    victim, num_lines = chance.randrange(world_size), chance.randint(1, LINES_OF_A_STEP * num_steps)
    with Ranks(folder, world_size, **given) as ranks:
        ranks.allow(num_steps)
        ranks.read(victim, 1 + num_lines)
        ranks.processes[victim].kill()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[str]]:
    """A manifest, and the keys of its samples."""
    folder = tmp_path_factory.mktemp("data").as_uri()
    samples = write_small_shards(folder, num_shards=NUM_SHARDS, samples_per_shard=SAMPLES_PER_SHARD)
    return f"{folder}/index.json", sorted(sample["__key__"] for sample in samples)


def keys_of(epoch: int, log: list[str]) -> list[str]:
    return sorted(line.split()[1] for line in log if line.startswith(f"{epoch} "))


@pytest.mark.slow
@pytest.mark.parametrize("num_kills", [1, 4])
def test_a_killed_training_goes_on_in_other_worlds_with_each_sample_exactly_once(
    tmp_path: Path, data: Data, num_kills: int
) -> None:
    """From 2 ranks x 2 workers to 3 x 1 and to 1 x 2."""
    manifest, keys = data
    chance, states, handed_out = random.Random(0), None, list[str]()
    for world_size, num_workers in [(2, 2), (3, 1), (1, 2)]:
        folder = tmp_path / f"{world_size}x{num_workers}"
        folder.mkdir()
        given = {"manifest": manifest, "num_workers": num_workers, "num_streams": 24, "batch_size": 2, "num_epochs": 1}
        if world_size == 1:
            handed_out += itertools.chain.from_iterable(train(folder, world_size, states=states, **given))
            break
        for _ in range(num_kills):
            train_and_kill(folder, chance, 12 // num_kills, world_size, states=states, **given)
        step = common_step(folder, world_size)
        assert step > 0
        saved = [saved_at(folder, rank, step) for rank in range(world_size)]
        states = [one["state"] for one in saved]
        for rank, one in enumerate(saved):
            handed_out += (folder / f"log-{rank}").read_bytes()[: one["log_bytes"]].decode().splitlines()
    assert keys_of(0, handed_out) == keys


# A worker that is killed


def make_loader(manifest: str) -> tdr.loaders.StatefulLoader:
    pipe = tdr.IterableWrapper([manifest]).list_remote().shuffle_shards(seed=3).sharding_filter_rank()
    samples = pipe.shard_tar_reader(interleave=2).shuffle_samples(buffer_size=4, seed=3).to_tuple("__key__")
    return tdr.stateful_loader(samples, batch_size=4, num_workers=2, num_streams=4)


def take_all(batches: Iterator[Any], into: list[Any]) -> None:
    for batch in batches:
        into.append(batch)


def test_a_killed_worker_is_an_error_and_the_state_before_loses_and_repeats_nothing(data: Data) -> None:
    manifest, _ = data
    whole = list(make_loader(manifest))
    others = multiprocessing.active_children()
    loader = make_loader(manifest)
    batches = iter(loader)
    head = [next(batches) for _ in range(5)]
    victim = next(child for child in multiprocessing.active_children() if child not in others)
    victim.kill()
    victim.join()
    with pytest.raises(RuntimeError, match="DataLoader worker"):
        take_all(batches, head)
    assert len(head) < len(whole)
    again = make_loader(manifest)
    again.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert head + list(again) == whole
