"""Archives that become files, and files that become an archive."""

from __future__ import annotations

import gzip
import io
import os
import signal
import stat
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("starlette", reason="the service's libraries are not installed")

from starlette.testclient import TestClient

from tests.support.service_clients import (
    all_files,
    ask,
    below,
    client_of,
    digest_field,
    in_tar,
    new_dataset,
    poll_in_process,
    tar_bytes,
)
from tests.support.shard_places import compressed_by_zstd
from torchdata_remote.formats.tar import TarOptions, TarParser
from torchdata_remote.service.server.limits import ServiceLimits

FILES = {"cat/1.jpg": b"1" * 700, "cat/é.jpg": b"", "dog/" + "d" * 150 + ".jpg": b"2" * 5_000, "top.txt": b"top"}


def zip_bytes(files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    with io.BytesIO() as buffer:
        with zipfile.ZipFile(buffer, "w", method) as archive:
            for name, data in files.items():
                archive.writestr(name, data)
        return buffer.getvalue()


FORMS: dict[str, Callable[[dict[str, bytes]], bytes]] = {
    "tar": tar_bytes,
    "tar.gz": lambda files: tar_bytes(files, "w:gz"),
    "tar.zst": lambda files: compressed_by_zstd(tar_bytes(files)),
    "zip": zip_bytes,
    "zip, stored": lambda files: zip_bytes(files, zipfile.ZIP_STORED),
}


def unpack(client: TestClient, dataset: str, data: bytes) -> tuple[int, dict[str, object]]:
    answer = client.put(f"/datasets/{dataset}?unpack=1", content=data)
    return answer.status_code, answer.json()


@pytest.mark.parametrize("form", FORMS)
def test_each_archive_format_is_unpacked(shared: TestClient, dataset: str, form: str) -> None:
    """Beside existing files; a second time changes nothing."""
    shared.put(f"/datasets/{dataset}/files/before", content=b"0")
    for _ in range(2):
        status, response = unpack(shared, dataset, FORMS[form](FILES))
        assert status == 200, response
        assert (response["num_files"], response["num_bytes"]) == (len(FILES), sum(map(len, FILES.values())))
        assert in_tar(shared.get(f"/datasets/{dataset}").content) == {"before": b"0", **FILES}


@pytest.mark.parametrize("form", FORMS)
def test_an_empty_archive_is_accepted(shared: TestClient, dataset: str, form: str) -> None:
    """It adds no files."""
    assert unpack(shared, dataset, FORMS[form]({})) == (
        200,
        {"name": dataset, "num_files": 0, "num_bytes": 0, "num_skipped": 0},
    )


@pytest.mark.parametrize(
    "data", [b"", b"a,b\n1,2\n", b"\0" * 100, b"\x89PNG\r\n", gzip.compress(b"no tar", mtime=0), b"PK"]
)
def test_other_formats_are_refused(shared: TestClient, dataset: str, data: bytes) -> None:
    """400, and nothing is written."""
    status, response = unpack(shared, dataset, data)
    assert status == 400, response
    assert all_files(shared, dataset) == []


@settings(max_examples=60)
@given(form=st.sampled_from(sorted(FORMS)), data=st.data())
def test_a_truncated_archive_is_refused(
    local: TestClient, dataset: str, tmp_path: Path, form: str, data: st.DataObject
) -> None:
    """400 and nothing is written, wherever it ends, unless only padding is missing."""
    whole = FORMS[form](FILES)
    end = data.draw(st.integers(0, len(whole) - 1))
    status, _ = unpack(local, dataset, whole[:end])
    if status == 200:
        assert form == "tar"
        assert not whole[end:].strip(b"\0")
        for path in FILES:
            local.delete(f"/datasets/{dataset}/files/{path}")
    assert status in (200, 400)
    assert below(tmp_path) == set()


@settings(max_examples=80)
@given(form=st.sampled_from(sorted(FORMS)), data=st.data())
def test_a_damaged_archive_is_refused_or_complete(
    local: TestClient, dataset: str, tmp_path: Path, form: str, data: st.DataObject
) -> None:
    """400 and nothing is written, or 200 and as many files as the response says."""
    whole = bytearray(FORMS[form](FILES))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    status, response = unpack(local, dataset, bytes(whole))
    assert status in (200, 400, 413), response
    found = all_files(local, dataset)
    assert len(found) == (response["num_files"] if status == 200 else 0)
    for path in found:
        assert local.delete(f"/datasets/{dataset}/files/{path}").status_code in (204, 400, 404)
    for path in below(tmp_path):
        (tmp_path / path).unlink()


@pytest.mark.parametrize(
    "name",
    [
        "../up",
        "/etc/passwd",
        "a/../../up",
        "a//b",
        "a/./b",
        "a\\..\\b",
        "a\nb",
        "x" * 256,
        "C:\\x",
        "a/..",
        "x.torchdata_remote-partial",
        "x.torchdata_remote-partial/y",
        "/".join("x" * 600),
    ],
)
@pytest.mark.parametrize("form", ["tar", "zip"])
def test_hostile_names_in_an_archive_are_refused(
    local: TestClient, dataset: str, tmp_path: Path, form: str, name: str
) -> None:
    """400, and nothing is written, not even valid files before them."""
    if form == "zip" and "\\" in name:
        pytest.skip("zipfile cannot write it")
    status, response = unpack(local, dataset, FORMS[form]({"good": b"1", name: b"2"}))
    assert status == 400, response
    assert below(tmp_path) == set()


@pytest.mark.parametrize(
    "files",
    [
        [("a", b"1"), ("a", b"2")],
        [("a", b"1"), ("./a", b"2")],
        [("a", b"1"), ("a/b", b"2")],
        [("a/b/c", b"1"), ("a", b"2")],
    ],
)
def test_conflicting_names_in_an_archive_are_refused(
    local: TestClient, dataset: str, tmp_path: Path, files: list[tuple[str, bytes]]
) -> None:
    """400 for a name twice, or a file below another one; nothing is written."""
    status, response = unpack(local, dataset, tar_bytes(files))
    assert status == 400, response
    assert below(tmp_path) == set()


def test_an_archive_that_conflicts_with_the_dataset_is_refused(local: TestClient, dataset: str) -> None:
    """409 before anything is written, if the dataset has a file for a folder, or a folder for a file."""
    for existing, added in [("a", "a/b"), ("c/d", "c")]:
        local.put(f"/datasets/{dataset}/files/{existing}", content=b"1")
        status, response = unpack(local, dataset, tar_bytes({"0first": b"1", added: b"2"}))
        assert status == 409, response
        assert "0first" not in all_files(local, dataset)
    assert all_files(local, dataset) == ["a", "c/d"]


def test_links_in_an_archive_are_not_created(local: TestClient, dataset: str, tmp_path: Path) -> None:
    """And nothing is written through one."""
    with io.BytesIO() as buffer:
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for name, kind, target in [
                ("link", tarfile.SYMTYPE, str(tmp_path)),
                ("hard", tarfile.LNKTYPE, "good"),
                ("folder", tarfile.DIRTYPE, ""),
            ]:
                member = tarfile.TarInfo(name)
                member.type, member.linkname = kind, target
                archive.addfile(member)
            for name in ("link/evil", "good"):
                member = tarfile.TarInfo(name)
                member.size = 1
                archive.addfile(member, io.BytesIO(b"1"))
        status, response = unpack(local, dataset, buffer.getvalue())
    assert status == 200, response
    assert (response["num_files"], response["num_skipped"]) == (2, 2)
    assert all_files(local, dataset) == ["good", "link/evil"]
    assert not (tmp_path / "evil").exists()
    assert not any(path.is_symlink() for path in tmp_path.rglob("*"))


def test_permissions_in_an_archive_are_ignored(local: TestClient, dataset: str, tmp_path: Path) -> None:
    """No file becomes executable or set-uid."""
    with io.BytesIO() as buffer:
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            member = tarfile.TarInfo("a")
            member.mode, member.uid = 0o6777, 12345
            archive.addfile(member, io.BytesIO(b""))
        assert unpack(local, dataset, buffer.getvalue())[0] == 200
    status = (tmp_path / "root" / dataset / "a").stat()
    assert stat.S_IMODE(status.st_mode) & 0o7111 == 0
    assert status.st_uid == os.getuid()


@pytest.mark.parametrize("form", FORMS)
def test_limits_of_files_and_bytes_in_an_archive(tmp_path: Path, form: str) -> None:
    """413 or 400, however small the archive is; nothing is written."""
    limits = ServiceLimits(min_free_bytes=0, max_unpacked_files=3, max_file_bytes=20_000)
    many = {f"{number}": b"" for number in range(4)}
    large = {f"{number}": b"\0" * 9_000 for number in range(3)}
    with client_of(tmp_path, limits=limits) as client:
        client.post("/datasets", json={"name": "d"})
        for files in (many, large):
            assert unpack(client, "d", FORMS[form](files))[0] in (400, 413)
            assert below(tmp_path) == set()


@pytest.mark.parametrize("form", ["tar.gz", "tar.zst", "zip"])
def test_a_decompression_bomb_is_refused(tmp_path: Path, form: str) -> None:
    """Before a byte of it is written."""
    with client_of(tmp_path, limits=ServiceLimits(min_free_bytes=0, max_file_bytes=2_000_000)) as client:
        client.post("/datasets", json={"name": "d"})
        status, response = unpack(client, "d", FORMS[form]({"zeros": b"\0" * 50_000_000}))
        assert status in (400, 413), response
        assert below(tmp_path) == set()


def test_a_dataset_is_downloaded_as_a_valid_tar(client: TestClient, dataset: str) -> None:
    """Its files, sorted, byte for byte, to tarfile and to this package."""
    for path, data in FILES.items():
        assert client.put(f"/datasets/{dataset}/files/{path}", content=data).status_code == 200
    tar = client.get(f"/datasets/{dataset}").content
    assert in_tar(tar) == FILES
    assert list(in_tar(tar)) == sorted(FILES)
    walk = TarParser([tar], "it", TarOptions(num_bytes=len(tar)))
    ours = {}
    while (member := walk.next_member()) is not None:
        ours[member[0]] = walk.take(member[1], "it")
    assert ours == FILES
    assert len(tar) % 512 == 0
    assert tar.endswith(b"\0" * 1024)


def test_a_downloaded_tar_can_be_uploaded(client: TestClient, dataset: str) -> None:
    """The second dataset is equal."""
    assert unpack(client, dataset, tar_bytes(FILES))[0] == 200
    tar = client.get(f"/datasets/{dataset}").content
    client.post("/datasets", json={"name": "again"})
    assert unpack(client, "again", tar)[0] == 200
    assert client.get("/datasets/again").content == tar


KILLER = """
import os, signal, sys
from torchdata_remote import cli
from torchdata_remote.service.server.routes import dataset_routes
def kill(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)
when = sys.argv.pop(1)
if when == "before":
    dataset_routes.commit = kill
elif when == "between":
    dataset_routes.unpack = kill
else:
    begin, count = dataset_routes.write_file, [0]
    def write(*arguments):
        count[0] += 1
        kill() if count[0] > 5 else begin(*arguments)
    dataset_routes.write_file = write
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.parametrize("when", ["before", "between", "after some"])
def test_a_service_killed_during_unpacking_finishes_or_drops_the_archive(tmp_path: Path, when: str) -> None:
    """After the restart all files exist; or none, if it had not started to write them."""
    command = [sys.executable, "-c", KILLER, when, "serve", "--root", str(tmp_path), "--port", "0"]
    files = {f"{number}/x": bytes([number]) * 1_000 for number in range(20)}
    with subprocess.Popen([*command, "--min-free-bytes", "0"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().removeprefix("http://").partition("/")[0]
        name = new_dataset(address)
        with pytest.raises(OSError, match=r"closed|reset"):
            ask(address, "PUT", f"/datasets/{name}?unpack=1", tar_bytes(files))
        assert process.wait(60) == -signal.SIGKILL
    with client_of(tmp_path) as client:
        expected = {} if when == "before" else files
        poll_in_process(client, lambda: below(tmp_path) == {f"{name}/{path}" for path in expected})
        assert in_tar(client.get(f"/datasets/{name}").content) == expected


def test_concurrent_archives_do_not_mix_files(served: str, served_root: Path) -> None:
    """Each file is one of theirs, whole, with its digest."""
    name = new_dataset(served)
    versions = [{f"{number}": bytes([65 + one]) * (1000 + one) for number in range(50)} for one in range(2)]
    answers: list[int] = []

    def send(files: dict[str, bytes]) -> None:
        answers.append(ask(served, "PUT", f"/datasets/{name}?unpack=1", tar_bytes(files))[0])

    threads = [threading.Thread(target=send, args=(files,)) for files in versions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [200, 200]
    for path in below(served_root / name):
        data = (served_root / name / path).read_bytes()
        assert data in (versions[0][path], versions[1][path])
        _, _, headers = ask(served, "HEAD", f"/datasets/{name}/files/{path}", headers={"Want-Repr-Digest": "sha-256=1"})
        assert headers["repr-digest"] == digest_field(data)
