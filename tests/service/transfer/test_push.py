"""A folder into a dataset."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.service.transfer.proxy import Exchange, Proxy, flip_one_bit
from tests.service.transfer.trees import Tree, counts, read_tree, small_pull, small_push, trees, write_tree
from tests.support.service_clients import ask
from torchdata_remote import RetryPolicy
from torchdata_remote.errors import (
    AccessDeniedError,
    EmptyListingError,
    ObjectChangedError,
    StorageError,
    TransientStorageError,
    UrlError,
)
from torchdata_remote.service.transfer import TransferProgress, pull, push
from torchdata_remote.storage.dataset_service.batches import BatchRequests

LARGE = bytes(range(250)) * 2  # eight parts


@settings(max_examples=25)
@given(tree=trees, data=st.data())
def test_a_tree_survives_push_and_pull(
    tree: Tree, data: st.DataObject, service: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Byte for byte. A repeated transfer copies nothing; after a change, only what changed."""
    folder = tmp_path_factory.mktemp("tree")
    url = f"datasets://{service}/{folder.name}"
    source, target = folder / "source", folder / "target"
    write_tree(source, tree)
    assert counts(small_push(source, url)) == (len(tree), 0, 0, 0)
    assert counts(small_pull(url, target)) == (len(tree), 0, 0, 0)
    assert read_tree(target) == tree
    assert counts(small_push(source, url)) == (0, len(tree), 0, 0)
    assert counts(small_pull(url, target)) == (0, len(tree), 0, 0)

    other = data.draw(trees)
    kept = data.draw(st.sets(st.sampled_from(sorted(tree))))
    after = {**{path: tree[path] for path in kept}, **other}
    if any(path.startswith(name + "/") for name in after for path in after):
        after = other
    write_tree(source, after)
    same = sum(tree.get(path) == content for path, content in after.items())
    gone = sum(path not in after for path in tree)
    assert counts(small_push(source, url, delete=True)) == (len(after) - same, same, gone, 0)
    assert counts(small_pull(url, target)) == (len(after) - same, same, gone, 0)
    assert read_tree(target) == after


def test_a_file_can_become_a_folder_and_back(url: str, tmp_path: Path) -> None:
    """With ``delete``, files in the way are removed first."""
    for tree in ({"a": b"1"}, {"a/b/c": b"2"}, {"a/b": b"3"}, {"a": b"4"}):
        write_tree(tmp_path / "s", tree)
        small_push(tmp_path / "s", url, delete=True)
        small_pull(url, tmp_path / "t")
        assert read_tree(tmp_path / "t") == tree


def test_foreign_files_are_kept_without_delete(url: str, tmp_path: Path) -> None:
    """And counted; with ``delete`` they are removed."""
    write_tree(tmp_path / "s", {"a": b"1", "b": b"2"})
    small_push(tmp_path / "s", url)
    (tmp_path / "s" / "b").unlink()
    assert counts(small_push(tmp_path / "s", url)) == (0, 1, 0, 1)
    assert counts(small_push(tmp_path / "s", url, delete=True)) == (0, 1, 1, 0)
    small_pull(url, tmp_path / "t")
    assert read_tree(tmp_path / "t") == {"a": b"1"}


def test_push_and_pull_of_a_folder_in_a_dataset(url: str, tmp_path: Path) -> None:
    """Other folders are not changed."""
    write_tree(tmp_path / "s", {"a": b"1", "b/c": LARGE})
    small_push(tmp_path / "s", f"{url}/deep/er/")
    small_push(tmp_path / "s", url)
    write_tree(tmp_path / "s", {"d": b"3"})
    assert counts(small_push(tmp_path / "s", f"{url}/deep/er", delete=True)) == (1, 0, 2, 0)
    small_pull(url, tmp_path / "t")
    assert read_tree(tmp_path / "t") == {"a": b"1", "b/c": LARGE, "deep/er/d": b"3"}
    small_pull(f"{url}/deep", tmp_path / "u")
    assert read_tree(tmp_path / "u") == {"er/d": b"3"}


def test_links_inside_the_folder_are_followed(url: str, tmp_path: Path) -> None:
    """To files and to folders."""
    write_tree(tmp_path / "s", {"a/b": b"1"})
    (tmp_path / "s" / "file").symlink_to("a/b")
    (tmp_path / "s" / "folder").symlink_to(tmp_path / "s" / "a")
    small_push(tmp_path / "s", url)
    small_pull(url, tmp_path / "t")
    assert read_tree(tmp_path / "t") == {"a/b": b"1", "file": b"1", "folder/b": b"1"}


def test_invalid_sources_are_refused_before_anything_is_sent(url: str, tmp_path: Path) -> None:
    """The error names the file."""
    outside = tmp_path / "outside"
    outside.write_bytes(b"secret")
    source = tmp_path / "s"

    def refused(why: str) -> None:
        with pytest.raises(StorageError, match=why):
            small_push(source, url)
        write_tree(source, {"a": b""})

    write_tree(source, {"a": b""})
    (source / "link").symlink_to(outside)
    refused("link is a link that leads out of the folder, to .*outside")
    (source / "link").symlink_to("nowhere")
    refused("link to nowhere")
    (source / "b").mkdir()
    (source / "b" / "up").symlink_to("..")
    refused("to a folder above it")
    os.mkfifo(source / "pipe")
    refused("pipe is neither a file nor a folder")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(source / "socket"))
        refused("socket is neither")
    (source / "back\\slash").write_bytes(b"")
    refused("has the character")
    Path(os.fsdecode(os.fsencode(source) + b"/\xff")).write_bytes(b"")
    refused("is not UTF-8")
    with pytest.raises(StorageError, match="not a folder"):
        small_push(source / "a", url)
    with pytest.raises(FileNotFoundError):
        small_push(tmp_path / "none", url)
    (tmp_path / "t").mkdir()
    with pytest.raises(EmptyListingError, match="mounted"):
        small_push(tmp_path / "t", url)
    with pytest.raises(UrlError):
        push(source, "s3://bucket/a")
    with pytest.raises(UrlError, match="names no dataset"):
        push(source, url.rpartition("/")[0] + "/")
    with pytest.raises(ValueError, match="max_in_flight"):
        push(source, url, max_in_flight=0)


def test_reserved_files_are_not_pushed(url: str, tmp_path: Path) -> None:
    """The state of a pull, and incomplete files."""
    write_tree(tmp_path / "s", {"a": b"1", ".torchdata_remote-pull.json": b"{}", ".x.torchdata_remote-partial": b"2"})
    assert counts(small_push(tmp_path / "s", url)) == (1, 0, 0, 0)


@pytest.mark.parametrize("size", [10, len(LARGE)])
def test_a_file_that_changes_during_the_push_is_an_error(
    size: int, proxy: Proxy, proxy_url: str, tmp_path: Path
) -> None:
    """It names the file."""
    write_tree(tmp_path / "s", {"a": b"-" * size})

    def change(exchange: Exchange) -> None:
        if "a" not in changed and (size == 10 or exchange.method == "PUT"):
            changed.append("a")
            (tmp_path / "s" / "a").write_bytes(b"+" * (size + 1))

    changed: list[str] = []
    proxy.on_request = change
    with pytest.raises(ObjectChangedError, match="/s/a changed while it was pushed"):
        small_push(tmp_path / "s", proxy_url, max_in_flight=1)


@pytest.mark.parametrize("size", [50, len(LARGE)])
def test_a_corrupted_upload_is_repeated(size: int, proxy: Proxy, proxy_url: str, url: str, tmp_path: Path) -> None:
    """The service detects it by the digest."""
    tree = {"a": LARGE[:size]}
    write_tree(tmp_path / "s", tree)
    damaged: list[int] = []

    def damage(exchange: Exchange, body: bytes) -> bytes:
        if exchange.method != "PUT" or damaged:
            return body
        damaged.append(exchange.number)
        return flip_one_bit(body)

    proxy.change_request = damage
    small_push(tmp_path / "s", proxy_url)
    assert damaged
    small_pull(url, tmp_path / "t")
    assert read_tree(tmp_path / "t") == tree


def test_concurrent_pushes_of_one_file_succeed(url: str, proxy: Proxy, proxy_url: str, tmp_path: Path) -> None:
    """Another push completes the file while this one is half done."""
    write_tree(tmp_path / "s", {"a": LARGE})

    def push_too(exchange: Exchange) -> None:
        if exchange.method == "PUT" and not also:
            also.append(exchange.number)
            small_push(tmp_path / "s", url)

    also: list[int] = []
    proxy.on_request = push_too
    small_push(tmp_path / "s", proxy_url, max_in_flight=1)
    small_pull(url, tmp_path / "t")
    assert read_tree(tmp_path / "t") == {"a": LARGE}


def test_progress_grows_to_the_total(url: str, tmp_path: Path) -> None:
    """In both directions."""
    tree = {"a": LARGE, "b": b"12", "c": b""}
    write_tree(tmp_path / "s", tree)
    total = sum(map(len, tree.values()))
    for kind in ("push", "pull", "pull again"):
        reports: list[TransferProgress] = []
        if kind == "push":
            small_push(tmp_path / "s", url, on_progress=reports.append)
        else:
            small_pull(url, tmp_path / "t", on_progress=reports.append)
        assert reports[-1] == TransferProgress(3, 3, total, total)
        assert [now.num_bytes for now in reports] == sorted(now.num_bytes for now in reports)


def test_nothing_is_copied_without_the_token(guarded_service: str, token: str, dataset: str, tmp_path: Path) -> None:
    """The error does not show the token."""
    write_tree(tmp_path / "s", {"a": b"1"})
    url = f"datasets://{guarded_service}/{dataset}"
    for options in (None, {"token": f"wrong-{token}"}):
        with pytest.raises(AccessDeniedError) as refused:
            push(tmp_path / "s", url, storage_options=options)
        assert token not in str(refused.value)
        with pytest.raises(AccessDeniedError):
            pull(url, tmp_path / "t", storage_options=options)
    push(tmp_path / "s", url, storage_options={"token": token})
    pull(url, tmp_path / "t", storage_options={"token": token})
    assert read_tree(tmp_path / "t") == {"a": b"1"}


def test_a_service_that_is_down_is_retried_then_an_error(tmp_path: Path) -> None:
    """Within the limits of the retry policy."""
    write_tree(tmp_path / "s", {"a": b"1"})
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(TransientStorageError, match="Gave up after 2 attempts"):
        push(tmp_path / "s", f"datasets://127.0.0.1:{port}/pets", retry=RetryPolicy(max_attempts=2, first_wait_s=0))


def test_received_parts_are_not_sent_again(proxy: Proxy, proxy_url: str, tmp_path: Path) -> None:
    """Also if the part size differs."""
    part_bytes = 10  # of which 16 are sent in a request
    write_tree(tmp_path / "s", {"a": LARGE})

    def stop(exchange: Exchange) -> None:
        if sum(one.method == "PUT" for one in proxy.exchanges) == 4:
            raise ConnectionError

    proxy.on_request = stop
    with pytest.raises(TransientStorageError):
        small_push(tmp_path / "s", proxy_url, part_bytes=part_bytes, max_in_flight=1, retry=RetryPolicy(max_attempts=1))
    assert proxy.sent_bytes() == 3 * 16 * part_bytes
    proxy.forget()
    assert small_push(tmp_path / "s", proxy_url, part_bytes=7).num_bytes == len(LARGE) - 3 * 16 * part_bytes
    assert proxy.sent_bytes() == len(LARGE) - 3 * 16 * part_bytes


@pytest.mark.parametrize("is_known", [True, False])
def test_a_broken_request_with_a_large_file_is_continued(
    is_known: bool, proxy: Proxy, proxy_url: str, url: str, tmp_path: Path
) -> None:
    """By the bytes that the service has; by all, if it has not noticed yet that the connection broke."""
    write_tree(tmp_path / "s", {"a": LARGE})

    def break_once(exchange: Exchange) -> None:
        if exchange.method == "PUT" and not broken:
            broken.append(exchange)
            raise ConnectionError

    def answer(exchange: Exchange) -> None:
        if not is_known or exchange.method != "GET" or not broken:
            return
        give_up_s = time.monotonic() + 30
        while ask(proxy.service, "GET", exchange.target)[0] != 200:
            assert time.monotonic() < give_up_s

    broken: list[Exchange] = []
    proxy.midway, proxy.on_request = break_once, answer
    small_push(tmp_path / "s", proxy_url)
    if is_known:
        assert proxy.sent_bytes() == len(LARGE) // 2
    small_pull(url, tmp_path / "t")
    assert read_tree(tmp_path / "t") == {"a": LARGE}


def test_small_files_are_sent_in_batches(proxy: Proxy, proxy_url: str, url: str, tmp_path: Path) -> None:
    """A damaged file is sent again by itself, and only that one."""
    tree = {f"{number}": b"%d" % number * 20 for number in range(40)}
    write_tree(tmp_path / "s", tree)

    def damage(exchange: Exchange, body: bytes) -> bytes:
        at = body.find(tree["7"])
        if exchange.method != "PUT" or at < 0 or damaged:
            return body
        damaged.append(exchange.number)
        return body[:at] + b"x" + body[at + 1 :]

    damaged: list[int] = []
    proxy.change_request = damage
    assert counts(small_push(tmp_path / "s", proxy_url)) == (40, 0, 0, 0)
    assert sum(one.is_batch for one in proxy.exchanges) == 4  # as many as may be in flight
    assert [one.target.rpartition("/")[2] for one in proxy.exchanges if one.is_of_a_file and one.method == "PUT"] == [
        "7"
    ]
    assert counts(small_push(tmp_path / "s", proxy_url)) == (0, 40, 0, 0)
    small_pull(url, tmp_path / "t")
    assert read_tree(tmp_path / "t") == tree


def test_a_full_batch_of_tiny_files_is_answered_in_one_request(proxy: Proxy, proxy_url: str, tmp_path: Path) -> None:
    """The answer about a thousand files is longer than one about a file may be."""
    write_tree(tmp_path / "s", {f"{number:04d}-{'n' * 100}": b"%d" % number for number in range(1000)})
    assert counts(push(tmp_path / "s", proxy_url, max_in_flight=1)) == (1000, 0, 0, 0)
    assert sum(one.is_batch for one in proxy.exchanges) == 1
    assert not [one.target for one in proxy.exchanges if one.is_of_a_file]


def test_after_a_broken_batch_the_files_that_arrived_are_not_sent_again(
    proxy: Proxy, proxy_url: str, url: str, tmp_path: Path
) -> None:
    """The response was lost."""
    tree = {f"{number}": b"%d" % number * 20 for number in range(10)}
    write_tree(tmp_path / "s", tree)

    def lose_response(exchange: Exchange, body: bytes) -> bytes:
        if not exchange.is_batch:
            return body
        raise ConnectionError

    proxy.change_response = lose_response
    assert counts(small_push(tmp_path / "s", proxy_url, max_in_flight=1)) == (10, 0, 0, 0)
    assert [one.method for one in proxy.exchanges if one.is_of_a_file] == ["HEAD"] * 10
    small_pull(url, tmp_path / "t")
    assert read_tree(tmp_path / "t") == tree


def test_a_service_without_batches_gets_each_file_by_itself(url: str, tmp_path: Path) -> None:
    """In both directions, after one request."""
    tree = {f"{number}": b"%d" % number * 20 for number in range(10)}
    write_tree(tmp_path / "s", tree)
    asked: list[str] = []

    def refuse(self: object, name: str, *others: object) -> Any:
        asked.append(name)
        raise StorageError("405")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BatchRequests, "put_batch", refuse)
        patch.setattr(BatchRequests, "get_batch", refuse)
        assert counts(small_push(tmp_path / "s", url, max_in_flight=1)) == (10, 0, 0, 0)
        assert counts(small_pull(url, tmp_path / "t", max_in_flight=1)) == (10, 0, 0, 0)
    assert len(asked) == 2
    assert read_tree(tmp_path / "t") == tree
