"""Which process lists, and how often: a rank for its workers, once an epoch or once for all; the data of that time."""

from __future__ import annotations

import os
import pickle
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

import torchdata_remote as tdr
from tests.servers.scripted import Request, Response, Scripted, scripted
from tests.support.loaders import built, key_of, through_json
from torchdata_remote.errors import EmptyListingError, ObjectNotFoundError, StateError
from torchdata_remote.testing import write_small_shards

from .conftest import ALL_KEYS, NUM_SHARDS, SAMPLES_PER_SHARD

NUM_SAMPLES = len(ALL_KEYS)


def chain_of(source: str, pattern: str | None = None, *, equal: bool = False) -> Any:
    urls = tdr.IterableWrapper([source]).list_remote(pattern=pattern).shuffle_shards(seed=1).sharding_filter_rank()
    reader = urls.shard_tar_reader()
    return (reader.equalize_ranks(mode="drop") if equal else reader).to_tuple("__key__").map(key_of)


def loader_of(source: str, num_workers: int, method: str = "fork", **more: Any) -> Any:
    pattern = more.pop("pattern", None)
    return built(chain_of(source, pattern), num_workers, method, **{"batch_size": 2, "num_streams": 4, **more})


def samples(loader: Any) -> Counter[str]:
    return Counter(key for batch in loader for key in batch)


@contextmanager
def served(folder: str | Path) -> Iterator[Scripted]:
    """A web server of a folder that records its requests."""

    def respond(request: Request) -> Response:
        path = Path(folder) / request.target.lstrip("/")
        return Response.of_object(request, path.read_bytes()) if path.is_file() else Response(404)

    with scripted(respond) as server:
        yield server


def num_listings(server: Scripted) -> int:
    """The number of requests for the manifest."""
    return sum(request.target == "/index.json" for request in server.requests)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("list_once", [False, True])
def test_a_rank_lists_once_an_epoch_or_once_for_all(folder: str, num_workers: int, list_once: bool) -> None:
    """With any number of workers, also after a resume; with ``list_once`` in the first epoch only."""
    with served(folder) as server:
        loader = loader_of(f"{server.url}/index.json", num_workers, list_once=list_once)
        for epoch in range(1, 4):
            assert sum(samples(loader).values()) == NUM_SAMPLES
            assert num_listings(server) == (1 if list_once else epoch)
        head = list(islice(loader, 3))
        loader.load_state_dict(through_json(loader.state_dict()))
        assert sum((samples(head) + samples(loader)).values()) == NUM_SAMPLES
        assert num_listings(server) == (1 if list_once else 5)


def test_the_listing_reaches_workers_that_are_not_forked(folder: str) -> None:
    """Those that start, and in the next epoch those that run."""
    with served(folder) as server:
        loader = loader_of(f"{server.url}/index.json", 1, "spawn")
        for epoch in (1, 2):
            assert sum(samples(loader).values()) == NUM_SAMPLES
            assert num_listings(server) == epoch


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_epoch_reads_the_objects_that_exist_at_its_start_unless_listed_once(
    tmp_path: Path, num_workers: int
) -> None:
    """Objects that were added are read in the next epoch."""
    write_small_shards(f"{tmp_path}/a", num_shards=4, samples_per_shard=3)
    fresh = loader_of(str(tmp_path), num_workers, pattern="*.tar")
    kept = loader_of(str(tmp_path), num_workers, pattern="*.tar", list_once=True)
    assert [sum(samples(loader).values()) for loader in (fresh, kept)] == [12, 12]
    write_small_shards(f"{tmp_path}/b", num_shards=4, samples_per_shard=2)
    for _ in range(2):
        assert [sum(samples(loader).values()) for loader in (fresh, kept)] == [20, 12]


@pytest.mark.parametrize("list_once", [False, True])
def test_the_state_of_an_epochs_end_starts_an_epoch_with_objects_that_were_added(
    tmp_path: Path, list_once: bool
) -> None:
    """With ``list_once`` it is refused."""
    write_small_shards(f"{tmp_path}/a", num_shards=4, samples_per_shard=3)
    loader, again = (loader_of(str(tmp_path), 0, pattern="*.tar", list_once=list_once) for _ in range(2))
    assert sum(samples(loader).values()) == 12
    write_small_shards(f"{tmp_path}/b", num_shards=4, samples_per_shard=2)
    again.load_state_dict(through_json(loader.state_dict()))
    if list_once:
        with pytest.raises(StateError, match="4 objects and 8"):
            list(again)
    else:
        assert sum(samples(again).values()) == 20


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_length_is_computed_once_an_epoch(folder: str, num_workers: int) -> None:
    """Progress bars and trainers use it at each step; the manifest may have megabytes."""
    with served(folder) as server:
        chain = chain_of(f"{server.url}/index.json", equal=True)
        loader = built(chain, num_workers, batch_size=2, num_streams=4)
        for epoch in range(2):
            before = num_listings(server)
            lengths = {len(loader) for _ in range(5)}
            dataset_lengths = {len(loader.dataset) for _ in range(5)}
            assert num_listings(server) - before <= 2, epoch  # of the loader and of its dataset
            batches = list(loader)
            assert lengths == {len(batches)}
            assert dataset_lengths == {sum(samples(batches).values())}


def test_list_now_serves_any_loader(folder: str) -> None:
    """After it, no worker of torch's own loader lists, in any epoch; a copy has the listing."""
    with served(folder) as server:
        data = tdr.Resumable(chain_of(f"{server.url}/index.json"))
        data.list_now()
        sent = pickle.loads(pickle.dumps(data))
        assert num_listings(server) == 1
        for one in (data, sent):
            loader: DataLoader[str] = DataLoader(one, batch_size=None, num_workers=2, multiprocessing_context="fork")
            for _ in range(2):
                assert len(set(loader)) == NUM_SAMPLES
        assert samples(tdr.stateful_loader(sent, batch_size=2)).total() == NUM_SAMPLES
        assert num_listings(server) == 1
    with pytest.raises(EmptyListingError):
        tdr.Resumable(chain_of(folder, pattern="*.zip")).list_now()


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("list_once", [False, True])
def test_an_error_of_the_listing_is_raised_by_the_pass_after_one_attempt(
    tmp_path: Path, num_workers: int, list_once: bool
) -> None:
    """With its own type; if the objects exist later, the next epoch reads them."""
    with served(tmp_path) as server:
        loader = loader_of(f"{server.url}/index.json", num_workers, list_once=list_once)
        with pytest.raises(ObjectNotFoundError, match=r"index\.json") as caught:
            list(loader)
        caught.value.__traceback__ = None  # or a cycle would keep the loader, whose workers then are not told to end
        del caught
        assert num_listings(server) == 1
        write_small_shards(str(tmp_path), num_shards=NUM_SHARDS, samples_per_shard=SAMPLES_PER_SHARD)
        assert sum(samples(loader).values()) == NUM_SAMPLES


class OnlyHere(str):
    """A URL that cannot be pickled."""

    __slots__ = ()

    def __reduce__(self) -> Any:
        raise TypeError("only here")


def test_items_that_cannot_be_pickled_are_listed_by_forked_workers(folder: str) -> None:
    urls = [OnlyHere(path) for path in sorted(Path(folder).glob("*.tar"))]
    source = tdr.IterableWrapper(urls, deepcopy=False).sharding_filter_rank()
    loader = built(source.shard_tar_reader().to_tuple("__key__").map(key_of), 2, batch_size=2)
    assert sum(samples(loader).values()) == NUM_SAMPLES


def test_without_space_for_temporary_files_workers_list_by_themselves(
    folder: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A full or missing folder is logged, and is no error; otherwise nothing is left there."""
    monkeypatch.setattr("tempfile.tempdir", f"{folder}/missing")
    with served(folder) as server:
        assert samples(loader_of(f"{server.url}/index.json", 2)).total() == NUM_SAMPLES
        assert num_listings(server) == 1 + 2
    assert "could not be passed to the workers, which list again" in caplog.text


def test_the_listing_is_passed_in_a_file_without_a_name(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is killed at any moment leaves none."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    loader = loader_of(f"{folder}/index.json", 2)
    batches = iter(loader)
    next(batches)
    assert list(tmp_path.iterdir()) == []
    names = set()
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # closed since, as that of this list
            names.add(os.readlink(f"/proc/self/fd/{fd}"))
    assert any(name.startswith(f"{tmp_path}/") for name in names)
    assert list(batches)
