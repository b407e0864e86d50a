"""Lambdas and other values that cannot be sent to worker processes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import fsspec
import pytest
from torch.utils.data import DataLoader
from torch.utils.data.datapipes.iter import IterableWrapper

import torchdata_remote as tdr
from torchdata_remote.core.shared_names import SHARED
from torchdata_remote.errors import WorkerStartError

SAMPLES = [{"__key__": f"cat/{number}", "txt": b"x"} for number in range(4)]
WORKERS: dict[str, Any] = {"num_workers": 1, "multiprocessing_context": "forkserver"}


def unchanged(item: Any) -> Any:
    return item


def chain() -> Any:
    return IterableWrapper(SAMPLES).sharding_filter_rank()


def local() -> Callable[[Any], Any]:
    def inner(item: Any) -> Any:
        return item

    return inner


LAMBDA = lambda item: item  # noqa: E731
CHAINS: dict[str, Callable[[], Any]] = {
    r"decode_sample\(decoders=...\) holds a lambda": lambda: chain().decode_sample({"txt": LAMBDA}),
    r"decode_sample\(decoders=...\) holds the local function 'local": lambda: chain().decode_sample({"txt": local()}),
    r"label_from_path\(...\) holds a lambda": lambda: chain().label_from_path(classes=LAMBDA),
    r"map\(fn=...\) holds a lambda": lambda: chain().map(LAMBDA).to_tuple("txt"),
    r"map\(fn=...\) holds a lambda \(test_worker_start.py, line \d+\), which": lambda: chain().map(LAMBDA),
    r"filter\(filter_fn=...\) holds a lambda": lambda: chain().filter(LAMBDA).map(unchanged),
    r"decode_sample\(decoders=...\) holds a lambda \(test_worker_start.py, line \d+\), which cannot be sent": lambda: (
        chain().decode_sample({"txt": partial(LAMBDA)}).to_tuple("txt")
    ),
}


@pytest.mark.parametrize("loader", ["DataLoader", "Resumable", "stateful_loader"])
@pytest.mark.parametrize("message", CHAINS)
def test_a_lambda_is_named_by_its_pipe_and_argument(loader: str, message: str) -> None:
    """Before a worker starts, in torch's loader too; says what to use instead."""
    pipe = CHAINS[message]()
    loaders: dict[str, Callable[[], Iterator[Any]]] = {
        "DataLoader": lambda: iter(DataLoader(pipe, batch_size=None, **WORKERS)),
        "Resumable": lambda: iter(DataLoader(tdr.Resumable(pipe, num_streams=1), batch_size=None, **WORKERS)),
        "stateful_loader": lambda: iter(tdr.stateful_loader(pipe, **WORKERS)),
    }
    with pytest.raises(WorkerStartError, match=f"^{message}.*Use a module-level function"):
        loaders[loader]()


def test_a_pipe_whose_functional_name_another_package_has_too_is_named_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The registry has the other package's pipe under this name."""
    monkeypatch.setitem(SHARED, "decode_sample", tdr.DecodeSample)
    monkeypatch.setitem(tdr.IterDataPipe.functions, "decode_sample", IterableWrapper)
    pipe = tdr.DecodeSample(chain(), {"txt": LAMBDA})
    with pytest.raises(WorkerStartError, match=r"^decode_sample\(decoders=...\) holds a lambda"):
        iter(DataLoader(pipe, batch_size=None, **WORKERS))


def test_a_lambda_of_a_loader_is_named_by_its_argument() -> None:
    """``collate_fn`` and ``worker_init_fn``, of all our loaders; ``transform`` of a dataset."""
    with pytest.raises(WorkerStartError, match=r"^stateful_loader\(collate_fn=...\) holds a lambda"):
        iter(tdr.stateful_loader(chain(), batch_size=2, collate_fn=LAMBDA, **WORKERS))
    with pytest.raises(WorkerStartError, match=r"^stateful_loader\(worker_init_fn=...\) holds a lambda"):
        iter(tdr.stateful_loader(chain(), worker_init_fn=LAMBDA, **WORKERS))
    with pytest.raises(WorkerStartError, match=r"^PrefetchingLoader\(collate_fn=...\) holds a lambda"):
        iter(tdr.PrefetchingLoader(files(), batch_size=2, collate_fn=LAMBDA, **WORKERS))


def test_a_lambda_of_torchs_own_loader_is_named_by_its_argument() -> None:
    """If it reads a chain or a dataset of this package."""
    for dataset in (chain(), chain().map(unchanged), files()):
        for name in ("collate_fn", "worker_init_fn"):
            options: dict[str, Any] = {**WORKERS, name: LAMBDA}
            with pytest.raises(WorkerStartError, match=rf"^DataLoader\({name}=...\) holds a lambda"):
                iter(DataLoader(dataset, **options))


def test_another_value_that_does_not_pickle_is_named_too() -> None:
    """Such as a lock within an object; the error of pickle is the cause."""
    pipe = chain().decode_sample({"txt": partial(unchanged, threading.RLock())})
    with pytest.raises(WorkerStartError, match=r"^decode_sample\(decoders=...\) holds a dict") as caught:
        iter(tdr.stateful_loader(pipe, **WORKERS))
    assert "cannot pickle" in str(caught.value.__cause__)


def test_chains_with_lambdas_run_without_processes_and_when_forked() -> None:
    """Also under torch's loader, which pickles the collections of a pipe to find its sources."""
    pipe = chain().decode_sample({"txt": lambda data: len(data)}).to_tuple("txt")
    assert list(DataLoader(pipe, batch_size=None)) == [[1]] * 4
    assert list(tdr.stateful_loader(pipe)) == [[1]] * 4
    forked = DataLoader(pipe, batch_size=None, num_workers=1, multiprocessing_context="fork")
    assert list(forked) == [[1]] * 4


def files() -> tdr.RemoteFiles:

    fsspec.filesystem("memory").pipe({f"/lambdas/{number}.txt": b"x" for number in range(2)})
    return tdr.RemoteFiles("memory://lambdas/")
