"""Uploads in parts, by HTTP: any sizes and order, what is kept of a part, conditions, digests, discarding."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("starlette", reason="the service is not installed: pip install torchdata_remote[service]")

from tests.support.service_clients import Answer, Body, Dataset, begin, below, digest_field, rest, sha256

ID = "an-upload_1"
DATA = bytes(range(100))


def put(
    dataset: Dataset,
    start: int,
    end: int,
    total: int | None = 100,
    content: Body = None,
    *,
    path: str = "a",
    upload: str = ID,
    **headers: str,
) -> Answer:
    """Send bytes of ``DATA``, or other ones."""
    whole = {"Content-Range": f"bytes {start}-{end - 1}/{'*' if total is None else total}"}
    whole |= {name.replace("_", "-"): value for name, value in headers.items()}
    return dataset.ask("PUT", f"/files/{path}?upload={upload}", DATA[start:end] if content is None else content, whole)


def received(dataset: Dataset) -> list[list[int]] | int:
    """Byte ranges that have arrived, or the status."""
    answer = dataset.ask("GET", f"/files/a?upload={ID}")
    if answer.status != 200:
        return answer.status
    found: list[list[int]] = answer.json()["received"]
    return found


def test_parts_become_a_file_that_is_visible_as_a_whole(anywhere: Dataset) -> None:
    first = put(anywhere, 60, 100)
    assert (first.status, first.json()) == (202, {"upload": ID, "received": [[60, 100]], "total": 100})
    assert put(anywhere, 0, 20, None).json()["received"] == [[0, 20], [60, 100]]
    expected = {"upload": ID, "received": [[0, 20], [60, 100]], "total": 100}
    assert anywhere.ask("GET", f"/files/a?upload={ID}").json() == expected
    assert anywhere.paths() == []
    last = put(anywhere, 20, 60, None, Repr_Digest=digest_field(DATA))
    metadata = last.json()
    assert (last.status, metadata["path"], metadata["size"], metadata["sha256"]) == (200, "a", 100, sha256(DATA))
    assert last.headers["etag"] == metadata["etag"] == anywhere.head("a").headers["etag"]
    assert anywhere.contents() == {"a": DATA}
    assert received(anywhere) == 404
    if anywhere.root is not None:
        assert not [path for path in below(anywhere.root / ".torchdata_remote") if anywhere.name in path]


@given(cuts=st.lists(st.integers(1, 99), max_size=6, unique=True).map(sorted), data=st.data())
def test_parts_may_have_any_size_and_order_and_come_twice(served: str, cuts: list[int], data: st.DataObject) -> None:
    dataset = Dataset(served)
    places = list(itertools.pairwise([0, *cuts, 100]))
    order = data.draw(st.permutations(places + data.draw(st.lists(st.sampled_from(places), max_size=3))))
    stating = data.draw(st.lists(st.booleans(), min_size=len(order), max_size=len(order)))
    missing, total_is_known = set(places), False
    for (start, end), states_total in zip([*order, places[0]], [*stating, True], strict=True):
        answer = put(dataset, start, end, 100 if states_total else None)
        missing.discard((start, end))
        total_is_known = total_is_known or states_total
        if total_is_known and not missing:
            break
        assert (answer.status, answer.json()["total"]) == (202, 100 if total_is_known else None)
    assert answer.status == 200
    assert dataset.contents() == {"a": DATA}


@given(
    parts=st.lists(
        st.tuples(st.integers(0, 99), st.integers(1, 100)).filter(lambda part: part[0] < part[1]), max_size=6
    )
)
def test_a_part_replaces_those_that_contradict_it(served: str, parts: list[tuple[int, int]]) -> None:
    dataset = Dataset(served)
    assert put(dataset, 40, 41, content=b"x").status == 202
    for start, end, total in ((41, 42, 90), (60, 101, None), (0, 1, 100)):  # another size, more than it, less
        answer = put(dataset, start, end, total, b"x" * (end - start))
        assert (answer.status, answer.json()["received"]) == (202, [[start, end]])
    stored = [(0, 1)]
    for start, end in parts:
        stored = [(start, end), *(one for one in stored if end <= one[0] or one[1] <= start)]
        answer = put(dataset, start, end, content=b"x" * (end - start))
        is_complete = sum(end - start for start, end in stored) == 100
        assert answer.status == (200 if is_complete else 202)
        stored = [] if is_complete else stored
    assert put(dataset, 0, 100).status == 200
    assert dataset.get("a").body == DATA


@pytest.mark.parametrize("line", ["X: y", f"Content-Digest: {digest_field(DATA)}"])
def test_a_part_that_is_cut_off_is_dropped(dataset: Dataset, line: str) -> None:
    put(dataset, 90, 100)
    lines = ("Content-Range: bytes 0-89/100", "Content-Length: 90", line)
    target = f"/datasets/{dataset.name}/files/a?upload={ID}"
    with begin(dataset.address, "PUT", target, *lines, sent=DATA[:60]) as connection:
        connection.shutdown(1)
        rest(connection)  # until the service has ended the request
    assert received(dataset) == [[90, 100]]
    assert put(dataset, 0, 90).status == 200
    assert dataset.get("a").body == DATA


def test_parts_that_are_sent_at_once_and_twice_become_the_file(dataset: Dataset) -> None:
    content = bytes(range(256)) * 2_000

    def send(start: int) -> int:
        data = content[start : start + 40_000]
        return put(dataset, start, start + len(data), len(content), data).status

    with ThreadPoolExecutor(26) as pool:
        statuses = set(pool.map(send, [*range(0, len(content), 40_000)] * 2))
    assert statuses <= {200, 202}
    assert 200 in statuses
    assert dataset.get("a").body == content


def test_an_identifier_may_be_used_for_another_file_and_never_mixes_them(dataset: Dataset) -> None:
    for content in (DATA, bytes(reversed(DATA)), b"short", DATA[:50] + bytes(50), DATA):
        half, total = len(content) // 2, len(content)
        digest = digest_field(content)
        assert put(dataset, 0, half, total, content[:half], Repr_Digest=digest).status == 202
        assert put(dataset, half, total, total, content[half:], Repr_Digest=digest).status == 200
        assert dataset.get("a").body == content


def test_an_upload_belongs_to_one_path(dataset: Dataset, served: str) -> None:
    other = Dataset(served)
    put(dataset, 0, 50)
    for where, path in [(dataset, "b"), (other, "a")]:
        assert put(where, 50, 100, path=path).json()["received"] == [[50, 100]]
    assert received(dataset) == [[0, 50]]


def test_a_wrong_digest_discards_the_part_or_all_of_them(dataset: Dataset) -> None:
    assert put(dataset, 0, 50, Content_Digest=digest_field(b"")).status == 400
    assert received(dataset) == 404
    assert put(dataset, 0, 50, Content_Digest=digest_field(DATA[:50]), Repr_Digest=digest_field(DATA)).status == 202
    assert put(dataset, 50, 100, Repr_Digest=digest_field(b"")).status == 400
    assert (received(dataset), dataset.paths()) == (404, [])
    assert put(dataset, 0, 100, Repr_Digest=digest_field(b"")).status == 400
    assert (received(dataset), dataset.paths()) == (404, [])


@pytest.mark.parametrize(
    "header",
    [
        *(None, "", "bytes 0-9", "bytes 5-4/10", "bytes 0-10/10", "bytes */10", "0-9/10", "bytes 0-9/x"),
        *("bytes -1-2/3", f"bytes 0-{'9' * 20}/*", "bytes 0-0/0"),
    ],
)
def test_another_content_range_or_a_body_of_another_length_is_refused(dataset: Dataset, header: str | None) -> None:
    answer = dataset.ask("PUT", f"/files/a?upload={ID}", b"x", {} if header is None else {"Content-Range": header})
    assert (answer.status, "bytes first-last" in answer.error) == (400, True)
    for content in (b"x" * 9, b"x" * 11, b""):
        assert put(dataset, 0, 10, content=content).status == 400
    assert received(dataset) == 404


@pytest.mark.parametrize(
    "upload", ["", "short12", "x" * 65, "a/b/c/d/e", "........", "%00" * 8, "a" * 8 + "%0a", "é" * 8]
)
def test_an_identifier_has_8_to_64_letters_digits_underscores_and_hyphens(dataset: Dataset, upload: str) -> None:
    quoted = upload.replace("é", "%C3%A9")
    for method in ("GET", "PUT", "DELETE"):
        body = b"x" if method == "PUT" else None
        answer = dataset.ask(method, f"/files/a?upload={quoted}", body, {"Content-Range": "bytes 0-0/1"})
        assert answer.status == 400
    for fine in ("a" * 8, "A-_9" * 16):
        assert put(dataset, 0, 1, 2, upload=fine).status == 202


def test_conditions_hold_at_the_moment_an_upload_is_complete(anywhere: Dataset) -> None:
    etag = anywhere.put("a", b"old").headers["etag"]
    put(anywhere, 0, 50)
    assert put(anywhere, 50, 100, If_None_Match="*").status == 412
    assert put(anywhere, 50, 100, If_Match='"x"').status == 412
    assert anywhere.contents() == {"a": b"old"}
    assert put(anywhere, 50, 100, If_Match=etag).status == 200
    assert put(anywhere, 0, 100, upload="another-id", If_None_Match="*").status == 412
    assert anywhere.contents() == {"a": DATA}


def test_an_upload_may_be_discarded(anywhere: Dataset) -> None:
    anywhere.put("a", b"old")
    put(anywhere, 0, 50)
    for _ in range(2):
        assert anywhere.ask("DELETE", f"/files/a?upload={ID}").status == 204
    assert received(anywhere) == 404
    assert put(anywhere, 50, 100).status == 202
    assert anywhere.contents() == {"a": b"old"}
