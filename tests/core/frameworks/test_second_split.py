"""A framework that splits again is refused by name; tests/trainers runs the frameworks with several processes."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest

import torchdata_remote as tdr
from torchdata_remote.core.iter_datapipe import IterableWrapper
from torchdata_remote.errors import SplitTwiceError

data_loader = pytest.importorskip("accelerate.data_loader")


def chain(**options: Any) -> Any:
    """A chain over split shards."""
    with tdr.ShardWriter("memory://second/{shard}.tar", max_shard_samples=1, overwrite=True) as writer:
        for number in range(4):
            writer.write({"__key__": str(number), "cls": number})
    urls = IterableWrapper([f"memory://second/{shard}.tar" for shard in range(4)])
    return urls.sharding_filter_rank(**options).shard_tar_reader().map(key)


def key(sample: dict[str, Any]) -> str:
    return str(sample["__key__"])


def shard(dataset: Any, num_processes: int) -> Any:
    """Accelerate's own class, which reads everything and keeps the share of a process."""
    return data_loader.IterableDatasetShard(dataset, batch_size=1, num_processes=num_processes, process_index=0)


@pytest.mark.parametrize("of", [lambda pipe: pipe, tdr.Resumable])
def test_a_split_by_accelerate_is_refused_with_the_remedy(of: Callable[[Any], Any]) -> None:
    """A chain and a ``Resumable``."""
    with pytest.raises(
        SplitTwiceError, match=r"accelerate's IterableDatasetShard .*torchdata_remote\.stateful_loader\("
    ):
        next(iter(shard(of(chain()), 2)))


def test_one_process_is_not_refused() -> None:
    """No sample is lost there."""
    assert sorted(shard(chain(), 1)) == list("0123")


@pytest.mark.parametrize("options", [{"split": False}, {"world": tdr.World()}])
@pytest.mark.parametrize("of", [lambda pipe: pipe, tdr.Resumable])
def test_a_chain_that_gives_each_process_everything_is_accepted(
    options: dict[str, Any], of: Callable[[Any], Any]
) -> None:
    """By ``split=False``, or by a world of one rank."""
    assert list(shard(of(chain(**options)), 2)) == ["0", "2"]


def test_an_unknown_class_of_accelerate_is_assumed_to_split(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later release may have other ones: an error is better than lost samples."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    code = "class Newer:\n    def __init__(self, d): self.d = d\n    def __iter__(self): yield from self.d\n"
    scope: dict[str, Any] = {"__name__": "accelerate.data_loader"}
    exec(code, scope)  # a class of that module
    with pytest.raises(SplitTwiceError, match="accelerate's Newer"):
        list(scope["Newer"](chain()))


def test_a_pipe_in_a_worker_knows_the_class_that_sent_it() -> None:
    """There it is not on the stack."""
    chain()  # writes the shard
    urls = IterableWrapper(["memory://second/0.tar"])
    reader = urls.shard_tar_reader()  # split by nobody
    scope: dict[str, Any] = {"__name__": "accelerate.data_loader", "pickle": pickle}
    exec("class Sender:\n    num_processes = 2\n    def send(self, pipe): return pickle.dumps(pipe)\n", scope)
    sent = pickle.loads(scope["Sender"]().send(reader))
    with pytest.raises(SplitTwiceError, match="accelerate's Sender"):
        list(sent)
    assert len(list(pickle.loads(pickle.dumps(reader)))) == 1
