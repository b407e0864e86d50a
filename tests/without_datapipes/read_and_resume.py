"""Chain, iterate and resume; writes as JSON what came.

Usage: read_and_resume.py FOLDER NUM_WORKERS START_METHOD
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from typing import Any

from torch.utils.data import DataLoader

import torchdata_remote as tdr
from torchdata_remote.core.iter_datapipe import IterDataPipe


def number(sample: Any) -> int:
    return int(sample["__key__"])


def is_wanted(value: int) -> bool:
    return value % 10 != 3


def chain(folder: str) -> Any:
    shards = tdr.IterableWrapper([folder]).list_remote(pattern="*.tar").shuffle_shards(seed=0)
    samples = shards.sharding_filter_rank().async_prefetch().shard_tar_reader().shuffle_samples(buffer_size=8)
    return samples.map(number).filter(is_wanted)


def resumed(folder: str, workers: dict[str, Any]) -> dict[str, Any]:
    """Two batches, then the rest by a new loader."""
    first = tdr.stateful_loader(chain(folder), batch_size=4, **workers)
    batches = iter(first)
    began = [next(batches).tolist() for _ in range(2)]
    state = json.loads(json.dumps(first.state_dict()))
    del batches, first
    second = tdr.stateful_loader(chain(folder), batch_size=4, **workers)
    second.load_state_dict(state)
    return {"began": began, "state": state, "rest": [batch.tolist() for batch in second]}


def main() -> None:
    folder, num_workers, start_method = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    context = start_method if num_workers else None
    workers: dict[str, Any] = {"num_workers": num_workers, "multiprocessing_context": context}
    multiprocessing.set_forkserver_preload(["torchdata_remote.loaders"])  # once, and not in each worker
    pipe = chain(folder)
    loader = DataLoader(pipe, batch_size=None, **workers)
    epochs = [sorted(loader)]
    pipe.datapipe.datapipe.set_epoch(1)
    epochs.append(sorted(loader))
    data = tdr.Resumable(chain(folder))
    items = iter(data)
    head = [next(items) for _ in range(7)]
    tail = tdr.Resumable(chain(folder))
    tail.load_state_dict(data.state_dict())
    told = {
        "base": IterDataPipe.__module__,
        "epochs": epochs,
        "direct": head + list(tail),
        "batches": [list(batch) for batch in chain(folder).batch(4, drop_last=True)],
        **resumed(folder, workers if num_workers else {"num_workers": 0}),
    }
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main()
