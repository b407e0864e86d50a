"""Repositories of the Hub: listing, reading from its CDN, revisions, tokens, refusals."""

from __future__ import annotations

import json
import multiprocessing
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data.datapipes.iter import IterableWrapper

from tests.servers.hub import TOKEN, Hub
from tests.servers.scripted import Response, scripted
from torchdata_remote import (
    AsyncPrefetch,
    Backend,
    ListRemote,
    Resumable,
    RetryPolicy,
    ShardWriter,
    stream_files,
    stream_shards,
)
from torchdata_remote.core.options import StorageOptions
from torchdata_remote.errors import (
    AccessDeniedError,
    EmptyListingError,
    ObjectChangedError,
    ObjectNotFoundError,
    StateError,
    StorageError,
    TransientStorageError,
    UrlError,
)
from torchdata_remote.storage import Connection, FolderStore, RangeNotSatisfiableError, Store, open_store
from torchdata_remote.testing import write_small_shards

PLACE = "hf://datasets/tests/photos"
SHARDS = {f"data/train-{number}.tar": bytes([number]) * (50_000 + number) for number in range(4)}
FILES = {**SHARDS, "README.md": b"# Photos", "a b/\u00fc+%.txt": b"small"}
ONE_ATTEMPT = RetryPolicy(max_attempts=1)


def options(hub: Hub, **more: Any) -> StorageOptions:
    return StorageOptions({"endpoint": hub.url, "token": TOKEN, **more})


def opened(hub: Hub, url: str, **more: Any) -> tuple[Store, str]:
    return open_store(url, options(hub, **more))


def listed(hub: Hub, source: str, **more: Any) -> list[Any]:
    return list(ListRemote(IterableWrapper([source]), storage_options=options(hub), **more))


def fetched(hub: Hub, *urls: str, **more: Any) -> list[bytes]:
    pipe = AsyncPrefetch(IterableWrapper(urls), storage_options=options(hub), **{"retry": ONE_ATTEMPT, **more})
    return [stream.read() for _, stream in pipe]


@pytest.fixture
def photos(hub: Hub) -> Hub:
    hub.repository("tests/photos").commit(FILES)
    return hub


def test_a_repository_is_listed_in_pages_in_the_order_of_paths(photos: Hub) -> None:
    """Although the Hub lists folders first; with sizes and names of contents."""
    photos.page_size = 2
    urls = listed(photos, f"{PLACE}/", recursive=True)
    assert urls == [f"{PLACE}/{path}" for path in sorted(FILES)]
    assert [url.size for url in urls] == [len(FILES[path]) for path in sorted(FILES)]
    assert photos.count("hub", "/tree/") == 4
    assert photos.count("hub", "/revision/main") == 1
    files = photos.repository("tests/photos").files()
    assert [url.etag for url in urls] == [files[path].etag for path in sorted(FILES)]
    for url in urls:
        store, path = opened(photos, url)
        assert store.stat(path)[:3] == (path, url.size, url.etag)
        assert store.read(path, 0, 1, None).etag == url.etag


def test_a_listing_that_breaks_off_is_an_error(photos: Hub) -> None:
    """A folder that is gone at its second page is not a folder that ends with the first."""
    photos.page_size = 2
    store, path = opened(photos, f"{PLACE}/")
    first = store.list_page(path, recursive=True, token=None)
    assert first.next_token is not None
    photos.responses = [(404, {"X-Error-Code": "EntryNotFound", "X-Error-Message": "it is gone"})]
    with pytest.raises(ObjectNotFoundError, match="no such file"):
        store.list_page(path, recursive=True, token=first.next_token)


def test_a_folder_a_glob_a_file_and_braces_are_listed(photos: Hub) -> None:
    """A missing one is an empty listing, whose error names what is there."""
    assert listed(photos, f"{PLACE}/data/") == [f"{PLACE}/{path}" for path in SHARDS]
    assert listed(photos, f"{PLACE}/data/train-[12].tar") == [f"{PLACE}/data/train-{n}.tar" for n in (1, 2)]
    [url] = listed(photos, f"{PLACE}/data/train-1.tar")
    assert url.size == 50_001
    assert listed(photos, f"{PLACE}/data/train-{{0..1}}.tar") == [f"{PLACE}/data/train-{n}.tar" for n in (0, 1)]
    assert listed(photos, f"{PLACE}/data", recursive=True) == [f"{PLACE}/{path}" for path in SHARDS]
    with pytest.raises(EmptyListingError, match=r"did you mean 'data'"):
        listed(photos, f"{PLACE}/dada/")


def test_the_store_lists_and_finds_folders(photos: Hub) -> None:
    """Page by page, sorted, as the command line shows them."""
    store, _ = opened(photos, f"{PLACE}/")
    assert isinstance(store, FolderStore)
    first = store.list_after("tests/photos/", recursive=True, after="", limit=3)
    second = store.list_after("tests/photos/", recursive=True, after=first.next_token or "", limit=10)
    assert [one.path for one in [*first.entries, *second.entries]] == [f"tests/photos/{path}" for path in sorted(FILES)]
    top = store.list_after("tests/photos/", recursive=False, after="", limit=10)
    assert (top.folders, [one.path for one in top.entries]) == (
        ["tests/photos/a b/", "tests/photos/data/"],
        ["tests/photos/README.md"],
    )
    assert store.has_folder("tests/photos/data/")
    assert not store.has_folder("tests/photos/dat/")
    assert store.find("tests/photos/data") is None
    assert store.find("tests/photos") is None


@pytest.mark.parametrize("small", ["directly", "resolve-cache"])
@pytest.mark.parametrize("lfs", ["directly", "cdn"])
def test_files_are_read_wherever_the_hub_keeps_them(photos: Hub, small: str, lfs: str) -> None:
    """On its own host, behind its cache, on the CDN; whole and in parts. The token stays at the Hub."""
    photos.serves_small_files, photos.serves_lfs = small, lfs
    for part_bytes in (1 << 20, 7000):
        urls = [f"{PLACE}/{path}" for path in FILES]
        assert fetched(photos, *urls, part_bytes=part_bytes) == list(FILES.values())
    assert not any(one.has_token for one in photos.requests if one.host == "cdn")
    assert all(one.has_token for one in photos.requests if one.host == "hub")


def test_further_parts_cost_no_request_to_the_hub(photos: Hub) -> None:
    """Also if all of them are requested at the same time."""
    [url] = listed(photos, f"{PLACE}/data/train-3.tar")
    photos.requests.clear()
    assert fetched(photos, url, part_bytes=4096) == [FILES["data/train-3.tar"]]
    assert photos.count("hub") == 0, "the listing's HEAD has told the address"
    assert photos.count("cdn") == 13
    photos.requests.clear()
    store, path = opened(photos, f"{PLACE}/data/train-2.tar")
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda start: store.read(path, start, start + 10, None).whole(), range(8)))
    assert answers == [bytes([2]) * 10] * 8
    assert photos.count("hub", "/resolve/") == 1


def test_an_address_is_used_until_it_expires(photos: Hub) -> None:
    """Then the Hub is asked once more, also if its time has come before the CDN's refusal."""
    store, path = opened(photos, f"{PLACE}/data/train-0.tar")
    for _ in range(2):
        assert store.read(path, 5, 9, None).whole() == bytes(4)
    assert photos.count("hub", "/resolve/") == 1
    photos.expire_signatures()
    assert store.read(path, 5, 9, None).whole() == bytes(4)
    assert photos.count("hub", "/resolve/") == 2
    assert photos.count("cdn") == 4, "one of which was refused"
    with pytest.MonkeyPatch.context() as patch:
        later = time.monotonic() + photos.signature_s
        patch.setattr("torchdata_remote.storage.hugging_face.locations.monotonic", lambda: later)
        assert store.read(path, 5, 9, None).whole() == bytes(4)
    assert photos.count("hub", "/resolve/") == 3
    assert photos.count("cdn") == 5


def test_an_address_that_is_refused_at_once_is_an_error_without_its_signature(photos: Hub) -> None:
    """Which names the host."""
    store, path = opened(photos, f"{PLACE}/data/train-0.tar")
    photos.signature_s = -10
    with pytest.raises(AccessDeniedError, match=f"{photos.cdn_url} refuses the address") as caught:
        store.read(path, 0, 10, None)
    assert "Signature" not in f"{caught.value!r} {caught.value.__cause__!r}"


def test_a_branch_that_moves_does_not_mix_versions(photos: Hub) -> None:
    """A store reads the commit that it saw first; a new one sees the new commit."""
    store, path = opened(photos, f"{PLACE}/data/train-0.tar")
    before = store.stat(path)
    photos.repository("tests/photos").commit({"data/train-0.tar": b"new" * 20_000, "data/train-9.tar": b"9"})
    assert store.stat(path) == before
    assert store.read(path, 0, 3, before.etag).whole() == bytes(3)
    assert len(listed(photos, f"{PLACE}/data/")) == 4
    newer, _ = open_store(f"{PLACE}/", options(photos, revision="main"))
    assert newer.read(path, 0, 3, None).whole() == b"new"
    urls = listed(photos, f"{PLACE}/data/")
    with pytest.raises(ObjectChangedError):  # as in a worker process that starts after the branch has moved
        list(stream_shards(urls, storage_options=options(photos, revision="main"), seed=None))


@pytest.mark.parametrize("written", ["v1%2Fb", "refs/convert/parquet", "refs%2Fconvert%2Fparquet", "refs/pr/3"])
def test_revisions_are_read_as_the_official_filesystem_reads_them(photos: Hub, written: str) -> None:
    """With the slashes of special references written as they are."""
    branch = written.replace("%2F", "/")
    photos.repository("tests/photos").commit({"data/only@here.tar": b"x" * 600}, branch=branch)
    [url] = listed(photos, f"{PLACE}@{written}/data/only*")
    assert url == f"{PLACE}@{written}/data/only@here.tar"
    assert fetched(photos, url) == [b"x" * 600]
    assert fetched(photos, f"{PLACE}/README.md") == [b"# Photos"]


def test_a_commit_is_read_without_asking_which_it_is(photos: Hub) -> None:
    """By the URL or by the option."""
    repository = photos.repository("tests/photos")
    commit = repository.branches["main"]
    repository.commit({"README.md": b"newer"})
    assert fetched(photos, f"{PLACE}@{commit}/README.md") == [b"# Photos"]
    store, path = opened(photos, f"{PLACE}/README.md", revision=commit)
    assert store.read(path, 0, None, None).whole() == b"# Photos"
    assert photos.count("hub", "/revision/") == 0
    store, path = opened(photos, f"{PLACE}@main/README.md", revision=commit)
    with pytest.raises(UrlError, match="Pass one of them"):
        store.stat(path)


def test_models_spaces_and_names_without_an_owner_are_read(hub: Hub) -> None:
    """A renamed repository too: the Hub redirects, and keeps the token."""
    for kind, start in (("models", "hf://"), ("models", "hf://models/"), ("spaces", "hf://spaces/")):
        hub.repository("tests/thing", kind).commit({"weights/a.bin": b"w" * 100})
        assert fetched(hub, f"{start}tests/thing/weights/a.bin") == [b"w" * 100]
        assert listed(hub, f"{start}tests/thing@main/weights/") == [f"{start}tests/thing@main/weights/a.bin"]
    hub.repository("tests/squad").commit({"plain/a.bin": b"s" * 100, "README.md": b"r"})
    hub.new_names["squad"] = "tests/squad"
    hub.repositories["datasets", "squad"] = hub.repository("tests/squad")
    assert fetched(hub, "hf://datasets/squad/plain/a.bin", "hf://datasets/squad/README.md") == [b"s" * 100, b"r"]
    assert listed(hub, "hf://datasets/squad/plain/") == ["hf://datasets/squad/plain/a.bin"]
    assert fetched(hub, "hf://datasets/squad@main/plain/a.bin") == [b"s" * 100]
    hub.repositories["models", "bert"] = hub.repository("tests/thing", "models")
    assert fetched(hub, "hf://bert@main/weights/a.bin", "hf://bert/weights/a.bin") == [b"w" * 100] * 2


@pytest.mark.parametrize(
    ("url", "expected", "says"),
    [
        ("hf://datasets/tests/other/a.tar", ObjectNotFoundError, "has no dataset 'tests/other'"),
        (f"{PLACE}@other/data/train-0.tar", ObjectNotFoundError, "has no revision 'other'"),
        (f"{PLACE}/data/other.tar", ObjectNotFoundError, "no such file in the dataset 'tests/photos'"),
        (f"{PLACE}/data/../README.md", ObjectNotFoundError, "no empty segment"),
        (PLACE, ObjectNotFoundError, "names a repository, not a file"),
    ],
)
def test_what_is_missing_is_named(photos: Hub, url: str, expected: type[StorageError], says: str) -> None:
    """The repository, the revision, or the file."""
    store, path = opened(photos, url)
    for attempt in (lambda: store.read(path, 0, 10, None), lambda: store.stat(path)):
        with pytest.raises(expected, match=says):
            attempt()


def test_a_missing_repository_is_no_empty_listing(photos: Hub) -> None:
    """Nor a missing revision."""
    for source in ("hf://datasets/tests/other/", f"{PLACE}@other/", "hf://datasets/tests/other/a.tar"):
        with pytest.raises(ObjectNotFoundError, match="has no "):
            listed(photos, source)


def test_gated_and_private_repositories_say_what_to_do(photos: Hub) -> None:
    """Accept the terms, pass a token; and an invalid token is called so. No token is ever shown."""
    repository = photos.repository("tests/photos")
    repository.is_gated = True
    page = f"{photos.url}/datasets/tests/photos"
    for token, says in ((TOKEN, f"Accept its terms at {page} with the account of"), (False, "pass a token of that")):
        store, path = opened(photos, f"{PLACE}/README.md", token=token)
        with pytest.raises(AccessDeniedError, match=says):
            store.read(path, 0, 10, None)
    repository.accepted.add(TOKEN)
    assert fetched(photos, f"{PLACE}/README.md") == [b"# Photos"]
    repository.is_private = True
    store, path = opened(photos, f"{PLACE}/README.md", token=False)
    with pytest.raises(AccessDeniedError, match="does not exist, or it is private"):
        store.read(path, 0, 10, None)
    store, path = opened(photos, f"{PLACE}/README.md", token="hf_wrong")
    with pytest.raises(AccessDeniedError, match="does not accept the token") as caught:
        store.read(path, 0, 10, None)
    assert "hf_wrong" not in str(caught.value)


def test_rate_limits_are_waited_for(photos: Hub) -> None:
    """As Retry-After or RateLimit say; a busy Hub or CDN is asked again."""
    store, path = opened(photos, f"{PLACE}/data/train-0.tar")
    assert store.read(path, 0, 1, None).whole() == b"\0"
    photos.repository("tests/photos")
    for headers, wait_s in (
        ({"Retry-After": "7"}, 7),
        ({"RateLimit": '"resolvers";r=0;t=55', "RateLimit-Policy": '"fixed window";"resolvers";q=3000;w=300'}, 55),
        ({"RateLimit": '"resolvers";r=12;t=55'}, None),
    ):
        photos.responses.append((429, headers))
        with pytest.raises(TransientStorageError, match=r"429|rate limit for resolvers") as caught:
            store.stat(path)
        assert (caught.value.overloaded, caught.value.retry_after_s) == (True, wait_s)
    photos.cdn_responses.append((503, {"Retry-After": "2"}))
    with pytest.raises(TransientStorageError) as caught:
        store.read(path, 0, 1, None)
    assert (caught.value.overloaded, caught.value.retry_after_s) == (True, 2)
    photos.responses += [(429, {}), (500, {}), (502, {})]
    photos.cdn_responses += [(500, {}), (503, {})]
    quick = RetryPolicy(first_wait_s=0.001, max_wait_s=0.001)
    assert fetched(photos, f"{PLACE}/data/train-1.tar", retry=quick) == [FILES["data/train-1.tar"]]


def test_the_token_is_found_as_the_official_client_finds_it(
    photos: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In the option, the environment, and the file of a login."""
    photos.repository("tests/photos").is_private = True
    found = 0

    def can_read(**more: Any) -> bool:
        nonlocal found
        found += 1  # a store of its own
        chosen = {"endpoint": photos.url + "/" * found, **more}
        store, path = open_store(f"{PLACE}/README.md", StorageOptions(chosen))
        try:
            return store.read(path, 0, None, None).whole() == b"# Photos"
        except AccessDeniedError:
            return False

    assert not can_read()
    assert can_read(token=TOKEN)
    monkeypatch.setenv("HF_TOKEN", f" {TOKEN}\n")
    assert can_read()
    assert not can_read(token=False)
    monkeypatch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")
    assert not can_read()
    assert can_read(token=True)
    monkeypatch.delenv("HF_HUB_DISABLE_IMPLICIT_TOKEN")
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.delenv("HF_TOKEN_PATH")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    assert not can_read(token=True)
    (tmp_path / "token").write_text(TOKEN + "\n")
    assert can_read()


def test_the_endpoint_of_the_environment_is_used(photos: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the official client uses it."""
    monkeypatch.setenv("HF_ENDPOINT", photos.url + "/")
    store, path = open_store(f"{PLACE}/README.md", StorageOptions({"token": TOKEN, "revision": "main"}))
    assert store.read(path, 0, None, None).whole() == b"# Photos"


def test_writing_is_refused(photos: Hub) -> None:
    """With what to use instead."""
    with (
        pytest.raises(UrlError, match="upload_folder"),
        ShardWriter(f"{PLACE}/x-{{shard}}.tar", storage_options=options(photos)) as writer,
    ):
        writer.write({"__key__": "a", "txt": "b"})
    store, path = opened(photos, f"{PLACE}/README.md")
    with pytest.raises(UrlError, match="upload_folder"):
        store.delete(path)


@pytest.mark.parametrize("url", ["hf://datasets/photos", "hf://buckets/me/b/a.tar", "hf://me"])
def test_urls_that_name_no_repository_are_refused(hub: Hub, url: str) -> None:
    """Buckets too, whose files have no versions."""
    with pytest.raises(UrlError, match=r"repository|buckets of the Hub"):
        fetched(hub, url)


def test_ranges_behind_the_end_and_empty_files(photos: Hub) -> None:
    """Are what they are in other stores."""
    photos.repository("tests/empty").commit({"a.tar": b"", "b.txt": b""})
    assert fetched(photos, "hf://datasets/tests/empty/a.tar", "hf://datasets/tests/empty/b.txt") == [b"", b""]
    store, path = opened(photos, f"{PLACE}/data/train-0.tar")
    with pytest.raises(RangeNotSatisfiableError):
        store.read(path, 60_000, 60_010, None)


def test_options_of_the_official_filesystem_select_it(photos: Hub, caplog: pytest.LogCaptureFixture) -> None:
    """With a warning; an unknown name is an error with the nearest one."""
    given = StorageOptions({"endpoint": photos.url, "token": TOKEN, "block_size": 1 << 20})
    pipe = AsyncPrefetch(IterableWrapper([f"{PLACE}/README.md"]), storage_options=given)
    assert [stream.read() for _, stream in pipe] == [b"# Photos"]
    assert "is read by fsspec, more slowly" in caplog.text
    with pytest.raises(UrlError, match="did you mean 'endpoint'"):
        ListRemote(IterableWrapper([PLACE]), storage_options={"endpont": "x"}).__iter__().__next__()
    for wrong in ({"token": 5}, {"endpoint": "https://me:secret-canary@hub"}, {"revision": "v1", "block_size": 5}):
        with pytest.raises(UrlError) as caught:
            open_store(f"{PLACE}/", StorageOptions(wrong))
        assert "secret-canary" not in str(caught.value)
    with pytest.raises(UrlError, match="backend='fsspec'"):
        open_store(f"{PLACE}/", options(photos), Connection(backend=Backend.OBSTORE))


def test_secrets_are_in_no_text_of_the_store(photos: Hub) -> None:
    """Nor can it be pickled."""
    store, path = opened(photos, f"{PLACE}/data/train-0.tar")
    store.stat(path)
    reader = vars(store)["_reader"]
    assert TOKEN not in repr([vars(store), vars(reader), vars(reader)["_locations"]])
    assert "Signature" not in repr(vars(vars(reader)["_locations"]))
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(vars(store)["_client"])


def _read_in_child(url: str, given: dict[str, Any], results: Any) -> None:
    pipe = AsyncPrefetch(IterableWrapper([url]), storage_options=given, part_bytes=5000)
    results.put([len(stream.read()) for _, stream in pipe])


def test_a_forked_child_reads_after_its_parent_has(photos: Hub) -> None:
    """With connections and addresses of its own."""
    url = f"{PLACE}/data/train-0.tar"
    assert [len(data) for data in fetched(photos, url)] == [50_000]
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    child = context.Process(target=_read_in_child, args=(url, dict(options(photos)), results))
    child.start()
    assert results.get(timeout=60) == [50_000]
    child.join(60)
    assert child.exitcode == 0


def test_shards_and_loose_files_stream_from_the_hub(hub: Hub, tmp_path: Path) -> None:
    """By a manifest, a glob, and as files."""
    with ShardWriter(f"{tmp_path}/{{shard:03d}}.tar", max_shard_samples=2) as writer:
        for number in range(6):
            writer.write({"__key__": f"{number}", "txt": f"sample {number}"})
    files = {f"shards/{path.name}": path.read_bytes() for path in tmp_path.iterdir()}
    hub.repository("tests/shards").commit({**files, **{f"cats/{n}.jpg": b"j" * 10 for n in range(3)}})
    assert json.loads(files["shards/index.json"])["shardlist"]
    for source in ("shards/index.json", "shards/*.tar", "shards/"):
        samples = stream_shards(f"hf://datasets/tests/shards/{source}", storage_options=options(hub), seed=None)
        assert [sample["__key__"] for sample in samples] == [str(number) for number in range(6)]
    loose = stream_files("hf://datasets/tests/shards/cats/", storage_options=options(hub), shuffle=False)
    assert [sample["jpg"] for sample in loose] == [b"j" * 10] * 3


def test_threads_ask_for_a_commit_once(photos: Hub) -> None:
    """However many begin at the same time."""
    store, _ = opened(photos, f"{PLACE}/")
    barrier = threading.Barrier(8)

    def stat(path: str) -> int | None:
        barrier.wait()
        return store.stat(f"tests/photos/{path}").size

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(stat, [*SHARDS, *SHARDS])) == [len(data) for data in SHARDS.values()] * 2
    assert photos.count("hub", "/revision/") == 1


def test_a_state_goes_on_after_a_push_if_its_shards_are_the_same(hub: Hub, tmp_path: Path) -> None:
    """Other shards are refused."""
    write_small_shards(f"{tmp_path}/", num_shards=3, samples_per_shard=4)
    repository = hub.repository("tests/shards")
    repository.commit({path.name: path.read_bytes() for path in tmp_path.glob("*.tar")})

    def chain(**more: Any) -> Resumable:
        given = options(hub, **more)  # of another process: a store of its own
        return Resumable(stream_shards("hf://datasets/tests/shards/*.tar", seed=0, storage_options=given))

    whole = [sample["__key__"] for sample in chain()]
    first = chain()
    taken = [sample["__key__"] for _, sample in zip(range(5), first, strict=False)]
    state = first.state_dict()
    repository.commit({"README.md": b"# Shards"})
    again = chain(revision="main")
    again.load_state_dict(state)
    assert taken + [sample["__key__"] for sample in again] == whole
    repository.commit({"9.tar": (tmp_path / "000000.tar").read_bytes()})
    other = chain(revision=repository.branches["main"])
    other.load_state_dict(state)
    with pytest.raises(StateError, match="shard"):
        next(iter(other))


@pytest.mark.parametrize("host_of_hub", ["{hub}@{other}", "me:pw@{other}", "{hub}@me@{other}"])
def test_a_redirect_that_names_the_hub_as_user_gets_no_token(hub: Hub, host_of_hub: str) -> None:
    """The host is behind the last ``@``."""
    with scripted(lambda request: Response.of_object(request, b"0123456789")) as other:
        names = {"hub": hub.url.removeprefix("http://"), "other": other.url.removeprefix("http://")}
        place = f"{PLACE}@{'a' * 40}/x.tar"
        location = f"http://{host_of_hub.format(**names)}/x.tar"
        hub.responses = [(302, {"Location": location})] * 2
        store, path = opened(hub, place)
        assert store.read(path, 0, 10, None).whole() == b"0123456789"
        store.stat(path)
        assert other.requests
        assert not any("authorization" in request.headers for request in other.requests)


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (302, {"Location": "http://[bad/x?Signature=0"}),
        (302, {"Location": "file:///etc/passwd"}),
        (206, {"Content-Range": f"bytes 0-5/{'9' * 5000}"}),
        (206, {"Content-Length": "9" * 5000}),
        (206, {"X-Linked-Size": "9" * 5000}),
        (429, {"RateLimit": f'"resolvers";r={"9" * 5000};t=1'}),
    ],
)
def test_headers_that_cannot_be_meant_are_an_error_of_this_package(
    hub: Hub, status: int, headers: dict[str, str]
) -> None:
    """Not one of Python, such as that of a number with thousands of digits."""
    hub.responses = [(status, headers)]
    store, path = opened(hub, f"{PLACE}@{'a' * 40}/x.tar")
    with pytest.raises(TransientStorageError):
        store.read(path, 0, 10, None)


_FILE = '[{"type": "file", "path": %s, "size": %s, "oid": "0"}]'


@pytest.mark.parametrize(
    ("body", "link"),
    [
        ("[" * 200_000, ""),
        (_FILE % ('"a.tar"', "Infinity"), ""),
        (_FILE % ('"a.tar"', "-5"), ""),
        (_FILE % ('"a.tar"', "1.5"), ""),
        (_FILE % ("null", "1"), ""),
        (_FILE % ('"../../a.tar"', "1"), ""),
        ("[]", '<http://[bad>; rel="next"'),
    ],
    ids=["nested", "infinite", "negative", "fraction", "no-path", "dots", "link"],
)
def test_a_listing_that_cannot_be_meant_is_an_error_of_this_package(body: str, link: str) -> None:
    """Nor are its files handed on with sizes and paths that no file has."""
    with scripted(lambda request: Response(200, body.encode(), {"Link": link} if link else {})) as server:
        given = {"endpoint": server.url, "token": False}
        pipe = ListRemote(IterableWrapper([f"{PLACE}@{'a' * 40}/"]), storage_options=given, retry=ONE_ATTEMPT)
        with pytest.raises(StorageError, match=r"no JSON|without what listings have|without a cursor"):
            list(pipe)


@pytest.mark.parametrize("url", [f"{PLACE}@../README.md", f"{PLACE}@%2E%2E/README.md", "hf://datasets/../photos/a"])
def test_dots_in_a_name_or_revision_do_not_name_another_one(photos: Hub, url: str) -> None:
    """urllib3 would resolve them, so that ``..`` would be ``main``."""
    with pytest.raises(UrlError, match="no segment"):
        fetched(photos, url)
    with pytest.raises(UrlError, match="no segment"):
        opened(photos, PLACE, revision="..")
