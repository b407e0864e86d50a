"""The package's pipes with torch's DataPipes and without them."""

from __future__ import annotations

import copy
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import torchdata_remote as tdr
from tests.support.paths import ROOT
from torchdata_remote.core import iter_datapipe
from torchdata_remote.core.iter_datapipe import _base, _pipes, _stream_wrapper
from torchdata_remote.pipes.base.chain import name_of

TESTS = ROOT / "tests"
OWN = iter_datapipe.IterDataPipe.__module__.startswith("torchdata_remote")
NUM_SAMPLES, WANTED = 60, [i for i in range(60) if i % 10 != 3]

needs_torchs = pytest.mark.skipif(OWN, reason="this torch has no DataPipes to compare with")


@pytest.mark.parametrize("name", iter_datapipe.__all__)
def test_each_name_has_a_replacement(name: str) -> None:
    """What is imported from torch is there without it, under the same name in states and errors."""
    from torchdata_remote.core.iter_datapipe import _sharding

    owns = [getattr(module, name) for module in (_base, _pipes, _sharding, _stream_wrapper) if hasattr(module, name)]
    assert owns
    assert owns[0].__name__ == getattr(iter_datapipe, name).__name__.removesuffix(
        "" if name == "IterDataPipe" else "IterDataPipe"
    )


# --- the replacements against torch's


def _double(value: int) -> int:
    return 2 * value


def _add(left: int, right: int) -> int:
    return left + right


def _is_even(value: int) -> bool:
    return value % 2 == 0


def _is_sum_even(left: int, right: int) -> bool:
    return (left + right) % 2 == 0


def _outcome(make: Callable[[Any], Any], module: Any, items: list[Any]) -> Any:
    """Items and length, or the kind of error."""
    try:
        pipe = make(module.IterableWrapper(copy.deepcopy(items)))
        found: list[Any] = [list(item) if isinstance(item, list) else item for item in pipe]
    except (ValueError, AssertionError) as error:
        return "refused", isinstance(error, (ValueError, AssertionError))
    try:
        return found, len(pipe)
    except TypeError:
        return found, None


COLUMNS = [(None, None), (0, None), ([0, 1], None), ([2, 0], None), (1, -1), (1, 2), ([1, 2], [0]), (None, 1)]


@needs_torchs
@given(rows=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))), as_list=st.booleans())
@pytest.mark.parametrize("columns", COLUMNS, ids=str)
def test_map_is_torchs(columns: tuple[Any, Any], rows: list[tuple[int, int, int]], as_list: bool) -> None:
    """Items, length and refusals are torch's for each choice of columns."""
    items: list[Any] = [list(row) if as_list else row for row in rows]
    function = len if columns[0] is None else _double if isinstance(columns[0], int) else _add

    def make(source: Any) -> Any:
        return source.map(function, input_col=columns[0], output_col=columns[1])

    assert _outcome(make, _pipes, items) == _outcome(make, iter_datapipe, items)


@needs_torchs
@given(rows=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9))), column=st.sampled_from([0, 1, [0, 1], (1, 0)]))
def test_filter_is_torchs(rows: list[tuple[int, int]], column: Any) -> None:
    """The same items pass, and there is no length."""

    def make(source: Any) -> Any:
        return source.filter(_is_even if isinstance(column, int) else _is_sum_even, input_col=column)

    assert _outcome(make, _pipes, rows) == _outcome(make, iter_datapipe, rows)


@needs_torchs
@given(num_items=st.integers(0, 12), batch_size=st.integers(0, 5), drop_last=st.booleans(), collated=st.booleans())
def test_batch_and_collate_are_torchs(num_items: int, batch_size: int, drop_last: bool, collated: bool) -> None:
    """The same batches and lengths, of any size."""

    def make(source: Any) -> Any:
        batches = source.batch(batch_size, drop_last=drop_last)
        return batches.collate(collate_fn=sum) if collated else batches

    items = list(range(num_items))
    assert _outcome(make, _pipes, items) == _outcome(make, iter_datapipe, items)


def test_default_collate_makes_tensors() -> None:
    """Without a function, batches become tensors."""
    pipe: Any = _pipes.IterableWrapper(range(4))
    assert [batch.tolist() for batch in pipe.batch(2).collate()] == [[0, 1], [2, 3]]


def test_names_in_states_are_torchs() -> None:
    """A state's chain names pipes as it does with torch's, so that it loads with both."""
    for name in ("IterableWrapper", "Mapper", "Filter", "Batcher", "Collator"):
        own: Any = object.__new__(getattr(_pipes, name))
        torchs: Any = object.__new__(getattr(iter_datapipe, name))
        assert name_of(own) == name_of(torchs) == name


def test_a_wrapped_list_is_read_from_a_copy() -> None:
    """Items that a consumer changes are unchanged in the next pass; what cannot be copied is read itself."""
    pipe = _pipes.IterableWrapper([[1], [2]])
    for item in pipe:
        item.append(0)
    assert list(pipe) == [[1], [2]]
    assert list(_pipes.IterableWrapper(value for value in (1, 2))) == [1, 2]


class _Count(_base.IterDataPipe[int]):
    """A pipe with a counter.

    Args:
        num_items: to count.
    """

    def __init__(self, num_items: int = 5) -> None:
        self.num_items, self.num_resets, self.num_closed = num_items, 0, 0

    def reset(self) -> None:
        self.num_resets += 1

    def __iter__(self) -> Iterator[int]:
        try:
            yield from range(self.num_items)
        finally:
            self.num_closed += 1


class _EagerCount(_Count):
    def __iter__(self) -> Iterator[int]:
        return iter(range(self.num_items))


@pytest.mark.parametrize("kind", [_Count, _EagerCount])
def test_a_second_iterator_ends_the_first(kind: type[_Count]) -> None:
    """Both would count in the same state; torch has the same rule. Each pass resets the pipe."""
    pipe = kind()
    first = iter(pipe)
    assert next(first) == 0
    second = iter(pipe)
    assert next(second) == 0
    with pytest.raises(RuntimeError, match="invalidated"):
        next(first)
    assert list(second) == [1, 2, 3, 4]
    assert pipe.num_resets == 2


def test_closing_an_iterator_closes_the_pipes() -> None:
    """What a pipe opened ends with its iterator, at once."""
    pipe = _Count()
    items: Any = iter(pipe)
    next(items)
    items.close()
    assert pipe.num_closed == 1


def test_functional_names_chain_and_are_refused_twice() -> None:
    """A registered name is a method of each pipe; the name of another pipe is an error."""
    pipe: Any = _Count(3)
    assert list(pipe.map(_double)) == [0, 2, 4]
    assert "map" in dir(pipe)
    assert repr(pipe.map(_double)) == "Mapper"
    with pytest.raises(ValueError, match="'map' is taken"):
        _base.functional_datapipe("map")(_Count)
    _base.functional_datapipe("map")(_pipes.Mapper)  # as when its module is executed again
    with pytest.raises(TypeError, match="subclasses of IterDataPipe"):
        _base.functional_datapipe("other")(dict)  # type: ignore[type-var]
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = pipe.nothing


def test_pipes_pickle_and_copy() -> None:
    """A chain that was iterated is pickled and copied, as workers and streams need it."""
    pipe: Any = _pipes.IterableWrapper([1, 2, 3]).map(_double)
    next(iter(pipe))
    assert list(pickle.loads(pickle.dumps(pipe))) == list(copy.deepcopy(pipe)) == [2, 4, 6]


class _Stream:
    def __init__(self) -> None:
        self.num_closed = 0

    def read(self) -> bytes:
        return b"x"

    def close(self) -> None:
        self.num_closed += 1


def test_streams_close_when_nothing_refers_to_them() -> None:
    """A wrapped stream reads, and is closed once: by its user, by a filter that drops it, or at its end."""
    files = [_Stream() for _ in range(3)]
    kept = _stream_wrapper.StreamWrapper(files[0])
    assert kept.read() == b"x"
    kept.close()
    del kept
    filtered: Any = _pipes.IterableWrapper([0, 1])
    pairs = filtered.map(lambda index: (str(index), _stream_wrapper.StreamWrapper(files[1 + index])))
    assert list(pairs.filter(lambda _: False)) == []
    assert [file.num_closed for file in files] == [1, 1, 1]


# --- the whole package in processes of a torch without DataPipes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("shards")
    with tdr.ShardWriter(f"{place}/{{shard}}.tar", max_shard_samples=10) as writer:
        for i in range(NUM_SAMPLES):
            writer.write({"__key__": str(i), "cls": i})
    return str(place)


def _read_and_resume(folder: str, num_workers: int, start_method: str, *, without: bool) -> Any:
    script = TESTS / "without_datapipes"
    paths = [str(ROOT), *([str(script)] if without else [])]
    process = subprocess.run(
        [sys.executable, str(script / "read_and_resume.py"), folder, str(num_workers), start_method],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


@pytest.mark.parametrize(("num_workers", "start_method"), [(0, "none"), (2, "fork"), (2, "forkserver")])
def test_chains_outlive_torchs_datapipes(folder: str, num_workers: int, start_method: str) -> None:
    """Without them a chain is built, iterated under DataLoader, stopped and resumed, and yields each sample once."""
    results = _read_and_resume(folder, num_workers, start_method, without=True)
    assert results["base"] == "torchdata_remote.core.iter_datapipe._base"
    assert results["epochs"] == [WANTED, WANTED]
    assert sorted(results["direct"]) == WANTED
    assert len(results["batches"]) == len(WANTED) // 4
    assert all(len(batch) == 4 for batch in results["batches"])
    resumed = [value for batch in results["began"] + results["rest"] for value in batch]
    assert sorted(resumed) == WANTED


@needs_torchs
def test_order_and_states_are_the_same_with_and_without(folder: str) -> None:
    """An update of torch that drops DataPipes changes neither the order nor the state of a training."""
    results = [_read_and_resume(folder, 0, "none", without=without) for without in (False, True)]
    assert results[0].pop("base") != results[1].pop("base")
    assert results[0] == results[1]


_DEPRECATED = """
import sys
import warnings
import torch.utils.data as data
from torch.utils.data.datapipes.datapipe import IterDataPipe

def deprecated(name):  # reported for the first caller outside torch
    caller = sys._getframe(2)
    while caller.f_globals["__name__"].startswith(("torch.", "importlib.", "abc")):
        caller = caller.f_back
    place = caller.f_code.co_filename, caller.f_lineno, caller.f_globals["__name__"]
    warnings.warn_explicit(f"DataPipes are deprecated: {name}", CATEGORY, *place)

names = {name: vars(data).pop(name) for name in ("IterDataPipe", "functional_datapipe")}
data.__getattr__ = lambda name: deprecated(name) or names[name]
IterDataPipe.__init_subclass__ = classmethod(lambda cls: deprecated(cls))
warnings.filterwarnings("error", "DataPipes are deprecated")

import torchdata_remote as tdr
from torchdata_remote.core.iter_datapipe import IterDataPipe as base
assert base is IterDataPipe
assert list(tdr.IterableWrapper(["memory://a/{0..2}.tar"]).list_remote().sharding_filter_rank().map(len).batch(2))

class OfModule(IterDataPipe):
    pass
"""


@needs_torchs
@pytest.mark.parametrize("category", ["DeprecationWarning", "FutureWarning"])
def test_a_deprecation_in_torch_is_not_reported_for_this_package(category: str) -> None:
    """torch may warn of imports and subclasses, even by errors: only a user's own subclass is reported."""
    process = subprocess.run(
        [sys.executable, "-c", _DEPRECATED.replace("CATEGORY", category)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert process.returncode == 1
    assert process.stderr.splitlines()[-1] == f"{category}: DataPipes are deprecated: <class '__main__.OfModule'>"
