"""Files that come in parts."""

from __future__ import annotations

import hashlib
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("starlette", reason="the service's libraries are not installed")

from starlette.testclient import TestClient

from tests.servers.service import Service
from tests.service.clients import LIMITS, all_files, ask, below, client_of, digest_field, hosting_of, new_dataset
from tests.support.shard_places import Place
from torchdata_remote.service.server import maintenance as housekeeping
from torchdata_remote.service.server.limits import ServiceLimits

ID = "an-upload_1"
DATA = bytes(range(100))


def put(
    client: TestClient, dataset: str, start: int, end: int, total: int | None, *, path: str = "a", **more: Any
) -> Any:
    """Send bytes of ``DATA``, or other ones."""
    content = more.pop("content", DATA[start:end])
    headers = {"Content-Range": f"bytes {start}-{end - 1}/{'*' if total is None else total}", **more.pop("headers", {})}
    upload = more.pop("upload", ID)
    return client.put(f"/datasets/{dataset}/files/{path}?upload={upload}", content=content, headers=headers)


def progress(client: TestClient, dataset: str) -> Any:
    answer = client.get(f"/datasets/{dataset}/files/a?upload={ID}")
    return answer.json() if answer.status_code == 200 else answer.status_code


def test_parts_become_a_file(client: TestClient, dataset: str, place: Place) -> None:
    """202 tells what is there until all is; then 200 as for a file in one piece, and nothing else is left."""
    first = put(client, dataset, 60, 100, 100)
    assert (first.status_code, first.json()) == (202, {"upload": ID, "received": [[60, 100]], "total": 100})
    assert put(client, dataset, 0, 20, None).json()["received"] == [[0, 20], [60, 100]]
    assert progress(client, dataset) == {"upload": ID, "received": [[0, 20], [60, 100]], "total": 100}
    assert all_files(client, dataset) == []
    last = put(client, dataset, 20, 60, None, headers={"Repr-Digest": digest_field(DATA)})
    assert last.status_code == 200
    told = last.json()
    assert (told["path"], told["size"], told["sha256"]) == ("a", 100, hashlib.sha256(DATA).hexdigest())
    assert last.headers["etag"] == told["etag"]
    assert client.get(f"/datasets/{dataset}/files/a").content == DATA
    assert progress(client, dataset) == 404
    assert {path for path in place.files() if ".torchdata_remote/" in path} <= {".torchdata_remote/serving.lock"}


cuts = st.lists(st.integers(1, 99), max_size=8, unique=True).map(sorted)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(cuts=cuts, data=st.data())
def test_any_cutting_in_any_order(local: TestClient, dataset: str, cuts: list[int], data: st.DataObject) -> None:
    """Some parts twice, the total told by any of them: the file is complete with the last one that was missing."""
    places = list(zip([0, *cuts], [*cuts, 100], strict=True))
    order = data.draw(st.permutations(places + data.draw(st.lists(st.sampled_from(places), max_size=4))))
    telling = data.draw(st.lists(st.booleans(), min_size=len(order), max_size=len(order)))
    path, missing, told = uuid.uuid4().hex, set(places), False
    for (start, end), tells in zip([*order, places[0]], [*telling, True], strict=True):
        answer = put(local, dataset, start, end, 100 if tells else None, path=path)
        missing.discard((start, end))
        told = told or tells
        if told and not missing:
            break
        assert answer.status_code == 202, answer.text
        assert answer.json()["total"] == (100 if told else None)
    assert answer.status_code == 200, answer.text
    assert local.get(f"/datasets/{dataset}/files/{path}").content == DATA


def test_parts_in_parallel_and_twice(served: str) -> None:
    """Through sockets, from many threads, each part from two: all are answered 200 or 202, and the file is right."""
    dataset = new_dataset(served)
    content = bytes(range(256)) * 2_000
    part_bytes = 40_000
    answers: list[tuple[int, bytes]] = []

    def send(start: int) -> None:
        data = content[start : start + part_bytes]
        headers = {"Content-Range": f"bytes {start}-{start + len(data) - 1}/{len(content)}"}
        answers.append(ask(served, "PUT", f"/datasets/{dataset}/files/a?upload={ID}", data, headers)[:2])

    threads = [threading.Thread(target=send, args=(start,)) for start in [*range(0, len(content), part_bytes)] * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {status for status, _ in answers} <= {200, 202}, answers
    assert 200 in {status for status, _ in answers}
    assert ask(served, "GET", f"/datasets/{dataset}/files/a")[1] == content


def test_the_same_range_again_replaces_it(local: TestClient, dataset: str) -> None:
    """Also if the total became known meanwhile."""
    put(local, dataset, 0, 50, None, content=b"x" * 50)
    again = put(local, dataset, 0, 50, 100)
    assert again.json()["received"] == [[0, 50]]
    assert put(local, dataset, 50, 100, None).status_code == 200
    assert local.get(f"/datasets/{dataset}/files/a").content == DATA


@pytest.mark.parametrize(
    ("start", "end", "total"), [(40, 60, 100), (0, 20, 100), (49, 51, 100), (0, 51, 100), (50, 60, 90), (50, 101, None)]
)
def test_parts_that_do_not_fit(client: TestClient, dataset: str, start: int, end: int, total: int | None) -> None:
    """409 for what overlaps or disagrees about the total, and what was there stays."""
    put(client, dataset, 0, 50, 100)
    assert put(client, dataset, start, end, total, content=b"x" * (end - start)).status_code == 409
    assert progress(client, dataset) == {"upload": ID, "received": [[0, 50]], "total": 100}
    assert put(client, dataset, 50, 100, 100).status_code == 200
    assert client.get(f"/datasets/{dataset}/files/a").content == DATA


def test_parts_that_overlap_and_come_at_once(served: str) -> None:
    """One of them is 409, so that the upload can be completed."""
    dataset = new_dataset(served)
    target = f"/datasets/{dataset}/files/a?upload={ID}"

    def inside(end: int) -> Any:
        yield DATA[:10]
        if end == 60:
            assert ask(served, "PUT", target, DATA[:50], {"Content-Range": "bytes 0-49/100"})[0] == 202
        yield DATA[10:end]

    assert ask(served, "PUT", target, inside(60), {"Content-Range": "bytes 0-59/100"})[0] == 409
    assert ask(served, "PUT", target, DATA[50:], {"Content-Range": "bytes 50-99/100"})[0] == 200
    assert ask(served, "GET", f"/datasets/{dataset}/files/a")[1] == DATA


def test_a_part_that_comes_while_its_twin_completes_the_file(served: str) -> None:
    """A client that repeats a request too early gets the same answer, though the parts are gone."""
    dataset = new_dataset(served)
    target, headers = f"/datasets/{dataset}/files/a?upload={ID}", {"Content-Range": "bytes 0-99/100"}

    def inside() -> Any:
        yield DATA[:10]
        assert ask(served, "PUT", target, DATA, headers)[0] == 200
        yield DATA[10:]

    status, said, _ = ask(served, "PUT", target, inside(), headers)
    assert status == 200, said
    assert ask(served, "GET", f"/datasets/{dataset}/files/a")[1] == DATA


def test_an_answer_that_was_lost(client: TestClient, dataset: str) -> None:
    """The part that completed the file, sent again, is answered as before."""
    put(client, dataset, 0, 50, 100)
    once, again = put(client, dataset, 50, 100, 100), put(client, dataset, 50, 100, 100)
    assert once.status_code == again.status_code == 200
    assert once.json() == again.json()
    assert progress(client, dataset) == 404


def test_an_id_that_is_used_again(client: TestClient, dataset: str) -> None:
    """Other bytes are not taken for those that came before: nothing that is sent is lost."""
    for content in (DATA, bytes(reversed(DATA)), b"short"):
        half, total = len(content) // 2, len(content)
        first = put(client, dataset, 0, half, total, content=content[:half])
        assert first.status_code == 202
        assert put(client, dataset, half, total, total, content=content[half:]).status_code == 200
        assert client.get(f"/datasets/{dataset}/files/a").content == content


def test_an_upload_is_of_one_path(client: TestClient, dataset: str) -> None:
    """The same id with another path, or in another dataset, is another upload."""
    client.post("/datasets", json={"name": "other"})
    put(client, dataset, 0, 50, 100)
    for where, path in [(dataset, "b"), ("other", "a")]:
        assert put(client, where, 50, 100, 100, path=path).json()["received"] == [[50, 100]]
    assert progress(client, dataset)["received"] == [[0, 50]]


def test_wrong_digests(client: TestClient, dataset: str) -> None:
    """Of a part: 400, and it is not there. Of the whole at its end: 400, and the upload begins anew."""
    wrong = put(client, dataset, 0, 50, 100, headers={"Content-Digest": digest_field(b"")})
    assert wrong.status_code == 400
    assert progress(client, dataset) == 404
    right = {"Content-Digest": digest_field(DATA[:50]), "Repr-Digest": digest_field(DATA)}
    assert put(client, dataset, 0, 50, 100, headers=right).status_code == 202
    assert put(client, dataset, 50, 100, 100, headers={"Repr-Digest": digest_field(b"")}).status_code == 400
    assert progress(client, dataset) == 404
    assert all_files(client, dataset) == []


def test_a_body_of_another_length(client: TestClient, dataset: str) -> None:
    """400 if it is not what Content-Range tells, and the part is not there."""
    for content in (b"x" * 9, b"x" * 11, b""):
        assert put(client, dataset, 0, 10, 100, content=content).status_code == 400
    assert progress(client, dataset) == 404


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "bytes 0-9",
        "bytes 5-4/10",
        "bytes 0-10/10",
        "bytes */10",
        "0-9/10",
        "bytes 0-9/x",
        "bytes -1-2/3",
        f"bytes 0-{'9' * 20}/*",
        "bytes 0-0/0",
    ],
)
def test_content_ranges_that_are_none(local: TestClient, dataset: str, header: str | None) -> None:
    """400 says which form is expected."""
    headers = {} if header is None else {"Content-Range": header}
    answer = local.put(f"/datasets/{dataset}/files/a?upload={ID}", content=b"x", headers=headers)
    assert answer.status_code == 400
    assert "bytes first-last" in answer.json()["error"]


@pytest.mark.parametrize("upload", ["", "short", "x" * 65, "a/b/c/d/e", "........", "%00%00%00%00%00%00%00%00"])
def test_ids_that_are_none(local: TestClient, dataset: str, upload: str) -> None:
    """400, for each method."""
    for method in ("GET", "PUT", "DELETE"):
        content = b"x" if method == "PUT" else None
        path = f"/datasets/{dataset}/files/a?upload={upload}"
        assert local.request(method, path, content=content, headers={"Content-Range": "bytes 0-0/1"}).status_code == 400


def test_conditions_hold_when_the_file_appears(client: TestClient, dataset: str) -> None:
    """412, and what is there stays; the parts stay as well."""
    path = f"/datasets/{dataset}/files/a"
    etag = client.put(path, content=b"old").headers["etag"]
    put(client, dataset, 0, 50, 100)
    assert put(client, dataset, 50, 100, 100, headers={"If-None-Match": "*"}).status_code == 412
    assert put(client, dataset, 50, 100, 100, headers={"If-Match": '"x"'}).status_code == 412
    assert client.get(path).content == b"old"
    assert put(client, dataset, 50, 100, 100, headers={"If-Match": etag}).status_code == 200
    assert client.get(path).content == DATA


def test_an_upload_is_dropped(client: TestClient, dataset: str) -> None:
    """DELETE with its id: 204, also of one that is not there; nothing of it is left, and the file stays."""
    client.put(f"/datasets/{dataset}/files/a", content=b"old")
    put(client, dataset, 0, 50, 100)
    for _ in range(2):
        assert client.delete(f"/datasets/{dataset}/files/a?upload={ID}").status_code == 204
    assert progress(client, dataset) == 404
    assert client.get(f"/datasets/{dataset}/files/a").content == b"old"


def test_limits_of_parts(tmp_path: Path) -> None:
    """413 for too many parts, and for a file that would be too large, before its bytes are taken."""
    with client_of(tmp_path, limits=ServiceLimits(min_free_bytes=0, max_parts=3, max_file_bytes=80)) as client:
        client.post("/datasets", json={"name": "d"})
        assert put(client, "d", 0, 10, 81).status_code == 413
        assert put(client, "d", 75, 85, None).status_code == 413
        for start in (0, 10, 20):
            assert put(client, "d", start, start + 10, 80).status_code == 202
        assert put(client, "d", 30, 40, 80).status_code == 413
        assert put(client, "d", 20, 30, 80).status_code == 202, "one that is there may come again"


def test_an_upload_goes_on_after_the_service_was_killed(tmp_path: Path) -> None:
    """What was answered 202 is there afterwards, and needs not to be sent again."""
    first = Service(tmp_path, "--min-free-bytes", "0")
    dataset = new_dataset(first.address)
    target = f"/datasets/{dataset}/files/a?upload={ID}"
    assert ask(first.address, "PUT", target, DATA[50:], {"Content-Range": "bytes 50-99/100"})[0] == 202
    first.kill()
    second = Service(tmp_path, "--min-free-bytes", "0")
    try:
        assert b"[[50,100]]" in ask(second.address, "GET", target)[1]
        assert ask(second.address, "PUT", target, DATA[:50], {"Content-Range": "bytes 0-49/*"})[0] == 200
        assert ask(second.address, "GET", f"/datasets/{dataset}/files/a")[1] == DATA
    finally:
        second.stop()


def test_an_upload_that_nobody_goes_on_with_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After its lifetime, counted from its last part."""
    with client_of(tmp_path) as client:
        client.post("/datasets", json={"name": "d"})
        put(client, "d", 0, 50, 100)
        hosting = hosting_of(client)
        housekeeping.tidy(hosting)
        assert progress(client, "d")["received"] == [[0, 50]]
        now_s = time.time() + LIMITS.upload_lifetime_s
        monkeypatch.setattr("torchdata_remote.service.server.maintenance.time.time", lambda: now_s + 60)
        housekeeping.tidy(hosting)
        assert progress(client, "d") == 404
        assert below(tmp_path) == set()
