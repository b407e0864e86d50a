"""Files of the dataset service, by HTTP: storing, reading, ranges, conditions, digests, names and listings."""

from __future__ import annotations

import email
import email.utils
import itertools
import os
import shutil
import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("starlette", reason="the service is not installed: pip install torchdata_remote[service]")

from tests.support.service_clients import Answer, Dataset, ask, begin, below, digest_field, rest, sha256

DATA = bytes(range(256)) * 3


def test_a_file_is_stored_sent_and_removed(anywhere: Dataset) -> None:
    path = "cat/my file.csv"
    put = anywhere.put(path, DATA)
    assert put.status == 200
    metadata = put.json()
    assert set(metadata) == {"path", "size", "etag", "modified", "sha256", "location"}
    assert (metadata["path"], metadata["size"], metadata["sha256"]) == (path, len(DATA), sha256(DATA))
    assert metadata["location"] == f"/datasets/{anywhere.name}/files/cat/my%20file.csv"
    assert put.headers["repr-digest"] == digest_field(DATA)
    got, head = anywhere.get(path), anywhere.head(path)
    assert (got.status, got.body) == (200, DATA)
    assert (head.status, head.body) == (200, b"")
    for name in ("etag", "accept-ranges", "content-length", "content-type", "content-disposition", "last-modified"):
        assert got.headers[name] == head.headers[name] is not None, name
    assert got.headers["etag"] == put.headers["etag"] == metadata["etag"]
    assert (got.headers["accept-ranges"], got.headers["content-length"]) == ("bytes", "768")
    assert got.headers["content-type"] == "application/octet-stream"
    assert got.headers["content-disposition"] == 'attachment; filename="my file.csv"'
    assert got.headers["x-content-type-options"] == "nosniff"
    modified = email.utils.parsedate_to_datetime(got.headers["last-modified"]).timestamp()
    assert abs(modified - time.time()) < 3600
    assert anywhere.page()["files"] == [{name: metadata[name] for name in ("path", "size", "etag", "modified")}]
    assert anywhere.delete(path).status == 204
    assert [anywhere.get(path).status, anywhere.head(path).status, anywhere.delete(path).status] == [404] * 3
    assert anywhere.get(path).error == anywhere.delete(path).error == f"There is no file {path!r} in the dataset."
    assert anywhere.page() == {"files": [], "folders": [], "next": None}


def test_a_file_that_is_replaced_has_another_etag(anywhere: Dataset) -> None:
    etags = [anywhere.put("a", data).headers["etag"] for data in (b"1", b"", b"1")]
    assert len(set(etags)) == 3 or anywhere.root is None
    assert anywhere.get("a").headers["etag"] == etags[-1]
    anywhere.put("a", b"")
    assert (anywhere.get("a").status, anywhere.get("a").body) == (200, b"")


def test_any_range_is_a_slice(anywhere: Dataset) -> None:
    size = 1000 if anywhere.root is None else 3_000_000
    data = (DATA * (size // len(DATA) + 1))[:size]
    anywhere.put("a", data)
    ends = (0, 1, size // 2, size - 2, size - 1, size, 2 * size)
    for first, last in [(first, last) for first in ends for last in (*ends, None) if last is None or last >= first]:
        got = anywhere.get("a", {"Range": f"bytes={first}-{'' if last is None else last}"})
        expected = data[first : None if last is None else last + 1]
        if expected:
            assert (got.status, got.body) == (206, expected), (first, last)
            assert got.headers["content-range"] == f"bytes {first}-{first + len(expected) - 1}/{size}"
            assert got.headers["content-length"] == str(len(expected))
        else:
            assert (got.status, got.headers["content-range"]) == (416, f"bytes */{size}"), (first, last)
            assert got.error
    for length in (1, 5, size - 1, size, 2 * size):
        got = anywhere.get("a", {"Range": f"bytes=-{length}"})
        assert (got.status, got.body) == (206, data[-length:])
    assert anywhere.get("a", {"Range": "bytes=-0"}).status == 416


@pytest.mark.parametrize(
    ("data", "header", "expected"),  # 416, or the bytes of a range, or None: the header is ignored
    [
        *((b"", header, 416) for header in ("0-", "0-0", "0-9", "1-", "-0", "-1", "-9")),
        *((b"", header, None) for header in ("1-0", "0-,0-", "-", "-1,-1")),
        *((b"x", header, b"x") for header in ("0-", "0-0", "0-1", "0-9", "-1", "-2", "-9", " 0 - 0 ")),
        *((b"x", header, 416) for header in ("1-", "1-1", "2-", "-0", "-00")),
        *((b"x", header, None) for header in ("1-0", "0-0,0-0", "--1", "0--", "0-0x", "0x0-")),
        *((b"abcde", header, b"e") for header in ("4-", "4-4", "4-5", "4-99", "-1", "004-0004")),
        *((b"abcde", header, b"abcde") for header in ("0-", "0-4", "0-5", "-5", "-6", "-99", "0-" + "9" * 19)),
        *((b"abcde", header, b"bcd") for header in ("1-3", "1-3 ", " 1-3")),
        *((b"abcde", header, 416) for header in ("5-", "5-5", "5-9", "6-", "9" * 19 + "-", "-0")),
        *((b"abcde", header, None) for header in ("3-2", "0-1,3-4", "0-1,", "4-0", "-0,-1", "9" * 20 + "-")),
    ],
)
def test_a_range_at_a_border_is_answered_to_the_byte(
    dataset: Dataset, data: bytes, header: str, expected: bytes | int | None
) -> None:
    etag, size = dataset.put("a", data).headers["etag"], len(data)
    for target, conditions in itertools.product(("/files/a", ""), ({}, {"If-Range": etag}, {"If-Match": etag})):
        got, head = (
            dataset.ask(method, target, None, {"Range": f"bytes={header}", **conditions}) for method in ("GET", "HEAD")
        )
        if isinstance(expected, int):
            assert (got.status, got.headers["content-range"], bool(got.error)) == (expected, f"bytes */{size}", True)
        else:
            body = data if expected is None else expected
            assert (got.status, got.body, got.headers["etag"]) == (200 if expected is None else 206, body, etag)
            assert got.headers["content-length"] == str(len(body))
            first = data.find(body)
            spans = None if expected is None else f"bytes {first}-{first + len(body) - 1}/{size}"
            assert got.headers["content-range"] == spans
        assert (head.status, head.body, head.headers["content-range"]) == (
            got.status,
            b"",
            got.headers["content-range"],
        )
    for header_name, value, status in [
        ("If-Range", '"x"', 200),
        ("If-Range", f"W/{etag}", 200),
        ("If-None-Match", etag, 304),
        ("If-Match", '"x"', 412),
    ]:
        got = dataset.get("a", {"Range": f"bytes={header}", header_name: value})
        assert (got.status, "content-range" in got.headers) == (status, False), header_name
        assert got.body == (data if status == 200 else b"") or status == 412


@pytest.mark.parametrize("header", ["9-5", "", "1", "1-2,4-5", "-", "\u0661-\u0662", "0-" + "9" * 23])
def test_a_range_that_is_none_is_ignored(dataset: Dataset, header: str) -> None:
    dataset.put("a", DATA)
    for value in (f"bytes={header}", "lines=1-2"):
        got = dataset.get("a", {"Range": value.encode()})  # type: ignore[dict-item]  # http.client takes bytes
        assert (got.status, got.body) == (200, DATA)


def test_reads_may_be_conditional(dataset: Dataset) -> None:
    etag = dataset.put("a", DATA).headers["etag"]
    for header, value, status in [
        ("If-Match", etag, 200),
        ("If-Match", "*", 200),
        ("If-Match", f'"x", {etag}', 200),
        ("If-Match", f"W/{etag}", 412),
        ("If-Match", '"x"', 412),
        ("If-Match", "", 412),
        ("If-None-Match", etag, 304),
        ("If-None-Match", f'"x", W/{etag}', 304),
        ("If-None-Match", "*", 304),
        ("If-None-Match", '"x"', 200),
    ]:
        for method in ("GET", "HEAD"):
            assert dataset.ask(method, "/files/a", None, {header: value}).status == status, (method, header, value)
    not_modified = dataset.get("a", {"If-None-Match": etag})
    assert (not_modified.body, not_modified.headers["etag"]) == (b"", etag)
    for value, status in [(etag, 206), ('"x"', 200), (f"W/{etag}", 200), ("Sat, 01 Jan 2000 00:00:00 GMT", 200)]:
        assert dataset.get("a", {"Range": "bytes=1-2", "If-Range": value}).status == status
    assert dataset.get("gone", {"If-Match": "*"}).status in (404, 412)


def test_writes_may_be_conditional(anywhere: Dataset) -> None:
    for value in ("*", '"x"', ""):
        assert anywhere.put("a", b"1", {"If-Match": value}).status == 412
    assert anywhere.get("a").status == 404
    first = anywhere.put("a", b"1", {"If-None-Match": " * "})
    assert first.status == 200
    for value in ("*", first.headers["etag"], f"W/{first.headers['etag']}"):
        assert anywhere.put("a", b"2", {"If-None-Match": value}).status == 412
    assert anywhere.get("a").body == b"1"
    other = anywhere.put("a", b"22", {"If-None-Match": '"another"'})
    assert other.status == 200, "the existing file is not the excluded version"
    for value in (first.headers["etag"], f"W/{other.headers['etag']}"):
        assert anywhere.put("a", b"3", {"If-Match": value}).status == 412
        assert anywhere.delete("a", {"If-Match": value}).status == 412
    assert anywhere.get("a").body == b"22"
    third = anywhere.put("a", b"333", {"If-Match": f'"x", {other.headers["etag"]}'})
    assert third.status == 200
    assert anywhere.delete("a", {"If-Match": third.headers["etag"]}).status == 204


@pytest.mark.parametrize(
    ("match", "none_match", "on_file", "on_nothing"),  # what they name, and the status of a PUT
    [
        ("its", None, 200, 412),
        ("*", None, 200, 412),
        ("other", None, 412, 412),
        (None, "its", 412, 200),
        (None, "*", 412, 200),
        (None, "other", 200, 200),
        ("its", "other", 200, 412),
        ("*", "other", 200, 412),
        ("its", "its", 412, 412),
        ("its", "*", 412, 412),
        ("*", "*", 412, 412),
        ("other", "other", 412, 412),
        ("other", "*", 412, 412),
    ],
)
def test_both_conditions_have_to_hold_whatever_the_way_of_writing(
    dataset: Dataset, match: str | None, none_match: str | None, on_file: int, on_nothing: int
) -> None:
    writes = [("/files/a", {}), ("", {"Content-Disposition": "attachment; filename=a"})]
    for exists, (target, how) in itertools.product((True, False), writes):
        etag = dataset.put("a", b"old").headers["etag"]
        if not exists:
            assert dataset.delete("a").status == 204
        tags = {"its": etag, "*": "*", "other": '"other"'}
        headers = {"If-Match": tags.get(match or ""), "If-None-Match": tags.get(none_match or "")}
        conditions = {name: value for name, value in headers.items() if value is not None}
        answer = dataset.ask("PUT", target, b"new", {**how, **conditions})
        assert answer.status == (on_file if exists else on_nothing), (exists, target)
        assert answer.status == 200 or "If-" in answer.error
        expected = {"a": b"new"} if answer.status == 200 else {"a": b"old"} if exists else {}
        assert dataset.contents() == expected, (exists, target)
    etag = dataset.put("a", b"old").headers["etag"]
    conditions = {name: etag if value == tags["its"] else value for name, value in conditions.items()}
    assert dataset.delete("a", conditions).status == (204 if on_file == 200 else 412)
    assert dataset.contents() == ({} if on_file == 200 else {"a": b"old"})


def send_at_once(dataset: Dataset, target: str, requests: Sequence[tuple[bytes, Sequence[str]]]) -> list[Answer]:
    """Send writes whose bodies begin when the service has looked at the head of each, as its 100 Continue says."""
    connections = [
        begin(
            dataset.address,
            "PUT",
            f"/datasets/{dataset.name}{target}".format(number),
            *("Expect: 100-continue", f"Content-Length: {len(body)}", "Connection: close", *lines),
        )
        for number, (body, lines) in enumerate(requests)
    ]
    for connection in connections:
        assert connection.recv(65536).startswith(b"HTTP/1.1 100 ")
    with ThreadPoolExecutor(len(connections)) as pool:
        for sent in [pool.submit(one.sendall, body) for one, (body, _) in zip(connections, requests, strict=True)]:
            sent.result()
        return [answer_of(received) for received in pool.map(rest, connections)]


def answer_of(received: bytes) -> Answer:
    head, _, body = received.partition(b"\r\n\r\n")
    status, _, fields = head.partition(b"\r\n")
    return Answer(int(status.split()[1]), body, email.message_from_bytes(fields))


@pytest.mark.parametrize("target", ["/files/a", "?x={}"])
@pytest.mark.parametrize("condition", ["If-Match", "If-None-Match", "both"])
def test_of_conditional_writes_that_all_have_begun_one_succeeds(dataset: Dataset, condition: str, target: str) -> None:
    etag = None if condition == "If-None-Match" else dataset.put("a", b"0").headers["etag"]
    lines = ["If-None-Match: *" if etag is None else f"If-Match: {etag}"]
    lines += ['If-None-Match: "another"'] if condition == "both" else []
    bodies = [bytes([number]) * 100_000 for number in range(1, 9)]
    if target != "/files/a":
        lines.append("Content-Disposition: attachment; filename=a")
    answers = send_at_once(dataset, target, [(body, lines) for body in bodies])
    assert sorted(answer.status for answer in answers) == [200, *[412] * 7]
    (winner,) = (number for number, answer in enumerate(answers) if answer.status == 200)
    assert answers[winner].json()["sha256"] == sha256(bodies[winner])
    assert answers[winner].json()["etag"] == answers[winner].headers["etag"]
    assert all("If-" in answer.error for answer in answers if answer.status == 412)
    found = dataset.get("a")
    assert (found.body, found.headers["etag"]) == (bodies[winner], answers[winner].headers["etag"])
    assert below(dataset.folder) == {"a"}


@pytest.mark.parametrize(
    ("line", "meanwhile", "status"),  # what another client does to the file "a", of version {0}, while a body is sent
    [
        ("If-Match: {0}", "PUT", 412),
        ("If-Match: {0}", "DELETE", 412),
        ("If-Match: *", "PUT", 200),
        ("If-Match: *", "DELETE", 412),
        ("If-None-Match: {1}", "PUT", 200),
        ('If-None-Match: "x"', "DELETE", 200),
        ("X: y", "PUT", 200),
        ("X: y", "DELETE", 200),
    ],
)
def test_a_condition_is_checked_when_the_body_is_complete(
    dataset: Dataset, line: str, meanwhile: str, status: int
) -> None:
    gone = dataset.put("a", b"0").headers["etag"]
    etag = dataset.put("a", b"old").headers["etag"]
    head = (line.format(etag, gone), "Expect: 100-continue", "Content-Length: 3", "Connection: close")
    with begin(dataset.address, "PUT", f"/datasets/{dataset.name}/files/a", *head) as connection:
        assert connection.recv(65536).startswith(b"HTTP/1.1 100 ")
        other = dataset.ask(meanwhile, "/files/a", b"other" if meanwhile == "PUT" else None, {"If-Match": etag})
        assert other.status in (200, 204)
        connection.sendall(b"new")
        assert answer_of(rest(connection)).status == status
    expected = {"a": b"new"} if status == 200 else {"a": b"other"} if meanwhile == "PUT" else {}
    assert dataset.contents() == expected


def test_of_concurrent_conditional_removals_one_succeeds(anywhere: Dataset) -> None:
    etag = anywhere.put("a", b"1").headers["etag"]
    together = threading.Barrier(8, timeout=120)

    def remove(_: int) -> int:
        together.wait()
        return anywhere.delete("a", {"If-Match": etag}).status

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(remove, range(8))) == [204, *[404] * 7]
    assert anywhere.paths() == []


def test_body_and_etag_of_a_response_are_of_one_version(dataset: Dataset) -> None:
    contents = [bytes([65 + number]) * (1_000 + number) for number in range(4)]
    dataset.put("a", contents[0])

    def write(number: int) -> list[Any]:
        return [dataset.put("a", contents[number]).json() for _ in range(8)]

    def read(_: int) -> list[Answer]:
        return [dataset.get("a") for _ in range(16)]

    with ThreadPoolExecutor(6) as pool:
        seen: dict[str, bytes] = {}
        written, answers = [pool.submit(write, number) for number in range(4)], [pool.submit(read, 0) for _ in "ab"]
        for number, future in enumerate(written):
            for metadata in future.result():
                assert (metadata["sha256"], metadata["size"]) == (sha256(contents[number]), 1_000 + number)
                seen[metadata["etag"]] = contents[number]
        for got in itertools.chain(*(future.result() for future in answers)):
            if got.status != 503:  # replaced during the request
                assert seen.setdefault(got.headers["etag"], got.body) == got.body


# Digests


def test_a_file_appears_if_its_digest_is_the_promised_one(anywhere: Dataset) -> None:
    anywhere.put("a", b"old")
    for header, (value, status) in itertools.product(
        ["Repr-Digest", "Content-Digest"],
        [
            (digest_field(b"other"), 400),
            ("sha-256=:AAAA:", 400),
            ("sha-256=:not base64:", 400),
            ("sha-256=" + "ab" * 32, 400),
            (f"md5=:AAAA:, {digest_field(b'other')}", 400),
            (f"sha-512=:AAAA:, {digest_field(b'new')}", 200),
            (f"{digest_field(b'new')};x=1", 200),
            ("sha-512=:AAAA:", 200),
        ],
    ):
        answer = anywhere.put("a", b"new", {header: value})
        assert answer.status == status, value
        assert status == 200 or (anywhere.contents() == {"a": b"old"} and answer.error)
        anywhere.put("a", b"old")


def test_a_digest_is_of_the_bytes_whatever_other_programs_did_with_the_file(dataset: Dataset) -> None:
    def digest(path: str) -> str:
        return next(str(one["sha256"]) for one in dataset.page(digests=1)["files"] if one["path"] == path)

    a, b = dataset.folder / "a", dataset.folder / "b"
    a.write_bytes(b"1")
    assert digest("a") == digest("a") == sha256(b"1")
    a.write_bytes(b"22")
    assert digest("a") == sha256(b"22")
    shutil.copy2(a, b)  # with what the service keeps beside it
    b.write_bytes(b"33")
    os.utime(b, ns=(0, a.stat().st_mtime_ns))
    assert digest("b") == sha256(b"33")
    os.replace(b, a)
    assert digest("a") == sha256(b"33")


# Names


HOSTILE = [
    *("..%2f..%2fetc%2fpasswd", "%2e%2e/x", "%2e%2e%2fx", "a/%2e%2e/%2e%2e/x", "a%2f..%2f..%2fx", "%2fetc%2fpasswd"),
    *("%2f", "a%00b", "a%5cb", "..%5cx", "a%0ab", "a%0a", "%0a", "a/%0a", "a%7fb", "a%1fb", "a%ffb", "%c0%ae%c0%ae/x"),
    *("%ed%a0%80", "a//b", "a/", "a/./b", "a/%2e/b", "x.torchdata_remote-partial", "a.torchdata_remote-partial/b"),
    *(".torchdata_remote-pull.json", "x" * 256, "/".join(["x" * 250] * 4) + "/" + "y" * 100, "%C3%A9" * 128),
]


@pytest.mark.parametrize("path", HOSTILE)
def test_a_hostile_path_is_refused(dataset: Dataset, path: str) -> None:
    dataset.put("a", b"before")
    (dataset.folder.parent / "x").write_bytes(b"beside")
    for method in ("GET", "PUT", "DELETE"):
        answer = dataset.ask(method, f"/files/{path}", b"1" if method == "PUT" else None)
        assert (answer.status, bool(answer.error)) == (400, True)
    assert dataset.contents() == {"a": b"before"}
    assert (dataset.folder.parent / "x").read_bytes() == b"beside"


@given(path=st.text(st.sampled_from("./\\%2eaé\0 ~"), max_size=12) | st.text(max_size=20))
def test_an_accepted_path_stays_below_the_dataset(served: str, served_root: Path, path: str) -> None:
    dataset = Dataset(served, root=served_root)
    before = set(os.listdir(served_root))
    encoded = "".join(f"%{byte:02x}" for byte in path.encode("utf-8", "surrogatepass"))
    answer = dataset.ask("PUT", f"/files/{encoded}", b"1")
    assert answer.status in (200, 400)
    assert below(dataset.folder) == ({path} if answer.status == 200 else set())
    assert set(os.listdir(served_root)) == before


UNUSUAL = [
    *("日本/😀.bin", "%20", "a?b#c&d=e;f+g", " ", "...", "..a", "~", "CON", "é", "e\u0301", "\u202egpj.exe", "files"),
    *("a:b", "'\"<>|*", "\U0010ffff", ".hidden/.too", "-rf", "x" * 255, "y" * 255 + "/" + "z" * 255, "ö" * 127),
]


def test_an_unusual_path_is_kept_as_it_is(anywhere: Dataset) -> None:
    for path in UNUSUAL:
        stored = anywhere.put(path, path.encode())
        assert (stored.status, stored.json()["path"]) == (200, path)
        got = ask(anywhere.address, "GET", stored.json()["location"])
        assert got.body == path.encode()
        named = anywhere.ask("PUT", "", b"", {"Content-Disposition": got.headers["content-disposition"]})
        assert named.json()["path"] == path.rpartition("/")[2]
        if "/" in path:
            assert anywhere.delete(path.rpartition("/")[2]).status == 204
    assert anywhere.paths() == sorted(UNUSUAL)


def test_the_longest_path_has_1024_bytes(dataset: Dataset) -> None:
    assert dataset.put("/".join(["y" * 204] * 5), b"1").status == 200
    assert dataset.put("/".join(["z" * 204] * 5) + "z", b"1").status == 400


@pytest.mark.parametrize(
    ("link", "target", "path"),
    [
        ("file", "outside/secret", "file"),
        ("folder", "outside", "folder/secret"),
        ("folder", "outside", "folder/new"),
        ("real/deep", "outside/sub", "real/deep/secret"),
        ("dangling", "outside/new", "dangling"),
        ("up", "", "up/d/real/x"),
        ("inside", "d/real/x", "inside"),
    ],
)
def test_a_link_is_never_followed(dataset: Dataset, tmp_path: Path, link: str, target: str, path: str) -> None:
    outside = tmp_path / "outside"
    (outside / "sub").mkdir(parents=True)
    for secret in ("secret", "sub/secret"):
        (outside / secret).write_bytes(b"secret")
    dataset.put("real/x", b"1")
    to = outside.parent if target.startswith("outside") else dataset.folder.parent
    os.symlink(to / target.replace("d/", f"{dataset.name}/"), dataset.folder / link)
    for method in ("GET", "HEAD", "DELETE", "PUT"):
        assert dataset.ask(method, f"/files/{path}", b"2" if method == "PUT" else None).status == 403, method
    folder = path.rpartition("/")[0]
    for prefix in {"", link, f"{folder}/" if folder else "", f"{folder}/s" if folder else ""}:
        assert dataset.ask("GET", f"/files?recursive=1&prefix={prefix}").status == 403, prefix
    for whole in ("", "/summary", "/sheet.png", "/files?digests=1"):
        assert dataset.ask("GET", whole).status == 403, whole
    assert below(outside) == {"secret", "sub/secret"}
    assert (outside / "secret").read_bytes() == b"secret"


def test_a_folder_a_pipe_and_a_socket_are_no_files(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    (dataset.folder / "sub").mkdir()
    os.mkfifo(dataset.folder / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        monkeypatch.chdir(dataset.folder)  # such names have 108 bytes at most
        listening.bind("socket")
        for name in ("sub", "pipe", "socket", "sub/x", "pipe/x"):
            assert [dataset.get(name).status, dataset.delete(name).status] == [404, 404]
        assert dataset.page(digests=1)["files"] == []


def test_a_name_that_is_not_utf8_is_an_error_that_shows_it(dataset: Dataset) -> None:
    Path(os.fsdecode(os.fsencode(dataset.folder) + b"/b\xff")).touch()
    for path in ("/files", ""):
        answer = dataset.ask("GET", path)
        assert (answer.status, "UTF-8" in answer.error) == (403, True)


def test_a_file_and_a_folder_of_one_name_conflict(dataset: Dataset) -> None:
    assert dataset.put("a/b/c", b"1").status == 200
    for path in ("a", "a/b", "a/b/c/d", "a/b/c/d/e"):
        assert dataset.put(path, b"2").status == 409, path
    assert dataset.delete("a/b/c").status == 204
    assert dataset.page(recursive=0)["folders"] == []
    assert dataset.put("a", b"2").status == 200
    assert dataset.delete("a").status == 204
    assert dataset.put("x/y/z", b"1", {"Content-Digest": digest_field(b"other")}).status == 400
    assert dataset.put("x", b"2").status == 200, "no empty folder is left"


def test_writes_and_deletes_in_one_folder_never_disturb_each_other(dataset: Dataset) -> None:
    def work(number: int) -> set[int]:
        path = f"x/y/z/{number}"
        return {status for _ in range(15) for status in (dataset.put(path).status, dataset.delete(path).status)}

    with ThreadPoolExecutor(4) as pool:
        assert set().union(*pool.map(work, range(4))) == {200, 204}
    assert os.listdir(dataset.folder) == []


# Listings


PATHS = ["a.b", "a/b", "a/c/d", "a/c/e", "a0", "b/a", "c/é", "c/😀", "z"]


def test_pages_make_up_the_listing(anywhere: Dataset) -> None:
    anywhere.fill({path: path.encode() for path in PATHS})
    prefixes = ["", "a", "a/", "a/c", "a/c/", "c/", "b/a", "nothing", "nothing/at/all", "z/"]
    for limit, prefix in itertools.product([1, 2, 1000], prefixes):
        matching = [path for path in PATHS if path.startswith(prefix)]
        depth = prefix.count("/")
        folders = {"/".join(path.split("/")[: depth + 1]) + "/" for path in matching if path.count("/") > depth}
        here = [path for path in matching if path.count("/") == depth]
        assert anywhere.paths(prefix=prefix, limit=limit) == matching
        assert sorted(anywhere.paths(prefix=prefix, limit=limit, recursive=0)) == sorted([*here, *folders])
        page = anywhere.page(prefix=prefix, limit=limit, recursive=0)
        assert len(page["files"]) + len(page["folders"]) == min(limit, len(here) + len(folders))
    assert [file["path"] for file in anywhere.page(after="a/c")["files"]] == [path for path in PATHS if path > "a/c"]


def test_a_listing_goes_on_after_the_longest_names(anywhere: Dataset) -> None:
    paths = [f"{first}/{'x' * 255}" for first in ("a", "b", "/".join(["y" * 191] * 4))]
    anywhere.fill(dict.fromkeys(paths, b"1"))
    assert anywhere.paths(limit=1) == sorted(paths)
    assert anywhere.paths(prefix=paths[0], limit=1) == [paths[0]]


@pytest.mark.parametrize(
    "query",
    [
        *("limit=0", "limit=10001", "limit=-1", "limit=x", "limit=", "recursive=2", "digests=yes"),
        *("prefix=../", "prefix=a/../b", "prefix=/", "prefix=/etc/", "prefix=a%00", "after=%00", "prefix=a//b"),
        *(f"prefix={'x' * 256}/", f"prefix={'x' * 256}", f"after={'x' * 1025}", f"prefix={'x/' * 513}"),
    ],
)
def test_a_listing_with_wrong_parameters_is_refused(dataset: Dataset, query: str) -> None:
    answer = dataset.ask("GET", f"/files?{query}")
    assert (answer.status, bool(answer.error)) == (400, True)


def test_a_listing_has_at_most_10_000_files_a_page(dataset: Dataset) -> None:
    assert dataset.page(limit=10_000)["files"] == []
    for path in range(1002):
        (dataset.folder / f"{path:04}").touch()
    page = dataset.page()
    assert (len(page["files"]), page["next"]) == (1000, "0999")


def test_a_listing_has_the_digests_of_all_files(anywhere: Dataset) -> None:
    anywhere.fill({path: path.encode() for path in PATHS})
    if anywhere.root is not None:
        (anywhere.folder / "beside").write_bytes(b"written directly")
    expected = {path: sha256(anywhere.get(path).body) for path in anywhere.paths()}
    for limit in (2, 1000):
        found: dict[str, str] = {}
        after: str | None = ""
        while after is not None:
            page = anywhere.page(digests=1, limit=limit, after=after)
            found |= {file["path"]: file["sha256"] for file in page["files"]}
            after = page["next"]
        assert found == expected
    page = anywhere.page(digests=1, recursive=0)
    assert [file["path"] for file in page["files"]] == [path for path in expected if "/" not in path]
    assert page["folders"] == ["a/", "b/", "c/"]


@pytest.mark.parametrize("kind", ["multipart/form-data; boundary=x", "Application/x-www-form-urlencoded"])
def test_a_form_is_refused_with_what_to_send_instead(dataset: Dataset, kind: str) -> None:
    for target in ("", "?unpack=1", "/files/a"):
        answer = dataset.ask("PUT", target, b"x", {"Content-Type": kind})
        assert (answer.status, "--data-binary" in answer.error) == (415, True), target
    assert dataset.paths() == []


def test_a_part_is_never_taken_for_a_file(dataset: Dataset) -> None:
    """Nor is a file removed by a client that discards an upload in parts, which earlier versions had."""
    dataset.fill({"a": b"1"})
    for target in ("/files/a?upload=12345678", "/files/b", ""):
        answer = dataset.ask("PUT", target, b"1", {"Content-Range": "bytes 0-0/2"})
        assert (answer.status, bool(answer.error)) == (400, True)
    assert dataset.ask("DELETE", "/files/a?upload=12345678").status == 400
    assert dataset.contents() == {"a": b"1"}


HEADERS = ["Range", "If-Match", "If-None-Match", "If-Range", "Content-Disposition", "Content-Range", "Repr-Digest"]
BEGINNINGS = ["", "bytes=", "bytes ", "sha-256=:", "attachment; filename=", "attachment; filename*=", '"1",']


@given(
    name=st.sampled_from([*HEADERS, "Content-Type", "Sec-Fetch-Site"]),
    beginning=st.sampled_from(BEGINNINGS),
    end=st.text(st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f"), max_size=20),
)
def test_any_header_is_read_or_refused(served: str, name: str, beginning: str, end: str) -> None:
    dataset = Dataset(served, "headers")
    header = {name: (beginning + end).encode("latin-1")}
    for method, target in [("PUT", ""), ("PUT", "/files/a"), ("GET", "/files/a")]:
        answer = dataset.ask(method, target, b"1" if method == "PUT" else None, header)  # type: ignore[arg-type]
        assert answer.status < 500
