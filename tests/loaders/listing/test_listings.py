"""Which process lists, and how often: this rank's for its workers, or rank 0 for all ranks."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader
from torch.utils.data.datapipes.iter import IterableWrapper

from tests.servers.scripted import Request, Response, Scripted, scripted
from tests.support.ranks import run_ranks
from torchdata_remote import Resumable, StatefulLoader, World, stateful_loader
from torchdata_remote.errors import EmptyListingError, ObjectNotFoundError, StateError
from torchdata_remote.testing import write_small_shards

NUM_SHARDS, SAMPLES_PER_SHARD = 6, 3
NUM_SAMPLES = NUM_SHARDS * SAMPLES_PER_SHARD

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This process was forked from one:RuntimeWarning"),  # obstore, by other tests
]


def key_of(sample: tuple[str]) -> str:
    return sample[0]


def chain_of(source: str, pattern: str | None = None) -> Any:
    urls = IterableWrapper([source]).list_remote(pattern=pattern).shuffle_shards(seed=1).sharding_filter_rank()
    return urls.shard_tar_reader().to_tuple("__key__").map(key_of)


def loader_of(source: str, num_workers: int, method: Any = "fork", **more: Any) -> StatefulLoader:
    options = {"batch_size": 2, "num_streams": 4, **more}
    pattern = options.pop("pattern", None)
    return stateful_loader(
        chain_of(source, pattern), num_workers=num_workers, multiprocessing_context=method, **options
    )


def samples(loader: Any) -> Counter[str]:
    return Counter(key for batch in loader for key in batch)


@contextmanager
def served(folder: Path) -> Iterator[Scripted]:
    """A web server of a folder that records its requests."""

    def respond(request: Request) -> Response:
        path = folder / request.target.lstrip("/")
        return Response.of_object(request, path.read_bytes()) if path.is_file() else Response(404)

    with scripted(respond) as server:
        yield server


def num_listings(server: Scripted) -> int:
    """The number of requests for the manifest."""
    return sum(request.target == "/index.json" for request in server.requests)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shards")
    write_small_shards(str(path), num_shards=NUM_SHARDS, samples_per_shard=SAMPLES_PER_SHARD)
    return path


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("list_once", [False, True])
def test_a_rank_lists_once_an_epoch_or_once_for_all(folder: Path, num_workers: int, list_once: bool) -> None:
    """With any number of workers, also after a resume; with ``list_once`` in the first epoch only."""
    with served(folder) as server:
        loader = loader_of(f"{server.url}/index.json", num_workers, list_once=list_once)
        for epoch in range(1, 4):
            assert sum(samples(loader).values()) == NUM_SAMPLES
            assert num_listings(server) == (1 if list_once else epoch)
        head = list(islice(loader, 3))
        state = loader.state_dict()
        loader.load_state_dict(json.loads(json.dumps(state)))
        assert sum((samples(head) + samples(loader)).values()) == NUM_SAMPLES
        assert num_listings(server) == (1 if list_once else 5)


@pytest.mark.parametrize("list_once", [False, True])
def test_objects_added_between_epochs_are_read_unless_listed_once(tmp_path: Path, list_once: bool) -> None:
    """The state of an epoch's end starts an epoch with them; with ``list_once`` it is refused."""
    write_small_shards(f"{tmp_path}/a", num_shards=4, samples_per_shard=3)
    loader, again = (loader_of(str(tmp_path), 0, pattern="*.tar", list_once=list_once) for _ in range(2))
    assert sum(samples(loader).values()) == 12
    write_small_shards(f"{tmp_path}/b", num_shards=4, samples_per_shard=2)
    again.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    if list_once:
        with pytest.raises(StateError, match="4 objects and 8"):
            list(again)
    else:
        assert sum(samples(again).values()) == 20


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_length_is_computed_once_an_epoch(folder: Path, num_workers: int) -> None:
    """Progress bars and trainers use it at each step; the manifest may have megabytes."""
    with served(folder) as server:
        url = f"{server.url}/index.json"
        urls = IterableWrapper([url]).list_remote().shuffle_shards(seed=1).sharding_filter_rank()
        chain = urls.shard_tar_reader().equalize_ranks(mode="drop").to_tuple("__key__").map(key_of)
        loader = stateful_loader(
            chain, batch_size=2, num_streams=4, num_workers=num_workers, multiprocessing_context="fork"
        )
        for epoch in range(2):
            before = num_listings(server)
            lengths = {len(loader) for _ in range(5)}
            dataset_lengths = {len(loader.dataset) for _ in range(5)}
            assert num_listings(server) - before <= 2, epoch  # of the loader and of its dataset
            batches = list(loader)
            assert lengths == {len(batches)}
            assert dataset_lengths == {sum(samples(batches).values())}


@pytest.mark.parametrize(("method", "num_workers"), [("forkserver", 2), ("spawn", 1)])
def test_the_listing_reaches_workers_of_every_start_method(folder: Path, method: Any, num_workers: int) -> None:
    """Those that start, and in the next epoch those that run."""
    with served(folder) as server:
        loader = loader_of(f"{server.url}/index.json", num_workers, method)
        for epoch in (1, 2):
            assert sum(samples(loader).values()) == NUM_SAMPLES
            assert num_listings(server) == epoch


def test_list_now_serves_any_loader(folder: Path) -> None:
    """After it, no worker of torch's own loader lists, in any epoch."""
    with served(folder) as server:
        data = Resumable(chain_of(f"{server.url}/index.json"))
        data.list_now()
        sent = pickle.loads(pickle.dumps(data))
        assert num_listings(server) == 1
        for one in (data, sent):
            loader: DataLoader[str] = DataLoader(one, batch_size=None, num_workers=2, multiprocessing_context="fork")
            for _ in range(2):
                assert len(set(loader)) == NUM_SAMPLES
        assert num_listings(server) == 1


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_epoch_reads_the_objects_that_exist_at_its_start(tmp_path: Path, num_workers: int) -> None:
    """Added objects are read in the next epoch, except with ``list_once``."""
    write_small_shards(f"{tmp_path}/a", num_shards=4, samples_per_shard=3)
    fresh = loader_of(str(tmp_path), num_workers, pattern="*.tar")
    kept = loader_of(str(tmp_path), num_workers, pattern="*.tar", list_once=True)
    assert [sum(samples(loader).values()) for loader in (fresh, kept)] == [12, 12]
    write_small_shards(f"{tmp_path}/b", num_shards=4, samples_per_shard=2)
    assert [sum(samples(loader).values()) for loader in (fresh, kept)] == [20, 12]
    assert [sum(samples(loader).values()) for loader in (fresh, kept)] == [20, 12]


def test_batches_do_not_depend_on_the_process_that_lists(folder: Path) -> None:
    """Nor do the states."""
    data = Resumable(chain_of(f"{folder}/index.json"), num_streams=4)
    by_itself = [list(data), list(data)]
    data.set_epoch(0)
    data.list_now()
    assert [list(data), list(data)] == by_itself
    plain, kept = (loader_of(f"{folder}/index.json", 2, list_once=once) for once in (False, True))
    for _ in range(2):
        for batch, other in zip(plain, kept, strict=True):
            assert batch == other
            assert plain.state_dict() == kept.state_dict()


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("list_once", [False, True])
def test_an_error_of_the_listing_is_raised_by_the_pass(tmp_path: Path, num_workers: int, list_once: bool) -> None:
    """With its own type, after one attempt; if the objects exist later, the next epoch reads them."""
    with served(tmp_path) as server:
        loader = loader_of(f"{server.url}/index.json", num_workers, list_once=list_once)
        with pytest.raises(ObjectNotFoundError, match=r"index\.json") as caught:
            list(loader)
        caught.value.__traceback__ = None  # or a cycle would keep the loader, whose workers then are not told to end
        del caught
        assert num_listings(server) == 1
        write_small_shards(str(tmp_path), num_shards=NUM_SHARDS, samples_per_shard=SAMPLES_PER_SHARD)
        assert sum(samples(loader).values()) == NUM_SAMPLES
    with pytest.raises(EmptyListingError):
        Resumable(chain_of(str(tmp_path), pattern="*.zip")).list_now()


class OnlyHere(str):
    """A URL that cannot be pickled."""

    __slots__ = ()

    def __reduce__(self) -> Any:
        raise TypeError("only here")


def test_items_that_cannot_be_pickled_are_listed_by_the_workers(folder: Path) -> None:
    """Forked workers have these items."""
    urls = [OnlyHere(path) for path in sorted(folder.glob("*.tar"))]
    source = IterableWrapper(urls, deepcopy=False).sharding_filter_rank()
    pipe = source.shard_tar_reader().to_tuple("__key__").map(key_of)
    loader = stateful_loader(pipe, batch_size=2, num_workers=2, multiprocessing_context="fork")
    assert sum(samples(loader).values()) == NUM_SAMPLES


def test_a_worker_receives_the_positions_of_its_rank_only(folder: Path) -> None:
    """Of a state of all ranks, which each rank loads."""
    pipe = IterableWrapper([f"{folder}/index.json"]).list_remote()
    whole = Resumable(pipe.sharding_filter_rank().shard_tar_reader(), num_streams=6)
    state = whole.state_dict()
    seen: list[int] = []
    for rank in range(3):
        mine = pipe.sharding_filter_rank(world=World(rank, 3)).shard_tar_reader()
        data = Resumable(mine, num_streams=6)
        data.load_state_dict(state)
        sent = pickle.loads(pickle.dumps(data))
        numbers = [number for number, _ in sent.loaded["streams"]]
        assert numbers == [rank, rank + 3]
        assert data.loaded is not None
        assert len(data.loaded["streams"]) == 6
        assert sent.state_dict()["streams"] == data.state_dict()["streams"]
        assert [sample["__key__"] for sample in sent] == [sample["__key__"] for sample in data]
        seen += numbers
    assert sorted(seen) == list(range(6))


FORKING_SCRIPT = """
import sys, warnings
import torchdata_remote as tdr
from torchdata_remote.storage import obstore_reader

warnings.simplefilter("error", RuntimeWarning)
pipe = tdr.stream_shards(sys.argv[1]).to_tuple("__key__")
loader = tdr.stateful_loader(pipe, batch_size=None, num_workers=2, multiprocessing_context="fork")
print([len(list(loader)) for _ in range(2)], obstore_reader._used)
"""


def test_a_process_that_has_only_listed_can_be_forked(folder: Path) -> None:
    """It reads the manifest without obstore, which its workers can then use."""
    with served(folder) as server:
        command = [sys.executable, "-c", FORKING_SCRIPT, f"{server.url}/index.json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.stdout.strip() == f"[{NUM_SAMPLES}, {NUM_SAMPLES}] False", done.stderr
        assert num_listings(server) == 2


GLOO_SCRIPT = """
import itertools, json, os, sys
import torch.distributed
import torchdata_remote as tdr
from torch.utils.data.datapipes.iter import IterableWrapper
from torchdata_remote.loaders import rank_exchange as ranks

arguments = json.loads(sys.argv[1])
rank = int(os.environ["RANK"])
report = {}


def key_of(sample):
    return sample[0]


def loader_of(source, num_workers, **more):
    urls = IterableWrapper([source]).list_remote().shuffle_shards(seed=1).sharding_filter_rank()
    pipe = urls.shard_tar_reader().to_tuple("__key__").map(key_of)
    options = {"list_in_rank_0": True, "num_streams": 4, "multiprocessing_context": "fork", **more}
    return tdr.stateful_loader(pipe, batch_size=2, num_workers=num_workers, **options)


def error_of(loader):
    try:
        list(loader)
    except Exception as error:
        return [type(error).__name__, str(error)]


before = loader_of(arguments["url"] + "/alone/index.json", 0)
report["alone"] = sum(map(len, before))  # no group yet: each rank lists
torch.distributed.init_process_group("gloo")
for num_workers in (0, 2):
    loader = loader_of(arguments["url"] + f"/each/{num_workers}/index.json", num_workers)
    report[f"each {num_workers}"] = [list(loader), list(loader)]
    once = loader_of(arguments["url"] + f"/once/{num_workers}/index.json", num_workers, list_once=True)
    report[f"once {num_workers}"] = [list(once), list(once)]
    report[f"failing {num_workers}"] = error_of(
        loader_of(arguments["url"] + f"/none/{num_workers}/index.json", num_workers)
    )
    # Only rank 0 lists
    source = arguments["url"] + (f"/rank0/{num_workers}/index.json" if rank == 0 else "/nowhere/index.json")
    report[f"only {num_workers}"] = list(loader_of(source, num_workers))

sent = []
gather = torch.distributed.all_gather_object
torch.distributed.all_gather_object = lambda received, own: (sent.append(own), gather(received, own))
state = loader.state_dict()
of_all_ranks = [None, None]
gather(of_all_ranks, state)
merged = tdr.merge_states(of_all_ranks)
loader.load_state_dict(merged)
report["sent"] = [isinstance(message[3], str) for message in sent]
loader.load_state_dict(state)
report["sent own"] = [isinstance(message[3], str) for message in sent]
report["rest"] = list(loader)
print(json.dumps(report))
torch.distributed.barrier()
torch.distributed.destroy_process_group()
sys.stdout.flush()
os._exit(0)  # gloo's threads may still hold tensors, see pytorch#190489
"""


def test_rank_0_lists_for_all_ranks(folder: Path) -> None:
    """In a process group, once an epoch; an error of rank 0 is raised in all ranks. Without one each rank lists."""

    def respond(request: Request) -> Response:
        kind, _, name = request.target.lstrip("/").rpartition("/")
        if kind.startswith("no"):
            return Response(404)
        return Response.of_object(request, (folder / name).read_bytes())

    with scripted(respond) as server:
        ranks = run_ranks(GLOO_SCRIPT, url=server.url)
        listed = Counter(
            request.target.rpartition("/")[0][1:] for request in server.requests if request.target.endswith("json")
        )
    assert listed.pop("alone") == 2
    for num_workers in (0, 2):
        assert listed.pop(f"each/{num_workers}") == 2 + bool(num_workers)  # which the end goes on with
        assert listed.pop(f"once/{num_workers}") == 1
        assert listed.pop(f"none/{num_workers}") == 1
        assert listed.pop(f"rank0/{num_workers}") == 1
        for name in ("each", "once"):
            epochs = [rank[f"{name} {num_workers}"] for rank in ranks]
            assert all(len(samples(first + second)) == NUM_SAMPLES for first, second in zip(*epochs, strict=True))
        assert len(samples(ranks[0][f"only {num_workers}"] + ranks[1][f"only {num_workers}"])) == NUM_SAMPLES
        name, message = ranks[0][f"failing {num_workers}"]
        assert (name, "Rank 0" in message) == ("ObjectNotFoundError", False)
        name, message = ranks[1][f"failing {num_workers}"]
        assert name == "RemoteDataError"
        assert "Rank 0 failed to list for all ranks: ObjectNotFoundError: " in message
    assert not listed
    for rank in ranks:
        assert rank["sent"] == [True]  # all have the same state: a digest
        assert rank["sent own"] == [True, True, False]  # a digest each, and then the states
    assert len(samples(ranks[0]["rest"] + ranks[1]["rest"])) == NUM_SAMPLES
