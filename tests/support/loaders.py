"""Loaders of each kind over small shards: what they hand out, and their states."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from multiprocessing import active_children
from typing import Any

import pytest

import torchdata_remote as tdr

THREAD = -1
"""Among numbers of workers: ``thread_loader``."""
Batches = list[Any]


def read_all(loader: Any) -> list[Any]:
    """Return all batches of torch's loader; after an error, end the workers at once, which torch would wait for."""
    batches = iter(loader)
    try:
        return list(batches)
    finally:
        getattr(batches, "_shutdown_workers", lambda: None)()


def built(pipe: Any, num_workers: int, start_method: str = "fork", **options: Any) -> Any:
    """The loader with so many worker processes, or the one that makes batches in a thread."""
    if num_workers == THREAD:
        return tdr.thread_loader(pipe, **options)
    workers: dict[str, Any] = {"num_workers": num_workers, "multiprocessing_context": start_method}
    return tdr.stateful_loader(pipe, **{**workers, "timeout_s": 120 * bool(num_workers), **options})


def key_of(sample: Any) -> Any:
    """The key of a tuple, or of a sample."""
    return sample["__key__"] if isinstance(sample, dict) else sample[0]


def chain_of(folder: str, world: tdr.World | None = None) -> Any:
    """Keys of a folder's shards, through every buffer that a chain may have."""
    urls = tdr.IterableWrapper([f"{folder}/index.json"]).list_remote().shuffle_shards(seed=1)
    reader = urls.sharding_filter_rank(world=world).async_prefetch(interleave=2).shard_tar_reader(interleave=2)
    return reader.shuffle_samples(buffer_size=3, seed=2).to_tuple("__key__").map(key_of)


def names_of(num_items: int = 40, world: tdr.World | None = None, seed: int = 1, buffer_size: int = 4) -> Any:
    """Names that are split and shuffled: a chain without I/O."""
    names = tdr.IterableWrapper([f"{number:05d}" for number in range(num_items)])
    pipe = names.shuffle_shards(seed=seed).sharding_filter_rank(world=world)
    return pipe.shuffle_samples(buffer_size=buffer_size, seed=2).map(str)


def edited(state: Any, **fields: Any) -> Any:
    """A state with other fields, as if it had been saved with them."""
    known = {**state, **fields}
    listing = known["listing"]
    content = {name: value for name, value in known.items() if name not in ("listing", "digest")}
    parts = [content, *([] if listing is None else [listing])]
    digests = [blake2b(json.dumps(part, sort_keys=True).encode(), digest_size=8).hexdigest() for part in parts]
    return {**known, "digest": "-".join(digests)}


def through_json(state: Any) -> Any:
    return json.loads(json.dumps(state))


def with_states(loader: Any) -> tuple[Batches, list[Any]]:
    """The batches of a pass, and the state before each and after the last one, through JSON."""
    states, batches = [through_json(loader.state_dict())], []
    for batch in loader:
        batches.append(batch)
        states.append(through_json(loader.state_dict()))
    return batches, states


def keys(*passes: Batches) -> list[str]:
    """All keys in the batches of passes, sorted."""
    return sorted(key for batches in passes for batch in batches for key in batch)


@contextmanager
def failing(error: type[BaseException], says: str) -> Iterator[None]:
    """Expect an error, with which the workers of its pass have ended: torch would wait up to 5 s for each later."""
    before = set(active_children())
    with pytest.raises(error, match=says) as caught:
        yield
    assert set(active_children()) <= before
    caught.value.__traceback__ = None  # or a cycle would keep the caller's loaders, whose workers then are not told


def said(read: Callable[[], object]) -> str:
    """The message of the StateError that a function raises, or ``""``."""
    try:
        read()
    except tdr.errors.StateError as error:
        return str(error)
    return ""
