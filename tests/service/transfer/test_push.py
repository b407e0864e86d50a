"""A folder into a data set."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.servers.service import running_service
from tests.service.transfer.proxy import Exchange, Proxy, flip_one_bit
from tests.service.transfer.trees import PART_BYTES, Tree, counts, read_tree, small_pull, small_push, trees, write_tree
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

LARGE = bytes(range(250)) * 2  # eight parts


@settings(max_examples=25)
@given(tree=trees, data=st.data())
def test_what_is_pushed_is_what_is_pulled(
    tree: Tree, data: st.DataObject, service: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Any tree, byte for byte; asked again nothing is copied; after any change only what changed."""
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


def test_a_file_that_becomes_a_folder_and_back(url: str, tmp_path: Path) -> None:
    """With ``delete``, what is in the way goes first."""
    for tree in ({"a": b"1"}, {"a/b/c": b"2"}, {"a/b": b"3"}, {"a": b"4"}):
        write_tree(tmp_path / "s", tree)
        small_push(tmp_path / "s", url, delete=True)
        small_pull(url, tmp_path / "t")
        assert read_tree(tmp_path / "t") == tree


def test_files_that_the_folder_lacks_stay_unless_told(url: str, tmp_path: Path) -> None:
    """They are counted; with ``delete`` they go."""
    write_tree(tmp_path / "s", {"a": b"1", "b": b"2"})
    small_push(tmp_path / "s", url)
    (tmp_path / "s" / "b").unlink()
    assert counts(small_push(tmp_path / "s", url)) == (0, 1, 0, 1)
    assert counts(small_push(tmp_path / "s", url, delete=True)) == (0, 1, 1, 0)
    small_pull(url, tmp_path / "t")
    assert read_tree(tmp_path / "t") == {"a": b"1"}


def test_a_folder_of_a_data_set(url: str, tmp_path: Path) -> None:
    """Pushed into and pulled from, others are not touched."""
    write_tree(tmp_path / "s", {"a": b"1", "b/c": LARGE})
    small_push(tmp_path / "s", f"{url}/deep/er/")
    small_push(tmp_path / "s", url)
    write_tree(tmp_path / "s", {"d": b"3"})
    assert counts(small_push(tmp_path / "s", f"{url}/deep/er", delete=True)) == (1, 0, 2, 0)
    small_pull(url, tmp_path / "t")
    assert read_tree(tmp_path / "t") == {"a": b"1", "b/c": LARGE, "deep/er/d": b"3"}
    small_pull(f"{url}/deep", tmp_path / "u")
    assert read_tree(tmp_path / "u") == {"er/d": b"3"}


def test_links_inside_are_followed(url: str, tmp_path: Path) -> None:
    """To files and to folders."""
    write_tree(tmp_path / "s", {"a/b": b"1"})
    (tmp_path / "s" / "file").symlink_to("a/b")
    (tmp_path / "s" / "folder").symlink_to(tmp_path / "s" / "a")
    small_push(tmp_path / "s", url)
    small_pull(url, tmp_path / "t")
    assert read_tree(tmp_path / "t") == {"a/b": b"1", "file": b"1", "folder/b": b"1"}


def test_what_cannot_be_pushed(url: str, tmp_path: Path) -> None:
    """Says what and where, before anything is sent."""
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
    refused("folder that it is in")
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
    with pytest.raises(UrlError, match="names no data set"):
        push(source, url.rpartition("/")[0] + "/")
    with pytest.raises(ValueError, match="max_in_flight"):
        push(source, url, max_in_flight=0)


def test_our_own_files_stay_at_home(url: str, tmp_path: Path) -> None:
    """A folder that was pulled is pushed without the state of the pull, and without half written files."""
    write_tree(tmp_path / "s", {"a": b"1", ".torchdata_remote-pull.json": b"{}", ".x.torchdata_remote-partial": b"2"})
    assert counts(small_push(tmp_path / "s", url)) == (1, 0, 0, 0)


@pytest.mark.parametrize("size", [10, len(LARGE)])
def test_a_file_that_changes_meanwhile(size: int, proxy: Proxy, proxy_url: str, tmp_path: Path) -> None:
    """Is an error that names it."""
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
def test_a_bit_that_flips_on_the_way_there(size: int, proxy: Proxy, proxy_url: str, url: str, tmp_path: Path) -> None:
    """Is noticed by the service, and sent again."""
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


def test_two_pushes_of_the_same_at_once(url: str, proxy: Proxy, proxy_url: str, tmp_path: Path) -> None:
    """Another push completes the file while this one is half way: both end well."""
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


def test_progress_reaches_its_end(url: str, tmp_path: Path) -> None:
    """Bytes only grow, up to the total; there and back."""
    tree = {"a": LARGE, "b": b"12", "c": b""}
    write_tree(tmp_path / "s", tree)
    total = sum(map(len, tree.values()))
    for kind in ("push", "pull", "pull again"):
        told: list[TransferProgress] = []
        if kind == "push":
            small_push(tmp_path / "s", url, on_progress=told.append)
        else:
            small_pull(url, tmp_path / "t", on_progress=told.append)
        assert told[-1] == TransferProgress(3, 3, total, total)
        assert [now.num_bytes for now in told] == sorted(now.num_bytes for now in told)


def test_the_token(tmp_path: Path) -> None:
    """Without the right one nothing is copied; the message does not show it."""
    write_tree(tmp_path / "s", {"a": b"1"})
    (tmp_path / "token").write_text("correct-horse-battery\n")
    with running_service(tmp_path / "root", token_file=tmp_path / "token") as address:
        url = f"datasets://{address}/pets"
        for options in (None, {"token": "wrong-horse-battery"}):
            with pytest.raises(AccessDeniedError) as refused:
                push(tmp_path / "s", url, storage_options=options)
            assert "horse" not in str(refused.value)
            with pytest.raises(AccessDeniedError):
                pull(url, tmp_path / "t", storage_options=options)
        token = {"token": "correct-horse-battery"}
        push(tmp_path / "s", url, storage_options=token)
        pull(url, tmp_path / "t", storage_options=token)
    assert read_tree(tmp_path / "t") == {"a": b"1"}


def test_nobody_listens(tmp_path: Path) -> None:
    """It is tried again within the policy's limits, and then an error."""
    write_tree(tmp_path / "s", {"a": b"1"})
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(TransientStorageError, match="Gave up after 2 attempts"):
        push(tmp_path / "s", f"datasets://127.0.0.1:{port}/pets", retry=RetryPolicy(max_attempts=2, first_wait_s=0))


def test_parts_that_are_there_are_not_sent_again(proxy: Proxy, proxy_url: str, tmp_path: Path) -> None:
    """Also where an upload was cut otherwise, by another version."""
    write_tree(tmp_path / "s", {"a": LARGE})

    def stop(exchange: Exchange) -> None:
        if sum(one.method == "PUT" for one in proxy.exchanges) == 4:
            raise ConnectionError

    proxy.on_request = stop
    with pytest.raises(TransientStorageError):
        small_push(tmp_path / "s", proxy_url, max_in_flight=1, retry=RetryPolicy(max_attempts=1))
    assert proxy.sent_bytes() == 3 * PART_BYTES
    proxy.forget()
    assert small_push(tmp_path / "s", proxy_url, part_bytes=100).num_bytes == len(LARGE) - 3 * PART_BYTES
    assert proxy.sent_bytes() == len(LARGE) - 3 * PART_BYTES
