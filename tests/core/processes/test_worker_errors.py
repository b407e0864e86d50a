"""What is printed last when a worker fails."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from typing import Any

import fsspec
import pytest
from torch.utils.data import DataLoader
from torch.utils.data.datapipes.iter import IterableWrapper

import torchdata_remote as tdr
from torchdata_remote.errors import MissingMemberError

SAMPLES = [{"__key__": f"cat/{number}", "__url__": "s3://b/0.tar", "txt": b"x"} for number in range(4)]
WORKERS: dict[str, Any] = {"num_workers": 1, "multiprocessing_context": "fork"}


class TwoArgumentsError(Exception):
    """torch cannot rebuild it."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} and {two}")


def fail(item: Any) -> Any:
    raise ValueError("no label\nin the second column")


def fail_with_key(item: Any) -> Any:
    return {}["left"]


def fail_with_two(item: Any) -> Any:
    raise TwoArgumentsError("a", "b")


def chain() -> Any:
    return IterableWrapper(SAMPLES).sharding_filter_rank()


def printed(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)).rstrip()


LOADERS: dict[str, Callable[[Any, dict[str, Any]], Iterator[Any]]] = {
    "DataLoader": lambda pipe, workers: iter(DataLoader(pipe, batch_size=None, **workers)),
    "stateful_loader": lambda pipe, workers: iter(tdr.stateful_loader(pipe, **workers)),
}


@pytest.mark.parametrize("workers", [{}, WORKERS], ids=["here", "worker"])
@pytest.mark.parametrize("loader", LOADERS)
def test_an_error_of_a_pipe_ends_with_its_own_message(loader: str, workers: dict[str, Any]) -> None:
    """One line, after all tracebacks, without torch's frames and notes; the worker's traceback is the cause."""
    with pytest.raises(MissingMemberError) as caught:
        next(LOADERS[loader](chain().to_tuple("png").map(len), workers))
    message = "sample 'cat/0' of s3://b/0.tar has no 'png'. It has ['txt']."
    assert str(caught.value) == message
    assert printed(caught.value).splitlines()[-1] == f"torchdata_remote.errors.MissingMemberError: {message}"
    if workers:
        assert "in a worker:" in str(caught.value.__cause__)
        assert "to_tuple.py" in str(caught.value.__cause__)


@pytest.mark.parametrize("workers", [{}, WORKERS], ids=["here", "worker"])
@pytest.mark.parametrize(
    ("function", "last"),
    [(fail, "ValueError: no label\nin the second column"), (fail_with_key, "left'"), (fail_with_two, "a and b")],
)
def test_an_error_of_a_users_function_ends_with_its_own_message(
    function: Any, last: str, workers: dict[str, Any]
) -> None:
    """Of any type, also one that torch cannot build from a string, and over several lines."""
    with pytest.raises(Exception) as caught:  # noqa: PT011  # each has another type
        next(LOADERS["stateful_loader"](chain().map(function), workers))
    assert printed(caught.value).endswith(last)
    if workers:
        assert function.__name__ in str(caught.value.__cause__)


def test_an_error_of_a_prefetching_loader_ends_with_its_own_message() -> None:
    """As of the other loaders."""
    fsspec.filesystem("memory").pipe({f"/failing/{number}.txt": b"x" for number in range(2)})
    loader = tdr.PrefetchingLoader(tdr.RemoteFiles("memory://failing/"), batch_size=2, collate_fn=fail, **WORKERS)
    with pytest.raises(ValueError, match=r"^no label") as caught:
        next(iter(loader))
    assert printed(caught.value).endswith("ValueError: no label\nin the second column")
