"""Whole or not at all: what writers leave behind in every store, however they end."""

from __future__ import annotations

import io
import multiprocessing
import random
import re
import tarfile
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any
from urllib.parse import parse_qs, unquote

import pytest

import torchdata_remote as tdr
from tests.servers.between import LOST, between, changes
from tests.servers.scripted import Request, Response
from tests.stores.folder import Folder, new_folder
from tests.stores.rows import each
from tests.support import objects
from torchdata_remote.errors import AccessDeniedError, ObjectExistsError, RemoteDataError, StorageError

PART_BYTES = 16 << 20  # in one request; larger objects are written in parts
LARGE = random.Random(3).randbytes(PART_BYTES + 1_000_000)
OF_A_SHARD = ["0.tar", "0.tar.idx", "0.tar.keys"]


def members_of(data: bytes) -> dict[str, bytes]:
    """As ``tarfile`` reads them; a tar that is cut is an error."""
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        found = {one.name: archive.extractfile(one).read() for one in archive}  # type: ignore[union-attr]
    assert data.endswith(bytes(1024))
    return found


def visible(folder: Folder) -> list[str]:
    """What another client takes for shards; hidden names belong to the package."""
    return [name for name in folder.names() if not name.rpartition("/")[2].startswith((".", "_"))]


@each("writes", transports=True)
def test_a_shard_of_any_size_appears_at_once_with_all_its_bytes(folder: Folder) -> None:
    """One request or several; nothing else is left."""
    writer = folder.writer(max_shard_samples=1)
    writer.write({"__key__": "small", "bin": b"12345"})
    writer.write({"__key__": "large", "bin": LARGE})
    assert set(visible(folder)) <= set(OF_A_SHARD)
    assert len(writer.close()) == 2
    writer.abort()  # harmless after the end
    assert folder.names() == sorted([*OF_A_SHARD, *(f"1{name[1:]}" for name in OF_A_SHARD), "index.json"])
    assert [members_of(folder.get(name)) for name in folder.shards()] == [
        {"small.bin": b"12345"},
        {"large.bin": LARGE},
    ]
    assert folder.unfinished() == []
    samples = list(tdr.stream_shards(folder.url + "index.json", seed=None, storage_options=folder.options))
    assert [sample["bin"] for sample in samples] == [b"12345", LARGE]


@each("writes", lines=True, transports=True)
@pytest.mark.parametrize("ends", ["abort", "exception"])
def test_a_writer_that_gives_up_leaves_no_part_of_its_open_shard(folder: Folder, ends: str) -> None:
    def write_some() -> None:
        with folder.writer(max_shard_samples=1) as writer:
            writer.write({"__key__": "small", "bin": b"12345"})
            writer.write({"__key__": "second", "bin": b"12345"})
            writer.write({"__key__": "third", "bin": LARGE})
            if ends == "exception":
                raise ZeroDivisionError
            writer.abort()
            writer.abort()
            writer.write({"__key__": "late", "bin": b""})

    with pytest.raises(ZeroDivisionError if ends == "exception" else RemoteDataError):
        write_some()
    names = folder.names()
    assert "2.tar" not in names
    assert "index.json" not in names
    assert all(name.startswith(("0.tar", "1.tar")) for name in names), "claims and hidden names are removed"
    assert members_of(folder.get("0.tar")) == {"small.bin": b"12345"}
    if "1.tar" in names:
        assert members_of(folder.get("1.tar")) == {"second.bin": b"12345"}
    assert folder.unfinished() == [] or not folder.row.aborts


@each("writes", transports=True)
def test_what_exists_is_kept_unless_it_is_to_be_overwritten(folder: Folder) -> None:
    """Also what appears while a shard is written; then nothing of the own one is left."""
    folder.put("t/0.tar", b"of another")
    with pytest.raises(ObjectExistsError, match=r"/t/.*0\.tar") as caught:
        objects.write(folder.url + "t/", folder.options)
    assert isinstance(caught.value, FileExistsError)
    names = ["t/0.tar"]
    for name, num_bytes in {"small": 10, "large": PART_BYTES}.items():
        if folder.row.name == "ftp" or (name == "large" and folder.row.backend is not tdr.Backend.AUTOMATIC):
            continue  # ftp has no conditions: of two writers at once the last one stays
        names.append(f"{name}/0.tar")
        writer = folder.writer(f"{name}/{{shard}}.tar")
        writer.write({"__key__": "a", "bin": bytes(num_bytes)})
        folder.put(f"{name}/0.tar", b"of another")
        with pytest.raises(ObjectExistsError, match=r"0\.tar"):
            writer.close()
    assert {name: folder.get(name) for name in folder.names()} == dict.fromkeys(names, b"of another")
    assert folder.unfinished() == [] or not folder.row.aborts
    with folder.writer("t/{shard}.tar", max_shard_samples=1, overwrite=True) as writer:
        for key in "ab":
            writer.write({"__key__": key, "bin": b"1"})
    assert members_of(folder.get("t/1.tar")) == {"b.bin": b"1"}
    objects.write(folder.url + "t/", folder.options, overwrite=True)
    assert [name for name in folder.names() if name.startswith("t/")] == [
        *(f"t/{name}" for name in OF_A_SHARD),
        "t/index.json",
    ], "the second shard of before is deleted"


@each("writes", "one_winner", transports=True)
def test_one_of_several_writers_at_once_creates_an_object(folder: Folder) -> None:
    """The others get an error, and the object is that of the first."""
    objects.write(folder.url, folder.options)
    url, start, outcomes = folder.url + "a.snapshot.json", threading.Barrier(4), dict[int, str]()

    def create(number: int) -> None:
        start.wait(60)
        try:
            tdr.write_snapshot(url, [folder.url + "0.tar"] * number, storage_options=folder.options)
            outcomes[number] = "created"
        except ObjectExistsError:
            outcomes[number] = "refused"

    threads = [threading.Thread(target=create, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes.values()) == ["created", "refused", "refused", "refused"]
    [winner] = [number for number, outcome in outcomes.items() if outcome == "created"]
    assert folder.get("a.snapshot.json").count(b'0.tar"') == winner


def write_and_wait(folder: Folder, reports: Connection) -> None:
    """Finish one shard, and keep the second one open after a part of it was uploaded."""
    writer = folder.writer(max_shard_samples=1)
    writer.write({"__key__": "0", "bin": b"1"})
    writer.write({"__key__": "1", "bin": b"1"})
    writer.write({"__key__": "2", "bin": bytes(PART_BYTES) + b"1"})
    reports.send("written")
    reports.recv()


@each("writes", "processes", lines=True, transports=True)
def test_a_killed_writer_leaves_no_part_of_a_shard_and_the_next_one_cleans_up(folder: Folder) -> None:
    """By SIGKILL. Claim and invisible parts are removed by the next writer, or by the server; those of others stay."""
    of_others = [f"{folder.name}{name}" for name in ("other.tar", "sub/1.tar") if folder.row.name == "moto"]
    for key in of_others:
        client = folder.server.server.client()  # type: ignore[attr-defined]
        client.create_multipart_upload(Bucket=folder.place.removeprefix("s3://"), Key=key)
    context = multiprocessing.get_context("forkserver")
    here, there = context.Pipe()
    child = context.Process(target=write_and_wait, args=(folder, there))
    child.start()
    there.close()
    assert here.poll(120), "the writer wrote nothing"
    assert here.recv() == "written"
    child.kill()
    child.join()
    for name in set(folder.shards()):
        assert members_of(folder.get(name)) == {f"{name[0]}.bin": b"1"}
    assert not {"2.tar", "index.json"} & set(folder.names())
    objects.write(folder.url, folder.options, overwrite=True)
    if folder.row.cleans != "later":
        assert folder.unfinished() == of_others
        assert folder.names() == [*OF_A_SHARD, "index.json"]
    assert set(folder.shards()) == {"0.tar"}


PAGE = Response(200, b"<html>busy</html>", {"Content-Type": "text/html"})
BUSY, DENIED = Response.of_error(503, "SlowDown"), Response.of_error(403, "AccessDenied")
# Those that create objects on conditions, and have different ways to recognise their own
each_client = each("writes", "one_winner", "proxied", lines=True, transports=True)


def from_number(fault: Any, numbers: range) -> Callable[[Request, int], Any]:
    """Decide for requests with these numbers."""
    return lambda seen, number: fault if number in numbers else None


def written_through(folder: Folder, decide: Callable[[Request, int], Any], **more: Any) -> tuple[Folder, list[Request]]:
    """Write a shard into a new folder through a proxy that decides by a request and its number among the changes."""
    folder, sent, lock = new_folder(folder.row, folder.server, folder.place), list[Request](), threading.Lock()

    def of_request(seen: Request) -> Response | None:
        with lock:
            sent.extend([seen] * changes(seen))
            number = len(sent) - 1
        found: Response | None = decide(seen, number) if changes(seen) else None
        return found

    with between(folder.server.endpoint_url, of_request) as url:
        broken = folder.through(url)
        try:
            objects.write(broken.url, broken.options, **more)
        except BaseException as error:
            error.folder = folder  # type: ignore[attr-defined]
            raise
    return folder, sent


@each_client
@pytest.mark.parametrize("fault", [LOST, PAGE, BUSY], ids=["lost", "page of a proxy", "busy"])
def test_a_response_that_is_lost_or_wrong_does_not_make_the_own_object_an_error(folder: Folder, fault: Any) -> None:
    """Whichever request it answers: the writer recognises what it has written, and repeats what it has not."""
    clean, sent = written_through(folder, lambda seen, number: None)
    expected = {name: clean.get(name) for name in OF_A_SHARD}
    for at, change in enumerate(sent):
        if fault is PAGE and (change.method == "DELETE" or folder.row.name == "datasets"):
            continue  # its service answers by JSON, and a page is an error at once
        made, _ = written_through(folder, from_number(fault, range(at, at + 1)))
        assert {name: made.get(name) for name in OF_A_SHARD} == expected, change
        assert made.names() == [*OF_A_SHARD, "index.json"], change


@each_client
def test_a_response_to_a_large_object_that_is_lost_or_wrong_is_made_up_for(folder: Folder) -> None:
    """To the beginning, a part and the end of an upload."""
    _, sent = written_through(folder, lambda seen, number: None, num_bytes=PART_BYTES)
    of_shard = [seen for seen in sent if len(seen.body) > 1 << 20 or "0.tar" in unquote(seen.target)]
    of_shard = [
        seen
        for seen in of_shard
        if not {".tar.idx", ".tar.keys"} & set(re.findall(r"\.tar\.\w+", unquote(seen.target)))
    ]
    ends = [seen for seen in of_shard if len(seen.body) <= 1 << 20] or of_shard  # a dataset service gets it by one
    part = next(seen for seen in of_shard if len(seen.body) > 1 << 20)

    def key(seen: Request) -> tuple[Any, ...]:
        """What is the same in another folder."""
        query = sorted(parse_qs(seen.target.partition("?")[2], keep_blank_values=True))
        return seen.method, len(seen.body) > 1 << 20, query, "copy" in str(seen.headers)

    for fault, wanted in [(LOST, key(ends[-1])), (LOST, key(ends[0])), (PAGE, key(part))]:
        if fault is PAGE and folder.row.name in ("datasets", "gcs", "azurite"):
            continue  # for a part of obstore's stream, such a page is an error at once
        done = list[Request]()

        def decide(seen: Request, number: int, wanted: Any = wanted, fault: Any = fault, done: Any = done) -> Any:
            is_it = key(seen) == wanted and ("0.tar" in unquote(seen.target) or len(seen.body) > 1 << 20)
            if is_it and not done:
                done.append(seen)
                return fault
            return None

        made, _ = written_through(folder, decide, num_bytes=PART_BYTES)
        assert done
        assert members_of(made.get("0.tar")) == {"a.bin": bytes(PART_BYTES)}
        assert made.names() == [*OF_A_SHARD, "index.json"]
        assert made.unfinished() == [] or wanted == key(ends[0]), "an upload whose name was lost is the server's"


@each_client
def test_a_refused_request_is_an_error_after_which_no_object_is_torn(folder: Folder) -> None:
    """Whichever is refused; the next writer completes the folder."""
    clean, sent = written_through(folder, lambda seen, number: None)
    for at, change in enumerate(sent):
        if change.method == "DELETE" or "comp=batch" in change.target:
            continue
        with pytest.raises(AccessDeniedError) as caught:
            written_through(folder, from_number(DENIED, range(at, 1000)))
        left: Folder = caught.value.folder  # type: ignore[attr-defined]
        names = left.names()
        assert all(left.get(name) == clean.get(name) for name in names if name in OF_A_SHARD), change
        assert "index.json" not in names, "it is written last"
        objects.write(left.url, left.options, overwrite=True)
        assert left.names() == [*OF_A_SHARD, "index.json"]


@each_client
def test_the_page_of_a_proxy_is_never_taken_for_success(folder: Folder) -> None:
    """The object would be lost without an error."""
    with pytest.raises(StorageError, match=r"Gave up after 8 attempts|is no JSON") as caught:
        written_through(folder, lambda seen, number: PAGE)
    assert visible(caught.value.folder) == []  # type: ignore[attr-defined]


@each_client
def test_the_object_of_another_writer_is_not_taken_for_the_own_one_after_a_lost_response(folder: Folder) -> None:
    """Even if it has as many bytes."""
    target = list[str]()

    def decide(seen: Request, number: int) -> Any:
        if (len(seen.body) <= 10_000 and "0.tar" not in seen.target) or target:
            return None
        target.append(seen.target)
        here.put("0.tar", bytes(40_960))
        return BUSY

    here = new_folder(folder.row, folder.server, folder.place)
    with between(folder.server.endpoint_url, lambda seen: decide(seen, 0) if changes(seen) else None) as url:
        broken = here.through(url)
        with pytest.raises(ObjectExistsError):
            objects.write(broken.url, broken.options, num_bytes=38_000)
    assert target
    assert here.get("0.tar") == bytes(40_960)
