"""A dataset into a folder."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from tests.servers.scripted import Request, Response, scripted
from tests.service.transfer.jobs import Jobs
from tests.service.transfer.proxy import Exchange, Proxy, flip_one_bit
from tests.service.transfer.trees import PART_BYTES, counts, read_tree, small_pull, small_push, write_tree
from torchdata_remote import StorageOptions
from torchdata_remote.errors import (
    EmptyListingError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    StorageError,
    UrlError,
)
from torchdata_remote.service.client.connect import open_service
from torchdata_remote.service.transfer import pull
from torchdata_remote.service.transfer.names import LOCK_NAME, STATE_NAME, partial_name, ranges_name

LARGE = bytes(range(250)) * 2  # eight parts
TREE = {"cat/1": b"meow", "cat/2": b"", "dog/1": LARGE, "readme": b"pets"}


@pytest.fixture
def pets(url: str, tmp_path: Path) -> str:
    """A dataset that holds ``TREE``, and that was pushed from ``s``."""
    write_tree(tmp_path / "s", TREE)
    small_push(tmp_path / "s", url)
    return url


def test_a_repeated_pull_reads_no_files(pets: str, proxy: Proxy, proxy_url: str, tmp_path: Path) -> None:
    """Neither from the service nor, by the state, from disk."""
    small_pull(pets, tmp_path / "t")
    for path in TREE:
        os.utime(tmp_path / "t" / path, ns=(0, (tmp_path / "t" / path).stat().st_mtime_ns))  # atime only
    assert counts(small_pull(proxy_url, tmp_path / "t")) == (0, 4, 0, 0)
    assert proxy.fetched_bytes() == 0
    assert all((tmp_path / "t" / path).stat().st_atime_ns == 0 for path in TREE), "hashing would read them"


def test_without_the_state_equal_files_are_kept(pets: str, proxy: Proxy, proxy_url: str, tmp_path: Path) -> None:
    """By their digest; one that differs is fetched, also with equal size and date."""
    write_tree(tmp_path / "t", TREE)
    (tmp_path / "t" / "readme").write_bytes(b"cars")
    os.utime(tmp_path / "t" / "readme", ns=(1, 1))
    done = small_pull(proxy_url, tmp_path / "t")
    assert counts(done) == (1, 3, 0, 0)
    assert done.num_bytes == proxy.fetched_bytes() == 4
    assert read_tree(tmp_path / "t") == TREE


@pytest.mark.parametrize("state", [b"", b"[]", b'{"__kind__": "other"}', b'{"files": {"a": 1}}', b"\xff", b"null"])
def test_an_invalid_state_is_ignored(state: bytes, pets: str, tmp_path: Path) -> None:
    """As if there were none."""
    small_pull(pets, tmp_path / "t")
    (tmp_path / "t" / STATE_NAME).write_bytes(state)
    assert counts(small_pull(pets, tmp_path / "t")) == (0, 4, 0, 0)
    assert counts(small_pull(pets, tmp_path / "t")) == (0, 4, 0, 0)


def test_foreign_and_changed_files_are_kept_without_delete(pets: str, tmp_path: Path) -> None:
    """With ``delete`` they are removed, and folders that become empty."""
    small_pull(pets, tmp_path / "t")
    (tmp_path / "t" / "mine").mkdir()
    (tmp_path / "t" / "mine" / "notes").write_bytes(b"1")
    (tmp_path / "t" / "link").symlink_to("/etc/passwd")
    (tmp_path / "t" / "readme").write_bytes(b"changed")
    write_tree(tmp_path / "s", {"cat/1": b"meow"})
    small_push(tmp_path / "s", pets, delete=True)
    assert counts(small_pull(pets, tmp_path / "t")) == (0, 1, 2, 3)
    assert read_tree(tmp_path / "t") == {"cat/1": b"meow", "mine/notes": b"1", "readme": b"changed", "link": b""} | {
        "link": Path("/etc/passwd").read_bytes()
    }
    assert not (tmp_path / "t" / "dog").exists()
    assert counts(small_pull(pets, tmp_path / "t", delete=True)) == (0, 1, 3, 0)
    assert read_tree(tmp_path / "t") == {"cat/1": b"meow"}
    assert not (tmp_path / "t" / "mine").exists()
    assert Path("/etc/passwd").exists()


def test_a_file_can_become_a_folder_and_back(url: str, tmp_path: Path) -> None:
    """Pulled files are removed; a foreign file in the way is an error that names it."""
    store, name = open_service(url, StorageOptions())
    for tree in ({"a": b"1"}, {"a/b/c": b"2"}, {"a/b": b"3"}, {"a": b"4"}):
        write_tree(tmp_path / "s", tree)
        store.remove_folder(name)
        small_push(tmp_path / "s", url)
        small_pull(url, tmp_path / "t")
        assert read_tree(tmp_path / "t") == tree
    write_tree(tmp_path / "u", {"a/x": b"mine"})
    with pytest.raises(StorageError, match="/u/a is a folder, and in the way of 'a'"):
        small_pull(url, tmp_path / "u")
    small_pull(url, tmp_path / "u", delete=True)
    assert read_tree(tmp_path / "u") == {"a": b"4"}


@pytest.mark.parametrize("name", ["cat", "readme"])
@pytest.mark.parametrize("inside", [False, True])
def test_no_link_is_followed(name: str, inside: bool, pets: str, tmp_path: Path) -> None:
    """Neither for a folder nor for a file, wherever it leads; with ``delete`` the link goes, not what it leads to."""
    elsewhere = tmp_path / "t" / "elsewhere" if inside else tmp_path / "elsewhere"
    write_tree(elsewhere, {"1": b"old"})
    (tmp_path / "t").mkdir(exist_ok=True)
    (tmp_path / "t" / name).symlink_to(elsewhere if name == "cat" else elsewhere / "1")
    with pytest.raises(StorageError, match=f"/t/{name} is a link, and in the way"):
        small_pull(pets, tmp_path / "t")
    assert read_tree(elsewhere) == {"1": b"old"}
    small_pull(pets, tmp_path / "t", delete=True)
    assert read_tree(tmp_path / "t") == TREE
    assert inside or read_tree(elsewhere) == {"1": b"old"}


def test_a_link_created_during_the_pull_is_not_followed(
    pets: str, proxy: Proxy, proxy_url: str, tmp_path: Path
) -> None:
    """Nothing is written behind it."""
    (tmp_path / "outside").mkdir()
    write_tree(tmp_path / "s", {"a-readme": b"1", "cat/z": LARGE})
    small_push(tmp_path / "s", pets, delete=True)

    def put_link(exchange: Exchange) -> None:
        if exchange.is_batch:
            (tmp_path / "t" / "cat").symlink_to(tmp_path / "outside")

    proxy.on_request = put_link
    with pytest.raises(StorageError, match="a link or a file is in the way"):
        small_pull(proxy_url, tmp_path / "t", max_in_flight=1)
    assert list((tmp_path / "outside").iterdir()) == []


@pytest.mark.parametrize("path", ["cat/1", "dog/1"])
def test_a_corrupted_download_is_repeated_once(
    path: str, pets: str, proxy: Proxy, proxy_url: str, tmp_path: Path
) -> None:
    """If it is corrupted each time that is an error, and nothing is kept."""
    damaged: list[int] = []

    def damage(exchange: Exchange, body: bytes) -> bytes:
        if not exchange.target.endswith(path) or exchange.method != "GET" or len(damaged) >= times:
            return body
        damaged.append(exchange.number)
        return flip_one_bit(body)

    proxy.change_response = damage
    times = 1000
    with pytest.raises(StorageError, match=r"received SHA-256"):
        small_pull(proxy_url, tmp_path / "t")
    assert not (tmp_path / "t" / path).exists()
    # Of the other one there may be a part, which the next pull continues.
    assert not list((tmp_path / "t" / path).parent.glob(".pull-*"))
    damaged.clear()
    times = 1
    small_pull(proxy_url, tmp_path / "t")
    assert len(damaged) == 1
    assert read_tree(tmp_path / "t") == TREE


@pytest.mark.parametrize("then", [b"new", LARGE[::-1], None])
@pytest.mark.parametrize("path", ["cat/1", "dog/1"])
def test_a_file_replaced_after_the_listing_is_fetched_in_its_new_version(
    path: str, then: bytes | None, pets: str, proxy: Proxy, proxy_url: str, tmp_path: Path
) -> None:
    """Or not at all, if it was removed."""
    small_pull(pets, tmp_path / "old")
    after = {**TREE, path: then} if then is not None else {k: v for k, v in TREE.items() if k != path}

    def replace(exchange: Exchange) -> None:
        if exchange.method == "GET" and exchange.target.endswith(path) and not replaced:
            replaced.append(path)
            write_tree(tmp_path / "s", {k: v for k, v in after.items() if v is not None})
            small_push(tmp_path / "s", pets, delete=True)

    replaced: list[str] = []
    proxy.on_request = replace
    small_pull(proxy_url, tmp_path / "t")
    assert replaced
    assert read_tree(tmp_path / "t") == after
    assert counts(small_pull(pets, tmp_path / "t")) == (0, len(after), 0, 0)


def test_a_file_that_is_replaced_continuously_is_an_error(
    pets: str, proxy: Proxy, proxy_url: str, tmp_path: Path
) -> None:

    def replace(exchange: Exchange) -> None:
        if exchange.method == "GET" and exchange.target.endswith("cat/1"):
            write_tree(tmp_path / "s", {"cat/1": b"%d" % exchange.number})
            small_push(tmp_path / "s", pets)

    proxy.on_request = replace
    with pytest.raises(ObjectChangedError):
        small_pull(proxy_url, tmp_path / "t")


def test_pulling_an_empty_or_unknown_dataset_is_an_error(service: str, url: str, tmp_path: Path) -> None:
    """The folder stays as it was."""
    with pytest.raises(ObjectNotFoundError):
        small_pull(url, tmp_path / "t")
    write_tree(tmp_path / "s", {"a": b"1"})
    small_push(tmp_path / "s", url)
    small_pull(url, tmp_path / "t")
    store, path = open_service(f"{url}/a", StorageOptions())
    store.delete(path)
    with pytest.raises(EmptyListingError):
        small_pull(url, tmp_path / "t")
    assert read_tree(tmp_path / "t") == {"a": b"1"}


def test_a_folder_with_another_dataset_is_refused(pets: str, service: str, tmp_path: Path) -> None:
    """The same dataset under another host name is accepted."""
    small_pull(pets, tmp_path / "t")
    name = tmp_path.name
    small_push(tmp_path / "s", f"datasets://{service}/{name}")
    with pytest.raises(ObjectExistsError, match="holds the dataset"):
        small_pull(f"datasets://{service}/{name}", tmp_path / "t")
    small_pull(pets.replace("127.0.0.1", "localhost"), tmp_path / "t")
    with pytest.raises(UrlError):
        pull("/a/folder", tmp_path / "t")
    with pytest.raises(ValueError, match="max_in_flight"):
        pull(pets, tmp_path / "t", max_in_flight=0)


def test_free_space_is_checked_before_the_pull(pets: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says how much is needed and how much is free."""
    monkeypatch.setattr("os.statvfs", lambda folder: SimpleNamespace(f_bavail=50, f_frsize=2))
    with pytest.raises(StorageError, match="508 bytes are needed and 100 are free"):
        small_pull(pets, tmp_path / "t")
    assert read_tree(tmp_path / "t") == {}


def test_a_disk_that_fills_up_is_an_error_and_the_pull_is_resumable(pets: str, jobs: Jobs, tmp_path: Path) -> None:
    """The error names the file."""
    write_tree(tmp_path / "s", {**TREE, "huge": bytes(40_000)})
    small_push(tmp_path / "s", pets)
    result = jobs.run("pull", pets, str(tmp_path / "t"), part_bytes=1000, fsize=20_000, max_in_flight=1)
    assert "StorageError" in result["error"]
    assert "File too large" in result["error"]
    assert "are free" in result["error"]
    assert sorted(read_tree(tmp_path / "t")).count("huge") == 0
    done = jobs.run("pull", pets, str(tmp_path / "t"), part_bytes=1000)
    assert done["num_bytes"] <= 21_000 + 508
    assert read_tree(tmp_path / "t") == {**TREE, "huge": bytes(40_000)}


def test_a_read_only_folder_must_be_complete(pets: str, jobs: Jobs, tmp_path: Path) -> None:
    """An incomplete one is an error."""
    target = tmp_path / "t"
    small_pull(pets, target)
    for above in (tmp_path, *tmp_path.parents):
        if above != Path("/tmp") and str(above).startswith("/tmp/"):
            above.chmod(0o755)
    target.chmod(0o555)
    for folder in ("cat", "dog"):
        (target / folder).chmod(0o555)
    try:
        done = jobs.run("pull", pets, str(target), nobody=True)
        assert done.get("num_unchanged") == 4, done
        (target / LOCK_NAME).unlink()
        (target / STATE_NAME).unlink()
        assert jobs.run("pull", pets, str(target), nobody=True)["num_unchanged"] == 4
        (tmp_path / "s" / "readme").write_bytes(b"new")
        small_push(tmp_path / "s", pets)
        result = jobs.run("pull", pets, str(target), nobody=True)
        assert "AccessDeniedError" in result["error"]
        assert "1 files are to be fetched" in result["error"]
    finally:
        target.chmod(0o755)


def answers_of_a_hostile_service(files: list[dict[str, Any]], request: Request) -> Response:
    if urlsplit(request.target).path.endswith("/files"):
        return Response(200, json.dumps({"files": files, "folders": [], "next": None}).encode())
    return Response.of_object(request, b"evil" if "evil" in unquote(request.target) else b"good")


@pytest.mark.parametrize(
    "path",
    [
        "../evil",
        "a/../../evil",
        "/etc/evil",
        "a//evil",
        "./evil",
        "evil/",
        "",
        ".",
        "..",
        "a\0evil",
        "a\\..\\evil",
        "a\nevil",
        "x" * 256,
        "/".join(["evil"] * 300),
        STATE_NAME,
        f"a/{LOCK_NAME}",
        f"a/{partial_name('x', '0')}",
        "\ud800",
        "good/evil",
    ],
)
def test_a_hostile_listing_is_refused(path: str, tmp_path: Path) -> None:
    """No path leads out of the folder or to a reserved name; nothing is written."""
    evil, good = (hashlib.sha256(data).hexdigest() for data in (b"evil", b"good"))
    files = [
        {"path": "good", "size": 4, "etag": '"1"', "modified": None, "sha256": good},
        {"path": path, "size": 4, "etag": '"1"', "modified": None, "sha256": evil},
    ]
    with scripted(lambda request: answers_of_a_hostile_service(files, request)) as server:
        url = f"datasets://{urlsplit(server.url).netloc}/pets"
        with pytest.raises(StorageError):
            small_pull(url, tmp_path / "deep" / "t")
    assert [found.name for found in tmp_path.rglob("*") if found.is_file()] == [LOCK_NAME]


@pytest.mark.parametrize("sha256", ["", "00", "Z" * 64, "../../" + "a" * 58])
def test_an_invalid_digest_in_a_listing_is_refused(sha256: str, tmp_path: Path) -> None:
    files = [{"path": "good", "size": 4, "etag": '"1"', "modified": None, "sha256": sha256}]
    with (
        scripted(lambda request: answers_of_a_hostile_service(files, request)) as server,
        pytest.raises(StorageError, match="SHA-256"),
    ):
        small_pull(f"datasets://{urlsplit(server.url).netloc}/pets", tmp_path / "t")


def test_an_endless_listing_is_an_error(tmp_path: Path) -> None:
    page = {"files": [], "folders": [], "next": "a"}
    with (
        scripted(lambda request: Response(200, json.dumps(page).encode())) as server,
        pytest.raises(StorageError, match="does not end"),
    ):
        small_pull(f"datasets://{urlsplit(server.url).netloc}/pets", tmp_path / "t")


def test_partial_files_of_another_version_are_not_used(pets: str, tmp_path: Path) -> None:
    """The digest detects wrong parts, which are fetched again; obsolete partial files are removed."""
    sha256 = hashlib.sha256(LARGE).hexdigest()
    name = partial_name("dog/1", sha256)
    ranges = name.replace(".torchdata", ".ranges.torchdata")
    stale = f"dog/{partial_name('dog/1', '0' * 64)}"
    write_tree(
        tmp_path / "t",
        {f"dog/{name}": bytes(len(LARGE)), f"dog/{ranges}": b"0 %d\n" % PART_BYTES, stale: b"old"},
    )
    small_pull(pets, tmp_path / "t")
    assert read_tree(tmp_path / "t") == TREE


def test_bytes_that_a_killed_pull_did_not_record_are_fetched_again(pets: str, tmp_path: Path) -> None:
    """They are not taken for those of the file, nor is what was recorded fetched again."""
    sha256 = hashlib.sha256(LARGE).hexdigest()
    write_tree(
        tmp_path / "t",
        {
            f"dog/{partial_name('dog/1', sha256)}": LARGE[:PART_BYTES] + b"half a part",
            f"dog/{ranges_name('dog/1', sha256)}": b"0 %d\n" % PART_BYTES,
        },
    )
    done = small_pull(pets, tmp_path / "t")
    assert read_tree(tmp_path / "t") == TREE
    assert done.num_bytes == sum(map(len, TREE.values())) - PART_BYTES
