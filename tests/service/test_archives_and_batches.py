"""Archives that the service unpacks, and batches of small files in one tar, by HTTP."""

from __future__ import annotations

import gzip
import io
import json
import os
import stat
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("starlette", reason="the service is not installed: pip install torchdata_remote[service]")

from tests.support.service_clients import (
    JSON,
    Answer,
    Dataset,
    below,
    digest_field,
    in_tar,
    sha256,
    tar_bytes,
)
from tests.support.shard_places import compressed_by_zstd
from tests.support.waiting import wait_for

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


def test_an_archive_is_unpacked_beside_other_files(anywhere: Dataset) -> None:
    nothing = {"name": anywhere.name, "num_files": 0, "num_bytes": 0, "num_skipped": 0}
    assert anywhere.unpack(tar_bytes({})).json() == nothing
    anywhere.fill({"before": b"0", "top.txt": b"old"})
    for _ in range(2):
        answer = anywhere.unpack(tar_bytes(FILES))
        assert (answer.status, answer.json()) == (200, {**nothing, "num_files": 4, "num_bytes": 5703})
        assert in_tar(anywhere.ask("GET").body) == {"before": b"0", **FILES}


@pytest.mark.parametrize("form", FORMS)
def test_each_format_is_unpacked_with_its_digest_compared(dataset: Dataset, form: str) -> None:
    for files in ({}, FILES):
        data = FORMS[form](files)
        for header in ("Repr-Digest", "Content-Digest"):
            wrong = dataset.ask("PUT", "?unpack=1", data, {header: digest_field(b"")})
            assert (wrong.status, bool(wrong.error)) == (400, True)
        assert dataset.paths() == []
        answer = dataset.ask("PUT", "?unpack=1", data, {"Repr-Digest": digest_field(data)})
        assert (answer.status, answer.json()["num_files"]) == (200, len(files))
    assert dataset.contents() == FILES


@pytest.mark.parametrize(
    "data", [b"", b"a,b\n1,2\n", b"\0" * 100, b"\x89PNG\r\n", gzip.compress(b"no tar", mtime=0), b"PK"]
)
def test_what_is_no_archive_is_refused(dataset: Dataset, data: bytes) -> None:
    answer = dataset.unpack(data)
    assert (answer.status, bool(answer.error), dataset.paths()) == (400, True, [])


@given(form=st.sampled_from(sorted(FORMS)), data=st.data())
def test_an_archive_that_ends_early_is_refused_as_a_whole(
    served: str, served_root: Path, form: str, data: st.DataObject
) -> None:
    dataset, whole = Dataset(served, root=served_root), FORMS[form](FILES)
    end = data.draw(st.integers(0, len(whole) - 1))
    is_padding = form == "tar" and not whole[end:].strip(b"\0")
    assert dataset.unpack(whole[:end]).status in ((200, 400) if is_padding else (400,))
    assert is_padding or below(dataset.folder) == set()


@given(form=st.sampled_from(sorted(FORMS)), data=st.data())
def test_a_damaged_archive_is_refused_as_a_whole_or_unpacked_as_reported(
    served: str, served_root: Path, form: str, data: st.DataObject
) -> None:
    dataset, whole = Dataset(served, root=served_root), bytearray(FORMS[form](FILES))
    whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    answer = dataset.unpack(bytes(whole))
    assert answer.status in (200, 400, 413)
    assert len(below(dataset.folder)) == (answer.json()["num_files"] if answer.status == 200 else 0)


WRONG_NAMES = [
    *("../up", "/etc/passwd", "a/../../up", "a//b", "a/./b", "a\\..\\b", "a\nb", "x" * 256, "C:\\x", "a/.."),
    *("x.torchdata_remote-partial", "x.torchdata_remote-partial/y", "/".join("x" * 600)),
]


@pytest.mark.parametrize("name", WRONG_NAMES)
def test_nothing_of_an_archive_with_a_hostile_name_is_written(dataset: Dataset, name: str) -> None:
    before = set(os.listdir(dataset.folder.parent))
    for form in ("tar", "zip"):
        if form == "tar" or "\\" not in name:  # zipfile cannot write it
            answer = dataset.unpack(FORMS[form]({"good": b"1", name: b"2"}))
            assert (answer.status, bool(answer.error)) == (400, True)
    assert below(dataset.folder) == set()
    assert set(os.listdir(dataset.folder.parent)) == before


@pytest.mark.parametrize(
    "files",
    [
        [("a", b"1"), ("a", b"2")],
        [("a", b"1"), ("./a", b"2")],
        [("a", b"1"), ("a/b", b"2")],
        [("a/b/c", b"1"), ("a", b"2")],
    ],
)
def test_an_archive_with_one_name_twice_is_refused(dataset: Dataset, files: list[tuple[str, bytes]]) -> None:
    assert (dataset.unpack(tar_bytes(files)).status, below(dataset.folder)) == (400, set())


def test_an_archive_that_conflicts_with_the_dataset_is_refused_as_a_whole(dataset: Dataset) -> None:
    dataset.fill({"a": b"1", "c/d": b"1"})
    for added in ("a/b", "c"):
        assert dataset.unpack(tar_bytes({"0first": b"1", added: b"2"})).status == 409
    assert dataset.contents() == {"a": b"1", "c/d": b"1"}


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", size: int = 0) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.size, made.mode, made.uid = kind, target, size, 0o6777, 12345
    return made


def special(*members: tarfile.TarInfo) -> bytes:
    with io.BytesIO() as buffer:
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            for one in members:
                archive.addfile(one, io.BytesIO(b"1" * one.size))
        return buffer.getvalue()


def test_links_devices_and_permissions_of_an_archive_are_left_out(dataset: Dataset, tmp_path: Path) -> None:
    archive = special(
        *(member("link", tarfile.SYMTYPE, str(tmp_path)), member("hard", tarfile.LNKTYPE, "good")),
        *(member("folder", tarfile.DIRTYPE), member("null", tarfile.CHRTYPE), member("link/evil", size=1)),
        member("good", size=1),
    )
    answer = dataset.unpack(archive)
    assert (answer.json()["num_files"], answer.json()["num_skipped"]) == (2, 3)
    assert dataset.contents() == {"good": b"1", "link/evil": b"1"}
    assert not os.listdir(tmp_path)
    status = (dataset.folder / "good").stat()
    assert (stat.S_IMODE(status.st_mode) & 0o7111, status.st_uid) == (0, os.getuid())


@pytest.mark.parametrize("form", FORMS)
def test_an_archive_larger_than_a_file_may_be_is_refused_as_a_whole(small: Dataset, form: str) -> None:
    before = small.paths()
    zeros = bytes(30_000 if "stored" in form else 20_000_000)
    for large in (dict.fromkeys(("1", "2", "3"), bytes(9_000)), {"zeros": zeros}):
        answer = small.unpack(FORMS[form](large))
        assert (answer.status in (400, 413), bool(answer.error)) == (True, True)
        assert small.paths() == before
    assert small.unpack(FORMS[form]({"a": bytes(3_000), f"b-{len(form)}": bytes(4_000)})).status == 200


def test_a_tar_may_say_the_digest_of_a_file_which_is_compared(anywhere: Dataset) -> None:
    digests = {path: sha256(data) for path, data in FILES.items()}
    assert anywhere.unpack(tar_bytes(FILES, digests=digests)).json()["num_files"] == len(FILES)
    assert anywhere.contents() == FILES
    for wrong in (sha256(b"other"), "no digest"):
        answer = anywhere.unpack(
            tar_bytes({"new": b"1", "top.txt": b"2"}, digests={"new": sha256(b"1"), "top.txt": wrong})
        )
        assert (answer.status, "SHA-256" in answer.error) == (400, True)
    assert anywhere.contents() == FILES


# Batches that are read


def get_batch(dataset: Dataset, paths: list[str]) -> Answer:
    return dataset.ask("POST", "/files", json.dumps({"paths": paths}).encode(), JSON)


def test_a_batch_has_the_files_of_a_list_that_exist(anywhere: Dataset) -> None:
    anywhere.fill(FILES)
    found = get_batch(anywhere, [*reversed(FILES), "absent"])
    assert (found.status, found.headers["content-type"]) == (200, "application/x-tar")
    assert list(in_tar(found.body).items()) == [*reversed(FILES.items())]


def test_a_batch_has_at_most_1000_files(dataset: Dataset) -> None:
    longest = "/".join(["é" * 127] * 4)
    assert get_batch(dataset, [longest] * 1000).status == 200
    assert get_batch(dataset, [longest] * 1001).status == 413
    assert get_batch(dataset, ["../evil"]).status == 400


@pytest.mark.parametrize(
    "body", ["[]", "{}", '{"paths": "a"}', '{"paths": [1]}', '{"paths": [], "more": 1}', "[" * 10_000]
)
def test_another_document_asks_for_no_batch(dataset: Dataset, body: str) -> None:
    assert dataset.ask("POST", "/files", body.encode(), JSON).status == 400
    assert dataset.ask("POST", "/files", body.encode()).status == 415


def test_a_tar_that_is_broken_off_between_two_files_is_none_for_tar(dataset: Dataset, tmp_path: Path) -> None:
    for number in range(4):
        assert dataset.put(f"f{number}", bytes(20 << 20)).status == 200
    url = f"http://{dataset.address}/datasets/{dataset.name}"
    curl = subprocess.Popen(["curl", "-s", "--limit-rate", "40M", url], stdout=subprocess.PIPE)
    with (
        curl,
        subprocess.Popen(["tar", "xf", "-", "-C", tmp_path], stdin=curl.stdout, stderr=subprocess.DEVNULL) as tar,
    ):
        wait_for((tmp_path / "f0").exists)
        assert dataset.put("f3", b"new").status == 200
        assert (tar.wait(), curl.wait()) == (2, 18)
    assert not (tmp_path / "f3").exists()
