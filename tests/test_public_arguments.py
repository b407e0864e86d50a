"""A flag or a number of any library does what that of Python does, in each public function that takes one."""

from __future__ import annotations

import enum
import inspect
import io
import itertools
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import torch
from PIL import Image

import torchdata_remote as tdr
from torchdata_remote import testing
from torchdata_remote.testing import Faults, write_small_shards

SHARDS = "memory://public-arguments/"
JOINED = {"a": SHARDS, "b": SHARDS}
_numbers = itertools.count()


class Switch(enum.IntEnum):
    """A flag as an ``IntEnum``."""

    OFF = 0
    ON = 1


class Count(int):
    """A subclass of ``int``."""


@pytest.fixture(scope="module", autouse=True)
def _shards() -> None:
    write_small_shards(SHARDS, num_shards=2, samples_per_shard=3)


def new() -> str:
    """Return a template for shards that do not exist."""
    return f"memory://public-arguments-{next(_numbers)}/{{shard}}.tar"


def urls() -> Any:
    """Return the URLs of the shards."""
    return tdr.IterableWrapper([f"{SHARDS}{number:06d}.tar" for number in range(2)])


def keys(pipe: Any) -> list[str]:
    """Read a chain."""
    return [sample["__key__"] for sample in pipe]


def loaded(**options: Any) -> Any:
    """Read by ``stateful_loader``."""
    loader = tdr.stateful_loader(tdr.stream_shards(SHARDS), collate_fn=keys, **{"batch_size": 4, **options})
    return list(loader), json.dumps(loader.state_dict(), sort_keys=True)


def loaded_by_threads(**options: Any) -> Any:
    """Read by ``thread_loader``."""
    loader = tdr.thread_loader(tdr.stream_shards(SHARDS), collate_fn=keys, **{"batch_size": 4, **options})
    return list(loader), json.dumps(loader.state_dict(), sort_keys=True)


def loaded_directly(**options: Any) -> Any:
    """Read by ``StatefulLoader``."""
    loader = tdr.StatefulLoader(tdr.Resumable(tdr.stream_shards(SHARDS)), collate_fn=keys, batch_size=4, **options)
    return list(loader), json.dumps(loader.state_dict(), sort_keys=True)


def prefetched(**options: Any) -> Any:
    """Read by ``PrefetchingLoader``."""
    loader = tdr.PrefetchingLoader(tdr.ShardedDataset(SHARDS), collate_fn=keys, **{"batch_size": 4, **options})
    torch.manual_seed(0)
    return list(loader), json.dumps(loader.state_dict()) if options.get("seed") is not None else None


def refused(function: Callable[..., Any], folder: Path, **options: Any) -> str:
    """Return the error of a service that cannot be reached, which is raised after arguments were checked."""
    (folder / "file").write_bytes(b"x")
    pair = [folder, "datasets://127.0.0.1:1/data"]
    once = tdr.RetryPolicy(max_attempts=1)
    with pytest.raises(tdr.errors.RemoteDataError) as caught:
        function(*(pair if function is tdr.push else pair[::-1]), retry=once, **options)
    return str(caught.value).partition(" after ")[0]


def written(**options: Any) -> Any:
    """Write shards to a folder that has some, or not."""
    tdr.shard_dataset(SHARDS, (to := new()), **{"max_shard_samples": 4, **options})
    folder = to.rpartition("/")[0]
    return [len(list(tdr.stream_shards(folder + "/", shuffle=False))), len(tdr.ShardedDataset(folder + "/"))]


def rewritten(value: Any) -> Any:
    """Write a shard that exists."""
    with tdr.ShardWriter(to := new()) as writer:
        writer.write({"__key__": "a", "cls": 1})
    with suppress(tdr.errors.ObjectExistsError), tdr.ShardWriter(to, overwrite=value) as writer:
        writer.write({"__key__": "b", "cls": 1})
    return keys(tdr.stream_shards(to.rpartition("/")[0] + "/"))


def written_without_index() -> str:
    """Write a shard, and remove its manifest and index."""
    with tdr.ShardWriter(to := new()) as writer:
        writer.write({"__key__": "a", "cls": 1})
    folder = to.rpartition("/")[0]
    path = folder.removeprefix("memory:/")
    fsspec.filesystem("memory").rm([f"{path}/index.json", f"{path}/0.tar.idx", f"{path}/0.tar.keys"])
    return folder + "/"


def turned(**options: Any) -> list[int]:
    """Decode an image that is black on its left and to be shown with black above."""
    image, exif = Image.new("L", (16, 16)), Image.Exif()
    image.paste(255, (8, 0, 16, 16))
    exif[0x0112] = 6
    image.save(file := io.BytesIO(), "PNG", exif=exif)
    pipe = tdr.IterableWrapper([{"__key__": "a", "png": file.getvalue()}])
    (sample,) = pipe.decode_image(16, crop=None, dtype=torch.uint8, **options)
    return [int(value) for value in sample["png"][0, 0]]


# Each is called with a flag; the result is that of a bool of Python.
FLAGS: dict[str, Callable[[Any, Path], Any]] = {
    "AsyncPrefetch.in_order": lambda v, _: sorted(keys(urls().async_prefetch(in_order=v).shard_tar_reader())),
    "DecodeImage.exif_orientation": lambda v, _: turned(exif_orientation=v),
    "Faults.listings": lambda v, _: repr(Faults(listings=v)),
    "ListRemote.recursive": lambda v, _: list(tdr.IterableWrapper([SHARDS]).list_remote(recursive=v)),
    "Pack.cu_seqlens": lambda v, _: [sorted(row) for row in tdr.IterableWrapper([[1, 2]]).pack(2, cu_seqlens=v)],
    "Pack.split": lambda v, _: len(list(tdr.IterableWrapper([[1, 2, 3]] * 3).pack(4, split=v))),
    "PrefetchingLoader.drop_last": lambda v, _: prefetched(drop_last=v),
    "PrefetchingLoader.in_order": lambda v, _: prefetched(in_order=v),
    "PrefetchingLoader.pin_memory": lambda v, _: prefetched(pin_memory=v and False),
    "PrefetchingLoader.shuffle": lambda v, _: len(prefetched(shuffle=v)[0]),
    "ShardTarReader.copy": lambda v, _: [
        bytes(sample["cls"]) for sample in urls().async_prefetch().shard_tar_reader(copy=v)
    ],
    "ShardTarReader.nested": lambda v, _: repr(urls().async_prefetch().shard_tar_reader(nested=v).order_options()),
    "ShardWriter.overwrite": lambda v, _: rewritten(v),
    "ShardingFilterRank.split": lambda v, _: list(urls().sharding_filter_rank(split=v)),
    "StatefulLoader.drop_last": lambda v, _: loaded_directly(drop_last=v),
    "StatefulLoader.list_in_rank_0": lambda v, _: loaded_directly(list_in_rank_0=v),
    "StatefulLoader.list_once": lambda v, _: loaded_directly(list_once=v),
    "StatefulLoader.state_of_all_ranks": lambda v, _: loaded_directly(state_of_all_ranks=v),
    "WriteShards.overwrite": lambda v, _: len(list(tdr.stream_shards(SHARDS).write_shards(new(), overwrite=v))),
    "index_shards.overwrite": lambda v, _: len(tdr.index_shards(written_without_index(), overwrite=v)),
    "index_shards.progress": lambda v, _: len(tdr.index_shards(written_without_index(), progress=v)),
    "pull.delete": lambda v, folder: refused(tdr.pull, folder, delete=v),
    "pull.progress": lambda v, folder: refused(tdr.pull, folder, progress=v),
    "push.delete": lambda v, folder: refused(tdr.push, folder, delete=v),
    "push.progress": lambda v, folder: refused(tdr.push, folder, progress=v),
    "shard_dataset.append": lambda v, _: written(append=v),
    "shard_dataset.overwrite": lambda v, _: written(overwrite=v),
    "shard_dataset.progress": lambda v, _: written(progress=v),
    "shard_dataset.provenance": lambda v, _: written(provenance=v),
    "shard_dataset.resume": lambda v, _: written(resume=v),
    "stateful_loader.drop_last": lambda v, _: loaded(drop_last=v),
    "stateful_loader.list_in_rank_0": lambda v, _: loaded(list_in_rank_0=v),
    "stateful_loader.list_once": lambda v, _: loaded(list_once=v),
    "stateful_loader.pin_memory": lambda v, _: type(
        tdr.stateful_loader(tdr.stream_shards(SHARDS), pin_memory=v).pin_memory
    ),
    "stateful_loader.state_of_all_ranks": lambda v, _: loaded(state_of_all_ranks=v),
    "stream_files.shuffle": lambda v, _: keys(tdr.stream_files(SHARDS, shuffle=v)),
    "join.shuffle": lambda v, _: keys(tdr.join(JOINED, shuffle=v, align="order", members={"b": "txt", "a": "cls"})),
    "stream_shards.shuffle": lambda v, _: keys(tdr.stream_shards(SHARDS, shuffle=v)),
    "thread_loader.drop_last": lambda v, _: loaded_by_threads(drop_last=v),
    "thread_loader.list_in_rank_0": lambda v, _: loaded_by_threads(list_in_rank_0=v),
    "thread_loader.list_once": lambda v, _: loaded_by_threads(list_once=v),
    "thread_loader.pin_memory": lambda v, _: type(
        tdr.thread_loader(tdr.stream_shards(SHARDS), pin_memory=v).pin_memory
    ),
    "thread_loader.state_of_all_ranks": lambda v, _: loaded_by_threads(state_of_all_ranks=v),
}


def test_each_public_flag_is_in_the_table() -> None:
    """One that is added is tested; IterableWrapper is torch's."""
    found = {
        f"{name}.{parameter.name}"
        for module in (tdr, testing)
        for name in module.__all__
        if name != "IterableWrapper" and callable(getattr(module, name))
        for parameter in parameters_of(getattr(module, name))
        if "Callable" not in str(parameter.annotation) and "bool" in str(parameter.annotation)
    }
    assert found - FLAGS.keys() == set()
    assert len(found) > 25


def parameters_of(function: Any) -> list[inspect.Parameter]:
    """Return the parameters of what has a signature."""
    try:
        return list(inspect.signature(function).parameters.values())
    except ValueError:
        return []


@pytest.mark.parametrize("name", sorted(FLAGS))
def test_a_flag_of_any_library_does_what_a_bool_does(name: str, tmp_path: Path) -> None:
    """The same result, states included; what is true by chance is refused."""
    function = FLAGS[name]
    for plain, others in {
        True: (1, Switch.ON, np.True_, np.int64(1), torch.tensor(True)),
        False: (0, Switch.OFF, np.False_, np.int64(0), torch.tensor(False)),
    }.items():
        expected = function(plain, tmp_path)
        for other in others:
            assert function(other, tmp_path) == expected, repr(other)
    if name != "PrefetchingLoader.pin_memory":
        for wrong in ("False", 2, 1.0, [True]):
            with pytest.raises((TypeError, ValueError), match=name.partition(".")[2]):
                function(wrong, tmp_path)


# Each is called with a number.
COUNTS: dict[str, Callable[[Any], Any]] = {
    "AsyncPrefetch": lambda n: keys(
        urls().async_prefetch(max_in_flight=n, interleave=n).shard_tar_reader(interleave=n)
    ),
    "PrefetchingLoader": lambda n: prefetched(batch_size=n, seed=n, shuffle=True, world=tdr.World(n - 2, n)),
    "RetryPolicy": lambda n: repr(tdr.RetryPolicy(max_attempts=n, deadline_s=n, first_wait_s=n, progress_timeout_s=n)),
    "shuffle_samples": lambda n: keys(tdr.stream_shards(SHARDS, seed=n, shuffle_buffer_size=n, interleave=n)),
    "shard_dataset": lambda n: written(max_shard_samples=n, seed=n, num_workers=n - n),
    "stateful_loader": lambda n: loaded(batch_size=n, num_streams=n, timeout_s=n),
    "mix": lambda n: len(list(tdr.mix({"a": (tdr.stream_shards(SHARDS), n)}, seed=n))),
    "limit": lambda n: tdr.RemoteFiles(SHARDS, limit=n).names_digest(),
}


@pytest.mark.parametrize("name", sorted(COUNTS))
def test_a_number_of_any_library_does_what_an_int_does(name: str) -> None:
    """The same result, states included."""
    expected = COUNTS[name](2)
    for other in (Count(2), np.int64(2), np.uint8(2), torch.tensor(2)):
        assert COUNTS[name](other) == expected, repr(other)
