"""The Hugging Face Hub: listing, reading from its CDN, revisions, tokens, refusals."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi, HfFileSystem
from huggingface_hub.errors import RepositoryNotFoundError

import torchdata_remote as tdr
from tests.servers.hub import TOKEN, Hub, running_hub
from tests.servers.scripted import Request, Response, scripted
from tests.support import objects
from torchdata_remote.errors import (
    AccessDeniedError,
    EmptyListingError,
    ObjectChangedError,
    ObjectNotFoundError,
    StorageError,
    TransientStorageError,
    UrlError,
)

PLACE = "hf://datasets/tests/photos"
SHARDS = {f"data/train-{number}.tar": bytes([number]) * (50_000 + number) for number in range(4)}
FILES = {**SHARDS, "README.md": b"# Photos", "a b/\u00fc+%.txt": b"small"}
COMMIT = "a" * 40


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A running Hub, without credentials of the machine."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_ENDPOINT", "HF_HUB_DISABLE_IMPLICIT_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_TOKEN_PATH", "/nonexistent/token")
    with running_hub() as server:
        yield server


def options(hub: Hub, **more: Any) -> dict[str, Any]:
    return {"endpoint": hub.url, "token": TOKEN, **more}


def read(hub: Hub, url: str, **more: Any) -> bytes:
    return objects.read(url, options(hub), **more)


@pytest.fixture
def photos(hub: Hub) -> Hub:
    hub.repository("tests/photos").commit(FILES)
    return hub


def test_a_repository_is_listed_in_pages_in_the_order_of_paths(photos: Hub) -> None:
    """Although the Hub lists folders first; with sizes and names of contents, and by one request a page."""
    photos.page_size = 2
    urls = objects.listed(f"{PLACE}/", options(photos))
    assert urls == [f"{PLACE}/{path}" for path in sorted(FILES)]
    files = photos.repository("tests/photos").files()
    assert [(url.size, url.etag) for url in urls] == [(len(FILES[path]), files[path].etag) for path in sorted(FILES)]
    assert (photos.count("hub", "/tree/"), photos.count("hub", "/revision/main")) == (4, 1)
    with pytest.raises(EmptyListingError, match=r"did you mean 'data'"):
        objects.listed(f"{PLACE}/dada/", options(photos))


@pytest.mark.parametrize("small", ["directly", "resolve-cache"])
@pytest.mark.parametrize("lfs", ["directly", "cdn"])
def test_files_are_read_wherever_the_hub_keeps_them_and_the_token_stays_at_the_hub(
    photos: Hub, small: str, lfs: str
) -> None:
    """On its own host, behind its cache, on the CDN; whole and in parts."""
    photos.serves_small_files, photos.serves_lfs = small, lfs
    for part_bytes in (1 << 20, 7000):
        for path, data in FILES.items():
            assert read(photos, f"{PLACE}/{path}", part_bytes=part_bytes) == data
    assert {one.has_token for one in photos.requests if one.host == "cdn"} <= {False}
    assert {one.has_token for one in photos.requests if one.host == "hub"} == {True}
    photos.repository("tests/empty").commit({"a.tar": b"", "b.txt": b""})
    assert [read(photos, f"hf://datasets/tests/empty/{name}") for name in ("a.tar", "b.txt")] == [b"", b""]


def test_further_parts_cost_no_request_to_the_hub_until_the_address_expires(photos: Hub) -> None:
    """Also if all of them are requested at the same time; then the Hub is asked once more."""
    url = objects.found(f"{PLACE}/data/train-3.tar", options(photos))
    photos.requests.clear()
    assert objects.read(url, options(photos), part_bytes=4096) == FILES["data/train-3.tar"]
    assert (photos.count("hub"), photos.count("cdn")) == (1, 13)
    photos.requests.clear()
    for _ in range(2):
        assert read(photos, f"{PLACE}/data/train-2.tar", part_bytes=4096) == FILES["data/train-2.tar"]
    assert photos.count("hub", "/resolve/") == 1
    photos.expire_signatures()
    assert read(photos, f"{PLACE}/data/train-2.tar") == FILES["data/train-2.tar"]
    assert photos.count("hub", "/resolve/") == 2


def test_an_address_that_is_refused_at_once_is_an_error_without_its_signature(photos: Hub) -> None:
    photos.signature_s = -10
    with pytest.raises(AccessDeniedError, match=f"{photos.cdn_url} refuses the address") as caught:
        read(photos, f"{PLACE}/data/train-0.tar")
    assert "Signature=" not in f"{caught.value!r} {caught.value.__cause__!r}"


def test_a_process_reads_one_commit_and_never_mixes_versions(photos: Hub) -> None:
    """As a worker that starts after a push sees the new commit, what was listed before is an error there."""
    before = objects.found(f"{PLACE}/data/train-0.tar", options(photos))
    photos.repository("tests/photos").commit({"data/train-0.tar": b"new" * 20_000, "data/train-9.tar": b"9"})
    assert objects.read(before, options(photos)) == FILES["data/train-0.tar"]
    urls = objects.listed(f"{PLACE}/data/", options(photos))
    assert len(urls) == 4
    later = options(photos, revision="main")
    assert objects.read(f"{PLACE}/data/train-0.tar", later) == b"new" * 20_000
    with pytest.raises(ObjectChangedError):
        objects.read(before, later, retry=objects.QUICK)
    assert objects.read(urls[1], later) == FILES["data/train-1.tar"]


@pytest.mark.parametrize("written", ["v1%2Fb", "refs/convert/parquet", "refs%2Fconvert%2Fparquet", "refs/pr/3"])
def test_a_revision_is_read_as_it_is_written(photos: Hub, written: str) -> None:
    """With the slashes of special references as they are."""
    branch = written.replace("%2F", "/")
    photos.repository("tests/photos").commit({"data/only@here.tar": b"x" * 600}, branch=branch)
    [url] = objects.listed(f"{PLACE}@{written}/data/only*", options(photos))
    assert url == f"{PLACE}@{written}/data/only@here.tar"
    assert objects.read(url, options(photos)) == b"x" * 600


def test_models_and_spaces_are_read(hub: Hub) -> None:
    """A renamed repository too: the Hub redirects."""
    for kind, start in (("models", "hf://"), ("models", "hf://models/"), ("spaces", "hf://spaces/")):
        hub.repository("tests/thing", kind).commit({"weights/a.bin": b"w" * 100})
        assert read(hub, f"{start}tests/thing/weights/a.bin") == b"w" * 100
        listed = objects.listed(f"{start}tests/thing@main/weights/", options(hub))
        assert listed == [f"{start}tests/thing@main/weights/a.bin"]
    hub.repository("tests/squad").commit({"plain/a.bin": b"s" * 100})
    hub.new_names["old/squad"] = "tests/squad"
    assert read(hub, "hf://datasets/old/squad/plain/a.bin") == b"s" * 100
    assert objects.listed("hf://datasets/old/squad/plain/", options(hub)) == ["hf://datasets/old/squad/plain/a.bin"]


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("hf://datasets/tests/other/a.tar", "RepoNotFound: 'Repository not found'"),
        (f"{PLACE}@other/data/train-0.tar", "RevisionNotFound: 'Invalid rev id: other'"),
        (f"{PLACE}/data/other.tar", "EntryNotFound"),
        (f"{PLACE}/data/../README.md", "no empty segment"),
        (PLACE, "names no file of a repository"),
    ],
)
def test_what_is_missing_is_named(photos: Hub, url: str, says: str) -> None:
    """The repository, the revision, or the file; and no repository is an empty listing."""
    with pytest.raises(ObjectNotFoundError, match=says):
        read(photos, url)
    if "other" in url and "data/other" not in url:
        with pytest.raises(ObjectNotFoundError, match=r"RepoNotFound|RevisionNotFound"):
            objects.listed(f"{url.rpartition('/')[0]}/", options(photos))


def test_gated_and_private_repositories_say_what_to_do(photos: Hub) -> None:
    """Accept the terms, pass a token; and an invalid token is called so."""
    repository = photos.repository("tests/photos")
    repository.is_gated = True
    page = f"{photos.url}/datasets/tests/photos"
    url = f"{PLACE}/README.md"
    for token in (TOKEN, False):
        with pytest.raises(AccessDeniedError, match=f"GatedRepo.*accepted at {page}"):
            objects.read(url, options(photos, token=token))
    repository.accepted.add(TOKEN)
    assert read(photos, url) == b"# Photos"
    repository.is_private = True
    for token, says in (
        (False, "RepoNotFound.* Pass storage_options"),
        ("hf_wrong", "Invalid credentials.*/settings/tokens"),
    ):
        with pytest.raises(AccessDeniedError, match=says) as caught:
            objects.read(url, {**options(photos, token=token), "endpoint": photos.url + "/"})
        assert "hf_wrong" not in str(caught.value)


def test_rate_limits_are_waited_for_as_the_hub_says(photos: Hub) -> None:
    """By Retry-After or RateLimit; where that is longer than the deadline, the error says so."""
    url = f"{PLACE}/data/train-0.tar"
    limited = {"RateLimit": '"resolvers";r=0;t=55', "RateLimit-Policy": '"fixed window";"resolvers";q=3000;w=300'}
    policy = tdr.RetryPolicy(deadline_s=20, first_wait_s=0)
    for headers in ({"Retry-After": "70"}, limited):
        photos.responses = [(429, headers)] * 3
        with pytest.raises(TransientStorageError, match="429"):
            read(photos, url, retry=policy)
        assert len(photos.responses) == 2, "it is not asked before"
    photos.responses = [(429, {"RateLimit": '"resolvers";r=12;t=55'}), (429, {}), (500, {}), (502, {})]
    photos.cdn_responses = [(500, {}), (503, {"Retry-After": "0"})]
    quick = tdr.RetryPolicy(first_wait_s=0.001, max_wait_s=0.001)
    assert read(photos, url, retry=quick) == FILES["data/train-0.tar"]


def test_the_token_is_found_as_the_official_client_finds_it(
    photos: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In the option, the environment, and the file of a login."""
    photos.repository("tests/photos").is_private = True
    found = 0

    def can_read(**more: Any) -> bool:
        nonlocal found
        found += 1  # a store of its own
        try:
            return objects.read(f"{PLACE}/README.md", {"endpoint": photos.url + "/" * found, **more}) == b"# Photos"
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
    monkeypatch.setenv("HF_ENDPOINT", photos.url + "/")
    assert objects.read(f"{PLACE}/README.md", {"token": TOKEN, "revision": "main"}) == b"# Photos"


def test_the_server_of_these_tests_is_a_hub_to_the_official_client(photos: Hub) -> None:
    """It reads what the package reads. Its options are refused, as is its filesystem."""
    photos.page_size = 2
    filesystem = HfFileSystem(endpoint=photos.url, token=TOKEN, skip_instance_cache=True)
    assert sorted(filesystem.find(PLACE[5:])) == [f"{PLACE[5:]}/{path}" for path in sorted(FILES)]
    for path, data in FILES.items():
        assert filesystem.cat_file(f"{PLACE[5:]}/{path}") == data
    with pytest.raises(RepositoryNotFoundError):
        HfApi(endpoint=photos.url, token=TOKEN).dataset_info("tests/missing")
    with pytest.raises(UrlError, match="unknown option 'block_size'"):
        objects.read(f"{PLACE}/README.md", options(photos, block_size=1 << 20))
    with pytest.raises(UrlError, match="open the URLs by fsspec"):
        read(photos, f"{PLACE}/README.md", backend=tdr.Backend.FSSPEC)


@pytest.mark.parametrize("host_of_hub", ["{hub}@{other}", "me:pw@{other}", "{hub}@me@{other}"])
def test_a_redirect_that_names_the_hub_as_user_gets_no_token(hub: Hub, host_of_hub: str) -> None:
    """The host is behind the last ``@``."""
    with scripted(lambda request: Response.of_object(request, b"0123456789")) as other:
        names = {"hub": hub.url.removeprefix("http://"), "other": other.url.removeprefix("http://")}
        hub.responses = [(302, {"Location": f"http://{host_of_hub.format(**names)}/x.tar"})]
        assert read(hub, f"{PLACE}@{COMMIT}/x.tar") == b"0123456789"
        assert other.requests
        assert not any("authorization" in request.headers for request in other.requests)


_INFO = {"type": "file", "path": "a.tar", "size": 1, "oid": "0"}
_NO_ENTRIES: list[Any] = [
    {name: value for name, value in _INFO.items() if name != "size"},
    *({**_INFO, "size": size} for size in (-1, "1")),
    *({**_INFO, "path": path} for path in ("../../a.tar", "", "/a.tar", "a//b.tar", None)),
    *({**_INFO, "lfs": lfs} for lfs in ({"size": 1}, "x")),
    *({**_INFO, "oid": None}, None, "file"),
]
_NO_PAGES = [b"[" * 200_000, b"", b"<html>", b"null", b"{}", *(json.dumps([one]).encode() for one in _NO_ENTRIES)]


def refused_listing(respond: Any, url: str = f"{PLACE}@{COMMIT}/") -> str:
    with scripted(respond) as server, pytest.raises(StorageError) as caught:
        objects.listed(url, {"endpoint": server.url, "token": False})
    assert not isinstance(caught.value, EmptyListingError)
    assert str(caught.value).startswith(f"{url}: ")
    return str(caught.value)


@pytest.mark.parametrize("page", _NO_PAGES, ids=range(len(_NO_PAGES)))
@pytest.mark.parametrize("first", [b"", json.dumps([{**_INFO, "path": "0.tar"}]).encode()], ids=["first", "further"])
def test_a_page_that_cannot_be_meant_is_an_error_and_never_the_end_of_a_listing(first: bytes, page: bytes) -> None:
    """No file is handed on with a size or path that no file has, nor left out."""

    def respond(request: Request) -> Response:
        if first and "cursor" not in request.target:
            return Response(200, first, {"Link": '</tree?cursor=1>; rel="next"'})
        return Response(200, page)

    assert "no Hub does" in refused_listing(respond)


def test_an_entry_that_is_neither_file_nor_folder_is_listed_and_cannot_be_read() -> None:
    """It is not left out without notice; a pattern may leave it out."""
    page = json.dumps([_INFO, {"type": "submodule", "path": "other"}]).encode()

    def respond(request: Request) -> Response:
        if "/tree/" in request.target:
            return Response(200, page)
        return Response(404, b"", {"X-Error-Code": "EntryNotFound"})

    with scripted(respond) as server:
        here = {"endpoint": server.url, "token": False}
        assert objects.listed(f"{PLACE}@{COMMIT}/*.tar", here) == [f"{PLACE}@{COMMIT}/a.tar"]
        _, other = objects.listed(f"{PLACE}@{COMMIT}/", here)
        with pytest.raises(ObjectNotFoundError, match=r"/other: .*EntryNotFound"):
            objects.read(other, here)


@pytest.mark.parametrize("sha", [None, 5, "", "main", COMMIT[1:], f"{COMMIT}\n", "../../other/x"])
def test_an_answer_that_does_not_say_which_commit_a_revision_is_is_an_error(sha: Any) -> None:
    """Nothing is listed or read at whatever it says instead."""

    def respond(request: Request) -> Response:
        if "/revision/" not in request.target:
            return Response.of_object(request, json.dumps([_INFO]).encode())
        return Response(200, json.dumps({"sha": sha, "id": COMMIT}).encode())

    says = r"does not say which commit 'v1' is|which no Hub does"
    assert re.search(says, refused_listing(respond, f"{PLACE}@v1/"))
    with scripted(respond) as server:
        with pytest.raises(StorageError, match=says):
            objects.read(f"{PLACE}@v1/a.tar", {"endpoint": server.url, "token": False})
        assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("location", "size", "says"),
    [
        ("file:///etc/passwd", "10", "URL|No host"),
        ("http://[bad", "10", "Invalid IPv6 URL"),
        ("{hub}/again", "10", "more than 5 redirects"),
        (None, "10", "answered 302"),
        ("http://127.0.0.1:1/a", "10", "refuses connections"),
        ("{hub}/there", "10", ""),
        ("/there", "ten", ""),
    ],
)
def test_a_location_is_followed_or_an_error_that_says_where_it_leads(
    location: str | None, size: str, says: str
) -> None:
    def respond(request: Request) -> Response:
        if request.target == "/there":
            return Response.of_object(request, b"0123456789")
        where = {} if location is None else {"Location": location.format(hub=server.url)}
        return Response(302, b"x", {**where, "X-Linked-Size": size})

    url = f"{PLACE}@{COMMIT}/a.tar"
    with scripted(respond) as server:
        here = {"endpoint": server.url, "token": False}
        if not says:
            assert objects.read(url, here) == b"0123456789"
            return
        with pytest.raises((StorageError, UrlError), match=says) as caught:
            objects.read(url, here)
        assert str(caught.value).startswith(f"{url}: ")
