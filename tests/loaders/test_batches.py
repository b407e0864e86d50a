"""``stateful_loader`` and ``thread_loader``: batches, epochs, lengths, errors, and the processes that read."""

from __future__ import annotations

import collections
import io
import multiprocessing
import os
from collections.abc import Callable
from functools import partial
from itertools import islice
from multiprocessing import active_children
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import DataLoader

import torchdata_remote as tdr
from tests.support.loaders import (
    THREAD,
    Batches,
    built,
    chain_of,
    edited,
    failing,
    key_of,
    keys,
    names_of,
    through_json,
)
from torchdata_remote.errors import EmptyShareError, ShardReadError, StateError
from torchdata_remote.testing import write_small_shards

from .conftest import ALL_KEYS

NUM_STREAMS = 6
HOW = [0, 2, THREAD]


def loader_of(folder: str, num_workers: int, start_method: str = "fork", **more: Any) -> Any:
    return built(chain_of(folder), num_workers, start_method, **{"batch_size": 2, "num_streams": NUM_STREAMS, **more})


@pytest.mark.parametrize("num_workers", HOW)
def test_set_epoch_sets_the_next_epoch_at_any_time(folder: str, num_workers: int) -> None:
    """Before, between and in the middle of passes; later passes count from it."""
    whole = loader_of(folder, num_workers)
    epochs = [list(whole) for _ in range(4)]
    assert all(keys(batches) == ALL_KEYS for batches in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    loader = loader_of(folder, num_workers)
    loader.set_epoch(2)
    assert [list(loader), list(loader)] == epochs[2:]
    loader.set_epoch(1)
    assert loader.state_dict()["epoch"] == 1
    list(islice(loader, 3))
    loader.set_epoch(0)
    assert [list(loader), list(loader)] == epochs[:2]
    list(islice(loader, 3))
    assert list(loader) == epochs[3]
    for epoch in (3, 3, 1):
        loader.set_epoch(epoch)
        assert list(loader) == epochs[epoch]


@pytest.mark.parametrize("num_workers", HOW)
def test_a_pass_that_is_left_early_counts_as_an_epoch_and_keeps_its_state(folder: str, num_workers: int) -> None:
    """By ``break``; a loaded state is returned until the first batch, also if the loader has run before."""
    whole = loader_of(folder, num_workers)
    epochs = [list(whole) for _ in range(3)]
    loader = loader_of(folder, num_workers)
    assert list(islice(loader, 4)) == epochs[0][:4]
    state = through_json(loader.state_dict())
    assert list(islice(loader, 2)) == epochs[1][:2]
    assert list(loader) == epochs[2]
    loader.load_state_dict(state)
    assert loader.state_dict() == state
    assert list(loader) == epochs[0][4:]


@pytest.mark.parametrize("num_batches", [0, 5, 99])
@pytest.mark.parametrize("num_workers", HOW)
def test_the_state_stays_when_the_iterator_is_dropped(folder: str, num_workers: int, num_batches: int) -> None:
    """As Lightning does at the end of ``fit``: it stays the state after the last batch."""
    loader, again = loader_of(folder, num_workers), loader_of(folder, 0)
    batches: Any = iter(loader)
    taken = list(islice(batches, num_batches))
    expected = through_json(loader.state_dict())
    del batches
    found = through_json(loader.state_dict())
    assert found == expected
    assert found["epoch"] == int(num_batches == 99)
    if num_batches == 99:
        assert (found["listing"], found["streams"]) == (None, [[number, None] for number in range(NUM_STREAMS)])
    again.load_state_dict(found)
    assert keys(taken, [] if num_batches == 99 else list(again)) == ALL_KEYS
    assert keys(list(loader)) == ALL_KEYS


@pytest.mark.parametrize("num_workers", HOW)
def test_a_pass_goes_on_while_another_one_is_looked_at_or_an_epoch_is_set(folder: str, num_workers: int) -> None:
    loader, whole = loader_of(folder, num_workers), loader_of(folder, num_workers)
    batches = iter(loader)
    found = [next(batches)]
    next(iter(loader))
    found.append(next(batches))
    loader.set_epoch(5)
    assert [*found, *batches] == list(whole)
    whole.set_epoch(5)
    assert list(loader) == list(whole)


def name_of_process(sample: str) -> tuple[str, int]:
    return sample, os.getpid()


def test_workers_persist_over_epochs_and_end_when_a_state_is_loaded(folder: str) -> None:
    pipe = chain_of(folder).map(name_of_process)
    loader = tdr.stateful_loader(pipe, num_workers=2, num_streams=2, multiprocessing_context="fork")
    first, second = list(loader), list(loader)
    workers = {process for _, process in first}
    assert workers == {process for _, process in second}
    assert len(workers) == 2
    assert os.getpid() not in workers
    loader.load_state_dict(loader.state_dict())
    assert not workers & {process for _, process in loader}


# Lengths


def equal_chain(folder: str, world: tdr.World, mode: str) -> Any:
    urls = tdr.IterableWrapper([f"{folder}/index.json"]).list_remote().shuffle_shards(seed=1)
    reader: Any = urls.sharding_filter_rank(world=world).shard_tar_reader(interleave=2)
    return reader.equalize_ranks(mode=mode).shuffle_samples(buffer_size=4).to_tuple("__key__").map(key_of)


@pytest.mark.parametrize("mode", ["drop", "repeat"])
@pytest.mark.parametrize(
    ("world_size", "num_workers", "num_streams"), [(1, 0, 1), (3, 0, 9), (5, 0, 5), (3, THREAD, 9), (5, 2, None)]
)
def test_the_length_is_exact_and_the_same_in_each_rank_where_ranks_are_equal(
    folder: str, world_size: int, num_workers: int, num_streams: int | None, mode: str
) -> None:
    """For batches, single samples and with ``drop_last``; and of what is left after a resume."""
    for batch_size, drop_last in ((3, False), (3, True), (None, False)):
        lengths = []
        for rank in range(world_size if num_workers <= 0 else 2):
            options: dict[str, Any] = {"batch_size": batch_size, "drop_last": drop_last, "num_streams": num_streams}
            loader = built(equal_chain(folder, tdr.World(rank, world_size), mode), num_workers, **options)
            lengths.append(len(loader))
            assert len(list(loader)) == lengths[-1]
            loader.load_state_dict(edited(loader.state_dict(), turns=()))
            assert loader.num_batches_left() == lengths[-1]
        assert len(set(lengths)) == 1


@given(stop=st.integers(0, 10), batch_size=st.sampled_from([None, 1, 3, 5]), drop_last=st.booleans())
def test_the_batches_left_are_counted_after_a_resume(
    folder: str, stop: int, batch_size: int | None, drop_last: bool
) -> None:
    drops = drop_last and batch_size is not None
    options: dict[str, Any] = {"batch_size": batch_size, "drop_last": drops, "num_streams": 4}
    loader, again = (tdr.stateful_loader(equal_chain(folder, tdr.World(), "drop"), **options) for _ in range(2))
    taken = list(islice(loader, stop))
    if len(taken) == len(loader):
        return
    again.load_state_dict(loader.state_dict())
    assert again.num_batches_left() == len(loader) - len(taken) == len(list(again))


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("num_workers", [0, 1, 2, 3])
def test_the_length_of_torchs_loader_over_a_chain_is_its_number_of_batches(
    folder: str, num_workers: int, drop_last: bool
) -> None:
    """Of a pipe, and of ``Resumable``; each worker has a last batch of its own."""
    pipe = equal_chain(folder, tdr.World(), "drop")
    for dataset in (pipe, tdr.Resumable(pipe, num_streams=6)):
        context = "fork" if num_workers else None
        loader = DataLoader(dataset, 5, num_workers=num_workers, drop_last=drop_last, multiprocessing_context=context)
        assert len(loader) == len(list(loader)), dataset
        assert len(dataset) == len(ALL_KEYS)
    assert len(DataLoader(pipe, None, num_workers=2)) == len(ALL_KEYS)


# Errors


def fails_at(bad: str, key: str) -> str:
    if key == bad:
        raise ZeroDivisionError(f"{key} on purpose")
    return key


@pytest.mark.parametrize("num_workers", HOW)
def test_an_error_of_the_chain_keeps_its_type_and_the_state_before_it(folder: str, num_workers: int) -> None:
    """That state resumes up to the same sample; the pass that failed does not end as if it were complete."""

    def loader(bad: str) -> Any:
        return built(chain_of(folder).map(partial(fails_at, bad)), num_workers, batch_size=2, num_streams=2)

    whole = list(loader("none"))
    bad = whole[5][1]
    stopped, batches, states = loader(bad), [], []
    passing = iter(stopped)
    with failing(ZeroDivisionError, f"{bad} on purpose"):
        for batch in passing:
            batches.append(batch)
            states.append(through_json(stopped.state_dict()))
    with pytest.raises(StateError, match="cannot go on"):
        next(passing)
    assert batches == whole[:5]
    assert through_json(stopped.state_dict()) == states[-1]
    for stop in (2, 5):
        again = loader(bad)
        rest: Batches = []
        again.load_state_dict(states[stop - 1])
        with failing(ZeroDivisionError, f"{bad} on purpose"):
            rest.extend(again)
        assert rest == whole[stop:5]
        mended = loader("none")
        mended.load_state_dict(states[stop - 1])
        assert list(mended) == whole[stop:]


class Stopping:
    """A ``collate_fn`` that raises ``StopIteration`` at a call."""

    def __init__(self, at: int) -> None:
        self._at, self._calls = at, 0

    def __call__(self, batch: Any) -> Any:
        self._calls += 1
        return batch if self._calls < self._at else next(iter(()))


@pytest.mark.parametrize("batch_size", [None, 3])
@pytest.mark.parametrize("num_workers", [0, 1, THREAD])
def test_a_stop_iteration_of_collate_fn_is_an_error(num_workers: int, batch_size: int | None) -> None:
    """It would end the pass as if there were no more samples."""
    batches = iter(built(names_of(), num_workers, batch_size=batch_size, collate_fn=Stopping(2)))
    next(batches)
    with pytest.raises(RuntimeError, match="collate_fn raised StopIteration"):
        list(batches)


def test_more_workers_than_streams_and_fewer_shards_than_readers_are_errors(folder: str, tmp_path: Path) -> None:
    """Counted as the user has passed them: ranks, workers and streams."""
    with failing(StateError, r"4 slots \(1 rank x 4 workers\) for 3 streams"):
        list(loader_of(folder, 4, num_streams=3))
    write_small_shards(str(tmp_path), num_shards=1, samples_per_shard=4)
    with failing(EmptyShareError, r"1 shard for 2 readers \(1 rank x 2 workers\): "):
        list(built(tdr.stream_shards(f"{tmp_path}/*.tar"), 2))


def test_workers_end_with_an_error_and_the_next_pass_has_new_ones(tmp_path: Path) -> None:
    """Otherwise torch waits 5 s for each worker once the failed pass is collected."""
    write_small_shards(str(tmp_path), num_shards=2, samples_per_shard=2)
    whole = (tmp_path / "000001.tar").read_bytes()
    (tmp_path / "000001.tar").write_bytes(whole[:512])
    others = set(active_children())
    pipe = tdr.IterableWrapper([f"{tmp_path}/{{000000..000001}}.tar"]).list_remote().sharding_filter_rank()
    loader = built(pipe.shard_tar_reader(), 2, batch_size=None)
    with pytest.raises(ShardReadError, match=r"000001\.tar"):
        list(loader)
    assert set(active_children()) == others
    (tmp_path / "000001.tar").write_bytes(whole)
    assert len(list(loader)) == 4


def test_a_pass_that_could_not_start_leaves_the_state(folder: str) -> None:
    """After a worker is killed between two epochs, the same loader reads the next epoch."""
    before = set(active_children())
    loader, other = loader_of(folder, 1, timeout_s=0), loader_of(folder, 1)
    assert keys(list(loader)) == ALL_KEYS
    state = loader.state_dict()
    (worker,) = set(active_children()) - before
    worker.kill()
    worker.join()
    with failing(RuntimeError, "exited unexpectedly|killed"):
        list(loader)
    assert loader.state_dict() == state
    second = list(loader)
    other.set_epoch(1)
    assert second == list(other)


# Options


def joined(samples: list[str]) -> str:
    return "+".join(samples)


def test_options_of_torch_are_passed_to_torch(folder: str) -> None:
    loader = loader_of(folder, 2, batch_size=3, collate_fn=joined, prefetch_factor=5, pin_memory=False)
    assert sorted(key for batch in loader for key in batch.split("+")) == ALL_KEYS
    found = loader.prefetch_factor, loader.persistent_workers, loader.pin_memory, loader.timeout, loader.batch_size
    assert found == (5, True, False, 120, 3)


@pytest.mark.parametrize("make", [tdr.stateful_loader, tdr.thread_loader])
def test_a_resumable_can_be_passed_instead_of_a_chain(folder: str, make: Callable[..., Any]) -> None:
    """It then has the number of streams; two loaders of one have positions of their own."""
    data = tdr.Resumable(chain_of(folder), num_streams=3)
    first, second = make(data, batch_size=4), make(data, batch_size=4)
    batches, others = iter(first), iter(second)
    seen = [next(batches)]
    before = first.state_dict()
    assert before["num_streams"] == 3
    next(others), next(others)
    assert first.state_dict() == before
    assert keys(seen, list(batches)) == ALL_KEYS
    with pytest.raises(ValueError, match="num_streams belongs to the Resumable"):
        make(data, num_streams=3)


def seeds_of(name: str) -> tuple[str, int]:
    return name, int(torch.randint(1 << 30, ()))


def test_the_global_random_state_is_neither_read_nor_changed() -> None:
    """Workers' seeds depend on ``torch.initial_seed()`` and the epoch."""
    before = torch.get_rng_state()
    found = []
    for _ in range(2):
        torch.manual_seed(7)
        loader = built(names_of(8).map(seeds_of), 2, num_streams=2, batch_size=None)
        found.append([list(loader), list(loader)])
        torch.randint(1 << 30, ())
    assert found[0] == found[1]
    assert sorted(seed for _, seed in found[0][0]) != sorted(seed for _, seed in found[0][1])
    torch.set_rng_state(before)
    list(built(names_of(8), 2, num_streams=2, batch_size=4))
    assert torch.equal(torch.get_rng_state(), before)


def report(loader: Any, sender: Connection) -> None:
    sender.send(list(loader))


def test_a_loader_that_is_sent_to_a_started_process_starts_its_next_pass_there(folder: str) -> None:
    """Also if a batch was read before, as by ``ddp_spawn``."""
    loader = loader_of(folder, 0)
    assert next(iter(loader))
    context = multiprocessing.get_context("forkserver")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=report, args=(loader, sender))
    process.start()
    sender.close()
    assert receiver.recv() == list(loader)
    process.join()
    assert process.exitcode == 0


# Memory of batches


def large(name: str) -> torch.Tensor:
    return torch.full((1 << 16,), float(name))


@pytest.mark.parametrize("num_workers", [0, THREAD])
def test_a_large_batch_stays_as_it_is_while_it_is_held(num_workers: int) -> None:
    """Memory of batches is used again once its last tensor is freed, and not before."""
    held = list(built(names_of(32).map(large), num_workers, batch_size=8))
    assert sorted(int(row[0]) for batch in held for row in batch) == list(range(32))
    assert all(bool((row == row[0]).all()) for batch in held for row in batch)
    parts = [batch[1:].numpy() for batch in built(names_of(32).map(large), num_workers, batch_size=8)]
    assert [part.tolist() for part in parts] == [batch[1:].tolist() for batch in held]


class Keeping:
    """Keeps a part of each image for a while, as functions do that mix images; shows what it kept of an earlier one."""

    def __init__(self, hold: Callable[[torch.Tensor], Any]) -> None:
        self._hold, self._kept = hold, collections.deque[Any](maxlen=12)

    def __call__(self, item: tuple[torch.Tensor]) -> tuple[torch.Tensor, int]:
        earlier = int(torch.as_tensor(self._kept[0]).flatten()[0]) if len(self._kept) == 12 else -1
        self._kept.append(self._hold(item[0]))
        return item[0], earlier


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A shard of 30 images whose pixels are their number."""
    folder = tmp_path_factory.mktemp("images")
    with tdr.ShardWriter(f"{folder}/{{shard}}.tar") as writer:
        for number in range(30):
            Image.new("L", (2, 2), number).save(file := io.BytesIO(), "PNG")
            writer.write({"__key__": f"{number:02d}", "png": file.getvalue()})
    return f"{folder}/"


HOLDS: dict[str, Callable[[torch.Tensor], Any]] = {
    "image": lambda image: image,
    "view": lambda image: image[0],
    "array": lambda image: image.numpy(),
    "detached": lambda image: image.detach(),
}


@pytest.mark.parametrize("hold", HOLDS)
@pytest.mark.parametrize("num_workers", [0, 1, THREAD])
def test_batches_of_decoded_images_do_not_share_memory_with_what_the_chain_keeps(
    images: str, num_workers: int, hold: str
) -> None:
    """Images are written where the batch is; each batch stays as it is while it is held. In workers it is shared."""
    decoded = tdr.stream_shards(images, shuffle=False).decode_image(2, crop=None, dtype=torch.uint8, members="png")
    pipe = decoded.to_tuple("png").map(Keeping(HOLDS[hold]))
    options: dict[str, Any] = (
        {"prefetch_batches": 1} if num_workers == THREAD else {"prefetch_factor": 1 if num_workers else None}
    )
    numbers, earlier, held = list[int](), list[int](), list[torch.Tensor]()
    for batch, kept in built(pipe, num_workers, batch_size=4, **options):
        numbers += batch[:, 0, 0, 0].tolist()
        earlier += kept.tolist()
        assert batch.shape[1:] == (3, 2, 2)
        assert batch.is_shared() == (num_workers > 0)
        held.append(batch.fill_(100 + len(held)))
    assert numbers == list(range(30))
    assert earlier == [-1] * 12 + list(range(18))
    assert all(bool((batch == 100 + at).all()) for at, batch in enumerate(held))
