"""``push`` and ``pull``: a folder and a dataset become equal, whatever the names, and whatever happens meanwhile."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("starlette", reason="the service is not installed: pip install torchdata_remote[service]")

import torchdata_remote as tdr
from tests.servers.s3 import temporary_folder
from tests.servers.scripted import Request, Response, scripted
from tests.servers.watched import Exchange, Proxy
from tests.service.conftest import TOKEN
from tests.support.service_clients import Dataset, ask, in_tar, sha256
from tests.support.transfers import Job, Tree, counts, pull, push, read_tree, trees, write_tree
from tests.support.waiting import wait_for
from torchdata_remote.errors import (
    AccessDeniedError,
    EmptyListingError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    StorageError,
    TransientStorageError,
    UrlError,
)

BATCH = "?unpack=1"
MEDIUM = random.Random(1).randbytes((1 << 20) + 1)  # sent by itself, not in a batch
TREE: Tree = {"cat/1": b"meow", "cat/2": b"", "dog/1": MEDIUM, "readme": b"pets"}
_numbers = itertools.count()


@pytest.fixture
def name() -> str:
    return f"transfer-{next(_numbers)}"


@pytest.fixture
def url(served: str, name: str) -> str:
    """Of a dataset that is not there yet."""
    return f"datasets://{served}/{name}"


@pytest.fixture
def proxy_url(proxy: Proxy, name: str) -> str:
    """The same dataset, by way of the proxy."""
    return f"datasets://{proxy.address}/{name}"


@pytest.fixture
def pets(url: str, tmp_path: Path) -> str:
    """A dataset that holds ``TREE``, and that was pushed from ``s``."""
    write_tree(tmp_path / "s", TREE)
    push(tmp_path / "s", url)
    return url


def of_files(proxy: Proxy, method: str) -> list[str]:
    """Base names of the files that requests of a method were for, each by itself."""
    return [
        one.target.rpartition("/")[2] for one in proxy.exchanges if one.method == method and "/files/" in one.target
    ]


def fetched_bytes(proxy: Proxy) -> int:
    """Bytes of files that were sent to clients."""
    whole = sum(len(one.received) for one in proxy.exchanges if one.method == "GET" and "/files/" in one.target)
    return whole + sum(
        len(data) for one in proxy.exchanges if one.method == "POST" for data in in_tar(one.received).values()
    )


@given(tree=trees, data=st.data())
def test_a_tree_survives_push_and_pull_and_only_changes_are_copied(
    tree: Tree, data: st.DataObject, served: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("tree")
    url, source, target = f"datasets://{served}/{folder.name}", folder / "source", folder / "target"
    write_tree(source, tree)
    copies: list[Callable[[], tdr.Transferred]] = [lambda: push(source, url), lambda: pull(url, target)]
    for copy in copies:
        done, again = copy(), copy()
        assert (counts(done), done.num_bytes) == ((len(tree), 0, 0, 0), sum(map(len, tree.values())))
        assert (counts(again), again.num_bytes) == ((0, len(tree), 0, 0), 0)
    assert read_tree(target) == tree
    other = data.draw(trees)
    after = {**{path: tree[path] for path in data.draw(st.sets(st.sampled_from(sorted(tree))))}, **other}
    if any(path.startswith(name + "/") for name in after for path in after):
        after = other
    write_tree(source, after)
    same = sum(tree.get(path) == content for path, content in after.items())
    gone = sum(path not in after for path in tree)
    assert counts(push(source, url, delete=True)) == (len(after) - same, same, gone, 0)
    assert counts(pull(url, target)) == (len(after) - same, same, gone, 0)
    assert read_tree(target) == after


def test_a_file_becomes_a_folder_and_back(url: str, tmp_path: Path) -> None:
    for tree in ({"a": b"1"}, {"a/b/c": b"2"}, {"a/b": b"3"}, {"a": b"4"}):
        write_tree(tmp_path / "s", tree)
        push(tmp_path / "s", url, delete=True)
        pull(url, tmp_path / "t")
        assert read_tree(tmp_path / "t") == tree
    write_tree(tmp_path / "u", {"a/x": b"mine"})
    with pytest.raises(StorageError, match="/u/a is a folder, and in the way of 'a'"):
        pull(url, tmp_path / "u")
    assert read_tree(tmp_path / "u") == {"a/x": b"mine"}
    pull(url, tmp_path / "u", delete=True)
    assert read_tree(tmp_path / "u") == {"a": b"4"}


def test_files_that_were_not_copied_are_kept_and_counted_unless_delete_is_true(pets: str, tmp_path: Path) -> None:
    source, target = tmp_path / "s", tmp_path / "t"
    pull(pets, target)
    write_tree(target / "mine", {"notes": b"1"})
    (target / "link").symlink_to("/etc/passwd")
    (target / "readme").write_bytes(b"changed")
    write_tree(source, {"cat/1": b"meow"})
    assert counts(push(source, pets)) == (0, 1, 0, 3)
    assert counts(push(source, pets, delete=True)) == (0, 1, 3, 0)
    assert counts(pull(pets, target)) == (0, 1, 2, 3)
    expected = {"cat/1": b"meow", "mine/notes": b"1", "readme": b"changed", "link": Path("/etc/passwd").read_bytes()}
    assert read_tree(target) == expected
    assert not (target / "dog").exists()
    assert counts(pull(pets, target, delete=True)) == (0, 1, 3, 0)
    assert read_tree(target) == {"cat/1": b"meow"}
    assert not (target / "mine").exists()
    assert Path("/etc/passwd").exists()


def test_a_folder_in_a_dataset_is_pushed_and_pulled_by_itself(url: str, tmp_path: Path) -> None:
    write_tree(tmp_path / "s", {"a": b"1", "b/c": MEDIUM})
    push(tmp_path / "s", f"{url}/deep/er/")
    push(tmp_path / "s", url)
    write_tree(tmp_path / "s", {"d": b"3"})
    assert counts(push(tmp_path / "s", f"{url}/deep/er", delete=True)) == (1, 0, 2, 0)
    pull(url, tmp_path / "t")
    assert read_tree(tmp_path / "t") == {"a": b"1", "b/c": MEDIUM, "deep/er/d": b"3"}
    pull(f"{url}/deep", tmp_path / "u")
    assert read_tree(tmp_path / "u") == {"er/d": b"3"}


def test_a_link_inside_a_pushed_folder_is_followed_and_names_of_transfers_are_left_out(
    url: str, tmp_path: Path
) -> None:
    own = {".torchdata_remote-pull.json": b"{}", ".x.torchdata_remote-partial": b"2"}
    write_tree(tmp_path / "s", {"a/b": b"1", **own})
    (tmp_path / "s" / "file").symlink_to("a/b")
    (tmp_path / "s" / "folder").symlink_to(tmp_path / "s" / "a")
    assert counts(push(tmp_path / "s", url)) == (3, 0, 0, 0)
    pull(url, tmp_path / "t")
    assert read_tree(tmp_path / "t") == {"a/b": b"1", "file": b"1", "folder/b": b"1"}


def test_what_cannot_be_pushed_is_named_before_anything_is_sent(
    served: str, url: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "s"
    (tmp_path / "outside").write_bytes(b"secret")
    (tmp_path / "empty").mkdir()
    write_tree(source, {"a": b""})
    monkeypatch.chdir(source)

    def make_socket() -> None:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind("socket")

    def make_loop() -> None:
        Path("x").mkdir()
        Path("x/up").symlink_to("..")

    wrong: list[tuple[Callable[[], object], str]] = [
        (lambda: Path("x").symlink_to("../outside"), "x is a link that leads out of the folder, to .*outside"),
        (lambda: Path("x").symlink_to("nowhere"), "link to nowhere"),
        (make_loop, "to a folder above it"),
        (lambda: os.mkfifo("x"), "x is neither a file nor a folder"),
        (make_socket, "socket is neither"),
        (lambda: Path("back\\slash").touch(), "has the character"),
        (lambda: Path(os.fsdecode(b"x\xff")).touch(), "is not UTF-8"),
    ]
    for make, why in wrong:
        make()
        with pytest.raises(StorageError, match=why):
            push(source, url)
        monkeypatch.chdir(tmp_path)
        write_tree(source, {"a": b""})
        monkeypatch.chdir(source)
    assert ask(served, "GET", f"/datasets/{name}").status == 404
    cases: list[tuple[Path, str, type[Exception], str]] = [
        (source / "a", url, StorageError, "not a folder"),
        (source / "none", url, FileNotFoundError, "none"),
        (tmp_path / "empty", url, EmptyListingError, "mounted"),
        (source, "s3://bucket/a", UrlError, "s3://bucket/a"),
        (source, f"datasets://{served}/", UrlError, "names no dataset"),
    ]
    for folder, target, error, why in cases:
        with pytest.raises(error, match=why):
            push(folder, target)
    with pytest.raises(ValueError, match="max_in_flight"):
        push(source, url, max_in_flight=0)


@pytest.mark.parametrize("size", [10, 33 << 20])
def test_a_file_that_changes_while_it_is_pushed_is_an_error(
    size: int, proxy: Proxy, proxy_url: str, tmp_path: Path
) -> None:
    write_tree(tmp_path / "s", {"a": b"-" * size})
    changed: list[str] = []

    def change(exchange: Exchange) -> None:
        if not changed and (size < 1 << 21 or exchange.method == "PUT"):
            changed.append("a")
            (tmp_path / "s" / "a").write_bytes(b"+" * (size + 1))

    proxy.on_request = change
    with pytest.raises(ObjectChangedError, match="/s/a changed while it was pushed"):
        push(tmp_path / "s", proxy_url, max_in_flight=1)
    assert ask(proxy.upstream, "GET", f"/datasets/{proxy_url.rpartition('/')[2]}/files/a").status == 404


def flip_one_bit(body: bytes) -> bytes:
    middle = len(body) // 2
    return body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :] if body else body


@pytest.mark.parametrize("size", [50, len(MEDIUM)])
def test_an_upload_that_is_damaged_on_the_way_is_repeated(
    size: int, proxy: Proxy, proxy_url: str, url: str, tmp_path: Path
) -> None:
    write_tree(tmp_path / "s", {"a": bytes(size)})
    damaged: list[int] = []

    def damage(exchange: Exchange, body: bytes) -> bytes:
        if exchange.method != "PUT" or damaged:
            return body
        damaged.append(exchange.number)
        return flip_one_bit(body)

    proxy.change_request = damage
    push(tmp_path / "s", proxy_url)
    assert damaged
    pull(url, tmp_path / "t")
    assert read_tree(tmp_path / "t") == {"a": bytes(size)}


@pytest.mark.parametrize("sizes", [{"a": 50}, {"a": len(MEDIUM)}, {"a": 50, "b": 60}])
def test_an_upload_that_is_damaged_each_time_is_sent_twice_and_then_an_error(
    sizes: dict[str, int], proxy: Proxy, proxy_url: str, tmp_path: Path
) -> None:
    write_tree(tmp_path / "s", {path: b"-" * size for path, size in sizes.items()})
    proxy.change_request = lambda exchange, body: (
        body.replace(b"-" * 50, b"+" + b"-" * 49, 1) if exchange.method == "PUT" else body
    )
    with pytest.raises(StorageError, match="SHA-256") as caught:
        push(tmp_path / "s", proxy_url, max_in_flight=1)
    assert type(caught.value) is StorageError
    assert [one.partition("?")[0] for one in of_files(proxy, "PUT")] == ["a", "a"]
    assert sum(one.target.endswith(BATCH) and one.method == "PUT" for one in proxy.exchanges) == (len(sizes) > 1)
    dataset = Dataset(proxy.upstream, proxy_url.rpartition("/")[2])
    assert dataset.contents() == {}


@pytest.mark.parametrize(
    ("why", "status", "error", "sizes"),
    [
        ("a link", 403, AccessDeniedError, [50, len(MEDIUM)]),
        ("removed", 404, ObjectNotFoundError, [50, len(MEDIUM)]),
        ("a file in the way", 409, ObjectExistsError, [50, len(MEDIUM)]),
    ],
)
def test_what_is_refused_for_a_reason_that_remains_is_sent_once(
    why: str, status: int, error: type[Exception], sizes: list[int], proxy: Proxy, dataset: Dataset, tmp_path: Path
) -> None:
    def spoil(exchange: Exchange) -> None:
        if exchange.method != "PUT" or sum(one.method == "PUT" for one in proxy.exchanges) > 1:
            return
        if why == "removed":
            assert dataset.ask("DELETE").status == 204
        elif why == "a link":
            (dataset.folder / "x").symlink_to(tmp_path)
        else:
            dataset.fill({"x": b"1"})

    for size in sizes:
        write_tree(tmp_path / "s", {"x/a": b"-" * size})
        proxy.forget()
        proxy.on_request = spoil
        with pytest.raises(error, match="The service says") as caught:
            push(tmp_path / "s", f"datasets://{proxy.address}/{dataset.name}", max_in_flight=1)
        assert type(caught.value) is error
        assert [one.status for one in proxy.exchanges if one.method == "PUT"] == [status]
        assert dataset.ask("DELETE").status == (404 if why == "removed" else 204)
        assert Dataset(dataset.address, dataset.name).paths() == []
    assert not (tmp_path / "a").exists()


def test_a_file_that_is_larger_than_the_service_takes_is_an_error_that_says_so(small: Dataset, tmp_path: Path) -> None:
    before = small.contents()
    for size in (20_001, len(MEDIUM), 33 << 20):
        write_tree(tmp_path / "s", {"too/large": b"-" * size})
        with pytest.raises(StorageError, match=r"answered 413.*20,000 bytes"):
            push(tmp_path / "s", small.url)
    assert small.contents() == before


@pytest.mark.parametrize("path", ["cat/1", "dog/1"])
def test_a_download_that_is_damaged_on_the_way_is_repeated_once_and_never_kept(
    path: str, pets: str, proxy: Proxy, proxy_url: str, tmp_path: Path
) -> None:
    damaged: list[int] = []

    def damage(exchange: Exchange, body: bytes) -> bytes:
        at = body.find(TREE[path]) if exchange.method in ("GET", "POST") and exchange.status == 200 else -1
        if at < 0 or b'"files"' in body[:20] or len(damaged) >= times:
            return body
        damaged.append(exchange.number)
        return body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]

    proxy.change_response, times = damage, 1000
    with pytest.raises(StorageError, match="received SHA-256"):
        pull(proxy_url, tmp_path / "t")
    assert not (tmp_path / "t" / path).exists()
    damaged.clear()
    times = 1
    pull(proxy_url, tmp_path / "t")
    assert len(damaged) == 1
    assert read_tree(tmp_path / "t") == TREE


@pytest.mark.parametrize("then", [b"new", None])
@pytest.mark.parametrize("path", ["cat/1", "dog/1"])
def test_a_file_that_is_replaced_or_removed_during_a_pull_is_an_error_and_the_next_pull_has_its_new_version(
    path: str, then: bytes | None, pets: str, proxy: Proxy, proxy_url: str, tmp_path: Path
) -> None:
    after = {name: data for name, data in {**TREE, path: then}.items() if data is not None}
    replaced: list[str] = []

    def replace(exchange: Exchange) -> None:
        is_its = exchange.method == "POST" if path == "cat/1" else exchange.target.endswith(path)
        if is_its and not replaced:
            replaced.append(path)
            write_tree(tmp_path / "s", after)
            push(tmp_path / "s", pets, delete=True)

    proxy.on_request = replace
    with pytest.raises(ObjectNotFoundError if then is None else ObjectChangedError):
        pull(proxy_url, tmp_path / "t")
    assert not (tmp_path / "t" / path).exists()
    pull(proxy_url, tmp_path / "t")
    assert read_tree(tmp_path / "t") == after


def test_what_another_push_completes_meanwhile_is_no_error(
    url: str, proxy: Proxy, proxy_url: str, tmp_path: Path
) -> None:
    tree = {"a": b"x" * (33 << 20), "b": MEDIUM, "c": b"1"}
    write_tree(tmp_path / "s", tree)
    also: list[int] = []

    def push_too(exchange: Exchange) -> None:
        if exchange.method == "PUT" and not also:
            also.append(exchange.number)
            push(tmp_path / "s", url)

    proxy.on_request = push_too
    push(tmp_path / "s", proxy_url, max_in_flight=1)
    pull(url, tmp_path / "t")
    assert read_tree(tmp_path / "t") == tree


def test_progress_grows_to_the_total(url: str, tmp_path: Path) -> None:
    write_tree(tmp_path / "s", TREE)
    total = sum(map(len, TREE.values()))
    for copy in (push, pull, pull):
        reports: list[tdr.TransferProgress] = []
        source, target = (tmp_path / "s", url) if copy is push else (url, tmp_path / "t")
        copy(source, target, on_progress=reports.append)  # type: ignore[arg-type]
        assert reports[-1] == tdr.TransferProgress(4, 4, total, total)
        assert all(one.total_bytes in (0, total) and one.num_bytes <= total for one in reports)
        assert [now.num_bytes for now in reports] == sorted(now.num_bytes for now in reports)
        assert reports[0].num_files == 0


def test_a_service_that_is_down_is_asked_again_and_then_an_error(tmp_path: Path) -> None:
    write_tree(tmp_path / "s", {"a": b"1"})
    with socket.socket() as bound:  # to a port on which nobody listens
        bound.bind(("127.0.0.1", 0))
        url = f"datasets://127.0.0.1:{bound.getsockname()[1]}/pets"
        with pytest.raises(TransientStorageError, match="Gave up after 2 attempts"):
            push(tmp_path / "s", url, retry=tdr.RetryPolicy(max_attempts=2, first_wait_s=0))


# Batches


def test_small_files_are_sent_in_batches_and_those_of_a_damaged_one_again_by_themselves(
    proxy: Proxy, proxy_url: str, url: str, tmp_path: Path
) -> None:
    tree = {f"{number}": b"%d" % number * 20 for number in range(40)}
    write_tree(tmp_path / "s", tree)

    def damage(exchange: Exchange, body: bytes) -> bytes:
        at = body.find(tree["7"]) if exchange.method == "PUT" and exchange.target.endswith(BATCH) else -1
        return body if at < 0 else body[:at] + b"x" + body[at + 1 :]

    proxy.change_request = damage
    assert counts(push(tmp_path / "s", proxy_url, max_in_flight=4)) == (40, 0, 0, 0)
    assert sum(one.method == "PUT" and one.target.endswith(BATCH) for one in proxy.exchanges) == 4
    assert len(of_files(proxy, "PUT")) == 10
    assert "7" in of_files(proxy, "PUT")
    assert counts(push(tmp_path / "s", proxy_url)) == (0, 40, 0, 0)
    proxy.forget()
    pull(proxy_url, tmp_path / "t", max_in_flight=4)
    assert read_tree(tmp_path / "t") == tree
    assert (sum(one.method == "POST" for one in proxy.exchanges), of_files(proxy, "GET")) == (4, [])


def test_after_a_lost_answer_files_that_were_stored_are_not_sent_again(
    proxy: Proxy, proxy_url: str, url: str, tmp_path: Path
) -> None:
    tree = {f"{number}": b"%d" % number * 20 for number in range(10)}
    write_tree(tmp_path / "s", tree)

    def lose(exchange: Exchange, body: bytes) -> bytes:
        if exchange.method == "PUT" and exchange.target.endswith(BATCH):
            raise ConnectionError
        return body

    proxy.change_response = lose
    assert counts(push(tmp_path / "s", proxy_url, max_in_flight=1)) == (10, 0, 0, 0)
    assert of_files(proxy, "PUT") == []
    pull(url, tmp_path / "t")
    assert read_tree(tmp_path / "t") == tree


# The folder of a pull


def test_a_repeated_pull_reads_no_files(pets: str, proxy: Proxy, proxy_url: str, tmp_path: Path) -> None:
    target = tmp_path / "t"
    pull(pets, target)
    for path in TREE:
        os.utime(target / path, ns=(0, (target / path).stat().st_mtime_ns))
    assert counts(pull(proxy_url, target)) == (0, 4, 0, 0)
    assert fetched_bytes(proxy) == 0
    assert all((target / path).stat().st_atime_ns == 0 for path in TREE), "hashing would read them"


@pytest.mark.parametrize("state", [None, b"", b'{"files": {"a": 1}}', b"\xff"])
def test_without_a_valid_state_files_are_compared_by_their_digest(
    state: bytes | None, pets: str, proxy: Proxy, proxy_url: str, tmp_path: Path
) -> None:
    target = tmp_path / "t"
    write_tree(target, TREE)
    if state is not None:
        (target / ".torchdata_remote-pull.json").write_bytes(state)
    (target / "readme").unlink()
    done = pull(proxy_url, target)
    assert (counts(done), done.num_bytes, fetched_bytes(proxy)) == ((1, 3, 0, 0), 4, 4)
    assert read_tree(target) == TREE
    assert counts(pull(pets, target)) == (0, 4, 0, 0)


@pytest.mark.parametrize("content", [b"cars", b"my notes"])  # of the same size, and of another
@pytest.mark.parametrize("was_pulled", [False, True])
def test_a_file_that_was_not_pulled_or_that_was_edited_is_not_replaced_unless_delete_is_true(
    was_pulled: bool, content: bytes, pets: str, tmp_path: Path
) -> None:
    target = tmp_path / "t"
    write_tree(target, {})
    if was_pulled:
        pull(pets, target)
    (target / "readme").write_bytes(content)
    os.utime(target / "readme", ns=(1, 1))
    before = read_tree(target)
    with pytest.raises(StorageError, match="/t/readme was not pulled, or was changed since"):
        pull(pets, target)
    assert read_tree(target) == before
    pull(pets, target, delete=True)
    assert read_tree(target) == TREE


def test_a_pulled_file_with_another_date_is_replaced(pets: str, tmp_path: Path) -> None:
    target = tmp_path / "t"
    pull(pets, target)
    os.utime(target / "readme", ns=(1, 1))  # such as that of a copy of the folder
    (tmp_path / "s" / "readme").write_bytes(b"new text")
    push(tmp_path / "s", pets)
    assert counts(pull(pets, target)) == (1, 3, 0, 0)


def test_what_a_pull_wrote_before_it_failed_is_replaced_by_the_next_one(
    pets: str, proxy: Proxy, proxy_url: str, tmp_path: Path
) -> None:
    target = tmp_path / "t"
    pull(proxy_url, target)
    write_tree(tmp_path / "s", {path: data + b"2" for path, data in TREE.items()})
    push(tmp_path / "s", pets)

    def end(exchange: Exchange) -> None:
        if exchange.target.endswith("dog/1"):
            raise ConnectionError

    proxy.midway = end
    with pytest.raises(TransientStorageError):
        pull(proxy_url, target, max_in_flight=1, retry=tdr.RetryPolicy(max_attempts=1))
    write_tree(tmp_path / "s", {path: data + b"third" for path, data in TREE.items()})
    push(tmp_path / "s", pets)
    proxy.forget()
    assert counts(pull(proxy_url, target)) == (4, 0, 0, 0)


def test_a_file_that_a_killed_pull_gave_its_name_is_replaced_by_the_next_one(
    url: str, proxy: Proxy, proxy_url: str, tmp_path: Path
) -> None:
    target, size = tmp_path / "t", (64 << 20) + 1  # which get their names at once
    write_tree(tmp_path / "s", {"a": bytes(size), "b": MEDIUM})
    push(tmp_path / "s", url, delete=True)
    job = Job("pull", proxy_url, target)

    def end(exchange: Exchange) -> None:
        if exchange.target.endswith("files/b"):
            wait_for((target / "a").exists)
            job.end(signal.SIGKILL)

    proxy.on_request = end
    job.run()
    assert set(read_tree(target)) >= {"a"}
    write_tree(tmp_path / "s", {"a": b"new", "b": MEDIUM})
    push(tmp_path / "s", url, delete=True)
    proxy.forget()
    pull(proxy_url, target)
    assert read_tree(target) == {"a": b"new", "b": MEDIUM}
    assert not (target / ".torchdata_remote-pull.journal").exists()


@pytest.mark.parametrize("path", ["cat", "readme"])
@pytest.mark.parametrize("inside", [False, True])
def test_a_pull_follows_no_link(path: str, inside: bool, pets: str, tmp_path: Path) -> None:
    target = tmp_path / "t"
    elsewhere = target / "elsewhere" if inside else tmp_path / "elsewhere"
    write_tree(elsewhere, {"1": b"old"})
    target.mkdir(exist_ok=True)
    (target / path).symlink_to(elsewhere if path == "cat" else elsewhere / "1")
    with pytest.raises(StorageError, match=f"/t/{path} is a link, and in the way"):
        pull(pets, target)
    assert read_tree(elsewhere) == {"1": b"old"}
    pull(pets, target, delete=True)
    assert read_tree(target) == TREE
    assert inside or read_tree(elsewhere) == {"1": b"old"}


def test_nothing_is_written_behind_a_link_that_appears_during_the_pull(
    pets: str, proxy: Proxy, proxy_url: str, tmp_path: Path
) -> None:
    (tmp_path / "outside").mkdir()

    def put_link(exchange: Exchange) -> None:
        if exchange.method == "POST" and not (tmp_path / "t" / "cat").exists():
            (tmp_path / "t" / "cat").symlink_to(tmp_path / "outside")

    proxy.on_request = put_link
    with pytest.raises(StorageError, match="a link or a file is in the way"):
        pull(proxy_url, tmp_path / "t", max_in_flight=1)
    assert os.listdir(tmp_path / "outside") == []


def test_an_empty_or_unknown_dataset_leaves_the_folder_as_it_was(url: str, tmp_path: Path) -> None:
    with pytest.raises(ObjectNotFoundError):
        pull(url, tmp_path / "t")
    write_tree(tmp_path / "s", {"a": b"1"})
    push(tmp_path / "s", url)
    pull(url, tmp_path / "t")
    host, _, name = url.removeprefix("datasets://").partition("/")
    assert Dataset(host, name).delete("a").status == 204
    with pytest.raises(EmptyListingError):
        pull(url, tmp_path / "t")
    assert read_tree(tmp_path / "t") == {"a": b"1"}


def test_a_folder_with_another_dataset_is_refused_and_another_name_of_the_host_is_not(
    pets: str, served: str, tmp_path: Path
) -> None:
    pull(pets, tmp_path / "t")
    push(tmp_path / "s", f"{pets}-2")
    with pytest.raises(ObjectExistsError, match="holds the dataset"):
        pull(f"{pets}-2", tmp_path / "t")
    assert counts(pull(pets.replace("127.0.0.1", "localhost"), tmp_path / "t")) == (0, 4, 0, 0)
    assert read_tree(tmp_path / "t") == TREE
    with pytest.raises(UrlError):
        pull("/a/folder", tmp_path / "t")
    with pytest.raises(ValueError, match="max_in_flight"):
        pull(pets, tmp_path / "t", max_in_flight=0)


@pytest.mark.parametrize("files", [{"g": b"1"}, {"f": b"other", "g": b"1"}])
def test_a_dataset_of_this_name_on_another_host_neither_replaces_nor_removes_files(
    files: Tree, guarded: str, url: str, name: str, tmp_path: Path
) -> None:
    options = {"token": TOKEN}
    write_tree(tmp_path / "s", {"f": b"first"})
    push(tmp_path / "s", url)
    pull(url, tmp_path / "t")
    write_tree(tmp_path / "s", files)
    push(tmp_path / "s", f"datasets://{guarded}/{name}", storage_options=options)
    for delete in (False, True):
        with pytest.raises(ObjectExistsError, match="holds the dataset"):
            pull(f"datasets://{guarded}/{name}", tmp_path / "t", delete=delete, storage_options=options)
    assert read_tree(tmp_path / "t") == {"f": b"first"}


def test_a_disk_that_fills_up_is_an_error_and_the_pull_may_go_on(pets: str, tmp_path: Path) -> None:
    result = Job("pull", pets, tmp_path / "t", fsize=500_000).run()
    assert "StorageError" in result["error"]
    assert "File too large" in result["error"]
    assert "dog/1" not in read_tree(tmp_path / "t")
    pull(pets, tmp_path / "t")
    assert read_tree(tmp_path / "t") == TREE


def test_a_read_only_folder_has_to_be_complete(pets: str, tmp_path: Path) -> None:
    with temporary_folder() as above:  # not below pytest's folder, which each pytest closes to others at its start
        above.chmod(0o755)
        target = above / "t"
        pull(pets, target)
        for folder in (target, target / "cat", target / "dog"):
            folder.chmod(0o555)
        for _ in range(2):
            done = Job("pull", pets, target, nobody=True).run()
            assert done.get("num_unchanged") == 4, done
            for name in (".torchdata_remote-pull.json", ".torchdata_remote-pull.lock"):
                (target / name).unlink(missing_ok=True)
        (tmp_path / "s" / "readme").write_bytes(b"new")
        push(tmp_path / "s", pets)
        error = Job("pull", pets, target, nobody=True).run()["error"]
        assert error.startswith(f"AccessDeniedError: {target} is not writable")
        assert "1 files are to be fetched" in error
        for folder in (target, target / "cat", target / "dog"):
            folder.chmod(0o755)


# A service that lies


def hostile(files: list[dict[str, Any]]) -> Callable[[Request], Response]:
    def respond(request: Request) -> Response:
        if urlsplit(request.target).path.endswith("/files"):
            return Response(200, json.dumps({"files": files, "folders": [], "next": None}).encode())
        return Response.of_object(request, b"evil" if "evil" in unquote(request.target) else b"good")

    return respond


GOOD = {"path": "good", "size": 4, "etag": '"1"', "modified": None, "sha256": sha256(b"good")}
EVIL_PATHS = [
    *("../evil", "a/../../evil", "/etc/evil", "a//evil", "./evil", "evil/", "", ".", "..", "a\0evil", "a\\..\\evil"),
    *("a\nevil", "x" * 256, "/".join(["evil"] * 300), ".torchdata_remote-pull.json", "a/.torchdata_remote-pull.lock"),
    *(f"a/.pull-{'0' * 32}.torchdata_remote-partial", "\ud800", "good/evil"),
]


@pytest.mark.parametrize("path", EVIL_PATHS)
def test_a_listed_path_that_leads_elsewhere_is_refused_and_nothing_is_written(path: str, tmp_path: Path) -> None:
    evil = {**GOOD, "path": path, "sha256": sha256(b"evil")}
    with scripted(hostile([GOOD, evil])) as server, pytest.raises(StorageError):
        pull(f"datasets://{urlsplit(server.url).netloc}/pets", tmp_path / "deep" / "t")
    assert read_tree(tmp_path) == {}


@pytest.mark.parametrize("digest", ["", "00", "Z" * 64, "../../" + "a" * 58])
def test_a_listed_digest_that_is_none_is_refused(digest: str, tmp_path: Path) -> None:
    with scripted(hostile([{**GOOD, "sha256": digest}])) as server, pytest.raises(StorageError, match="SHA-256"):
        pull(f"datasets://{urlsplit(server.url).netloc}/pets", tmp_path / "t")


def test_a_listing_that_does_not_end_is_an_error(tmp_path: Path) -> None:
    def respond(request: Request) -> Response:
        return Response(200, json.dumps({"files": [], "folders": [], "next": f"{request.number:09}"}).encode())

    with scripted(respond) as server, pytest.raises(StorageError, match="does not end"):
        pull(f"datasets://{urlsplit(server.url).netloc}/pets", tmp_path / "t")
