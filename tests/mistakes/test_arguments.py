"""Arguments of public functions: each is checked where it is given, and any library's numbers and flags are taken."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import torchdata_remote as tdr
from torchdata_remote import testing

from .mistake import SHARDS

# What users get, hand on or name, rather than call
NOT_CALLED = {
    "Backend", "DataPipe", "EqualizeMode", "Env", "Pass", "IndexedSample", "IterDataPipe", "IterableWrapper",
    "MixPhase", "MixReport", "Mixed", "RemoteUrl", "SeenRequest", "ShardInfo", "Skipped", "Snapshot", "Stats",
    "Stop", "TransferProgress", "Transferred", "accept_missing_end", "raise_error", "skip_with_warning",
}  # fmt: skip
FUNCTIONS = {
    name: getattr(module, name)
    for module in (tdr, tdr.pipes, testing)
    for name in module.__all__
    if name not in NOT_CALLED and callable(getattr(module, name))
}
# Words of errors that do not name the argument; or None, for what is not checked where it is given
NOT_CHECKED = (
    "World.group", "Faults.methods", "FaultyStore.endpoint_url", "FaultyStore.seed", "all_worlds.world_size",
    "all_worlds.num_workers", "assert_resumes_everywhere.num_streams", "assert_resumes_everywhere.same",
)  # fmt: skip
OTHER_WORDS = {
    **dict.fromkeys(NOT_CHECKED),
    "PrefetchingLoader.dataset": "PrefetchingLoader is for RemoteFiles, RemoteImageFolder and ShardedDataset",
    "RecordedStats.paths": "path must be",
    "RemoteImageFolder.classes": "no file whose name ends",  # asked after the listing
    "ToTuple.names": "to_tuple needs names",
    "ToTuple.source_datapipe": "to_tuple needs names",
    "merge_node_states.states": "Expected a list of states",
    "merge_states.states": "Expected a list of states",
    "shard_dataset.source_options": "storage_options must be a dict",
    "write_snapshot.urls": "the name of a snapshot",
}  # fmt: skip
WORDS = {
    "source_datapipe": "expected a pipe of", "url": "expected one URL or path", "manifest_url": "expected one URL",
    "source": "expected a URL",
}  # fmt: skip
ONCE = {"retry": tdr.RetryPolicy(max_attempts=1)}
EXTRA: dict[str, Any] = {"Bucket": {"batch_size": 2}, "Select": {"keys": ["a"]}, "pull": ONCE, "push": ONCE}
_numbers = itertools.count()


class Wrong:
    """Of no kind that anything accepts."""


def given(name: str) -> dict[str, Any]:
    """Return arguments that each function gets if it needs them."""
    chain, folder = tdr.stream_shards(SHARDS), f"memory://mistakes/checked-{next(_numbers)}/"
    values = {
        "source_datapipe": tdr.IterableWrapper([f"{SHARDS}000000.tar"]), "function": len, "length": 4, "number": 2,
        "size": 8, "buffer_size": 4, "url_template": f"{folder}{{shard}}.tar", "source": SHARDS, "url": SHARDS,
        "pipe": chain, "dataset": tdr.ShardedDataset(SHARDS) if name == "PrefetchingLoader" else tdr.Resumable(chain),
        "manifest_url": SHARDS, "sets": {"a": SHARDS, "b": SHARDS}, "sources": {"a": (chain, 1)}, "state": {},
        "endpoint_url": "http://127.0.0.1:1", "folder": folder, "num_shards": 1, "samples_per_shard": 1,
        "world_size": 1, "num_workers": 0, "urls": [f"{SHARDS}000000.tar"], "path": "/no-such-folder/stats.jsonl",
        "states": [], "make_pipe": lambda: tdr.IterableWrapper([1]),
    }  # fmt: skip
    if name in ("pull", "push"):
        values |= {"url": "datasets://127.0.0.1:1/d", "folder": __file__, "source_folder": __file__}
    return values


def parameters_of(function: Callable[..., Any]) -> Iterator[inspect.Parameter]:
    """Yield the public ones; options that are handed on to torch have no names here."""
    for parameter in inspect.signature(function).parameters.values():
        if not parameter.name.startswith("_") and parameter.kind is not inspect.Parameter.VAR_KEYWORD:
            yield parameter


def call(name: str, parameter: inspect.Parameter, value: Any) -> Any:
    """Call a function with one value, and with what else it needs."""
    parameters = list(parameters_of(FUNCTIONS[name]))
    values = given(name)
    needed = {p.name: values[p.name] for p in parameters if p.default is p.empty and p.name in values}
    needed |= EXTRA.get(name, {})
    if parameter.kind is parameter.VAR_POSITIONAL:
        return FUNCTIONS[name](*needed.values(), value)
    return FUNCTIONS[name](**{**needed, parameter.name: value})


def test_the_exceptions_exist() -> None:
    names = {f"{name}.{p.name}" for name, function in FUNCTIONS.items() for p in parameters_of(function)}
    assert OTHER_WORDS.keys() <= names
    assert len(names) > 250


@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_argument_is_checked_and_named_where_it_is_given(name: str) -> None:
    for parameter in parameters_of(FUNCTIONS[name]):
        where = f"{name}.{parameter.name}"
        wanted = OTHER_WORDS.get(where, parameter.name)
        if wanted is None:
            continue
        with pytest.raises((TypeError, ValueError, tdr.errors.RemoteDataError)) as caught:
            call(name, parameter, Wrong())
        text = str(caught.value)
        assert wanted in text or WORDS.get(parameter.name, wanted) in text, where
        shown = text.partition(": ")[0].replace("_", "").lower()
        assert shown == name.replace("_", "").lower() or where in OTHER_WORDS, text


def of_kind(*kinds: str) -> list[tuple[str, inspect.Parameter]]:
    return [
        (name, p)
        for name, function in FUNCTIONS.items()
        for p in parameters_of(function)
        if str(p.annotation).replace("'", "") in kinds and OTHER_WORDS.get(f"{name}.{p.name}", "") is not None
    ]


def outcome(name: str, parameter: inspect.Parameter, value: Any) -> type:
    """Return the class of the result, or of an error that has other reasons than this value."""
    try:
        return type(call(name, parameter, value))
    except (TypeError, ValueError, tdr.errors.RemoteDataError, OSError, ImportError) as error:
        return type(error)


@pytest.mark.parametrize(("name", "parameter"), of_kind("bool", "bool | None"), ids=lambda of: getattr(of, "name", of))
def test_a_flag_of_any_library_is_one_and_what_is_true_by_chance_is_not(
    name: str, parameter: inspect.Parameter
) -> None:
    for plain in (True, False):
        others = (int(plain), np.bool_(plain), np.int64(plain), torch.tensor(plain))
        expected = outcome(name, parameter, plain)
        assert expected is not TypeError
        assert [outcome(name, parameter, other) for other in others] == [expected] * len(others)
    for wrong in ("False", 2, 1.0, [True]):
        with pytest.raises((TypeError, ValueError), match=parameter.name):
            call(name, parameter, wrong)


@pytest.mark.parametrize(("name", "parameter"), of_kind("int", "int | None"), ids=lambda of: getattr(of, "name", of))
def test_a_count_of_any_library_is_one_and_texts_flags_and_negative_numbers_are_not(
    name: str, parameter: inspect.Parameter
) -> None:
    expected = outcome(name, parameter, 3)
    assert expected is not TypeError
    assert [outcome(name, parameter, number) for number in (np.int64(3), torch.tensor(3))] == [expected] * 2
    for wrong in ("16", True, 2.5, *([] if parameter.name in ("seed", "separator", "padding") else [-(10**9)])):
        with pytest.raises((TypeError, ValueError), match=parameter.name):
            call(name, parameter, wrong)


def keys(pipe: Any) -> list[str]:
    return [sample["__key__"] for sample in pipe]


@pytest.mark.parametrize(
    "read",
    [
        *(
            lambda flag, two, loader=loader: list(
                loader(tdr.stream_shards(SHARDS), batch_size=4, collate_fn=keys, drop_last=flag)
            )
            for loader in (tdr.stateful_loader, tdr.thread_loader)
        ),
        lambda flag, two: keys(tdr.stream_shards(SHARDS, shuffle=flag, seed=two, shuffle_buffer_size=two)),
        lambda flag, two: list(
            tdr.PrefetchingLoader(
                tdr.ShardedDataset(SHARDS), batch_size=two, collate_fn=keys, shuffle=True, seed=two, drop_last=flag,
                world=tdr.World(two - 2, two),
            )
        ),
        lambda flag, two: [sorted(row) for row in tdr.IterableWrapper([[1, 2]]).pack(two, cu_seqlens=flag)],
        lambda flag, two: list(tdr.IterableWrapper([SHARDS]).list_remote(recursive=flag))[:two],
        lambda flag, two: tdr.RemoteFiles(SHARDS, limit=two).names_digest,
        lambda flag, two: keys(tdr.mix({"a": (tdr.stream_shards(SHARDS), two)}, seed=two)),
    ],
)  # fmt: skip
def test_numbers_and_flags_of_other_libraries_read_the_same_items(read: Callable[..., Any]) -> None:
    for plain in (True, False):
        expected = read(plain, 2)
        assert read(np.bool_(plain), np.uint8(2)) == read(torch.tensor(plain), torch.tensor(2)) == expected
