"""Who may ask the service, how long a request may be, and what Prometheus reads."""

from __future__ import annotations

import base64
import contextlib
import http.client

import pytest

pytest.importorskip("starlette", reason="the service is not installed: pip install torchdata_remote[service]")

from prometheus_client.parser import text_string_to_metric_families

from tests.service.conftest import TOKEN
from tests.support.service_clients import Answer, Dataset, ask, begin, metric, rest

BEARER = {"Authorization": f"Bearer {TOKEN}"}


def basic(password: str | bytes, user: str = "anybody") -> str:
    data = password if isinstance(password, bytes) else password.encode()
    return "Basic " + base64.b64encode(user.encode() + b":" + data).decode()


def request(address: str, path: str, headers: dict[str, str | bytes], method: str = "GET") -> Answer:
    """Send these headers and no other one."""
    with contextlib.closing(http.client.HTTPConnection(address, timeout=120)) as connection:
        connection.putrequest(method, path, skip_host="Host" in headers, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        return Answer(answer.status, answer.read(), answer.headers)


@pytest.mark.parametrize("header", [f"Bearer {TOKEN}", f"bearer {TOKEN}", basic(TOKEN), basic(TOKEN, "")])
def test_the_token_is_accepted_as_bearer_or_as_any_users_password(guarded: str, header: str) -> None:
    assert ask(guarded, "GET", "/datasets", None, {"Authorization": header}).status == 200


WRONG_HEADERS: list[str | bytes | None] = [
    *(None, "", "Bearer", "Bearer ", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN.upper()}", TOKEN),
    *(f"Digest {TOKEN}", f"Basic {TOKEN}", "Basic", "Basic !!!", basic("wrong"), basic(""), basic(b"\xff\xfe")),
    *(basic(TOKEN + ":x"), "Bearer ä€".encode(), b"Bearer \xff\xfe"),
]


def test_a_request_without_the_token_is_refused_wherever_it_is_for(guarded: str) -> None:
    paths = [
        "/",
        "/metrics",
        "/openapi.json",
        "/page/app.js",
        "/dataset/x",
        "/nothing",
        "/healthz/..",
        "/datasets/x/files/y",
    ]
    similar = ["/healthz/", "/healthz%2f", "//healthz", "/Healthz", "/healthz%00"]
    for header, path in [
        *((header, "/datasets") for header in WRONG_HEADERS),
        *((None, path) for path in paths + similar),
    ]:
        answer = request(guarded, path, {} if header is None else {"Authorization": header})
        assert (answer.status, answer.headers["www-authenticate"][:5]) == (401, "Basic"), (header, path)
        assert TOKEN not in answer.error
    for method in ("POST", "PUT", "DELETE"):
        assert ask(guarded, method, "/datasets/d/files/a", b"1").status == 401
    assert ask(guarded, "GET", "/healthz")[:2] == (200, b'{"status":"ok"}\n')


@pytest.mark.parametrize("line", ["X: y", "Authorization: Bearer wrong"])
def test_without_the_token_no_body_is_read(guarded: str, line: str) -> None:
    lines = ("Content-Length: 1000000000", "Expect: 100-continue", line)
    with begin(guarded, "PUT", "/datasets/d/files/a", *lines) as connection:
        response = rest(connection)
    assert response.startswith(b"HTTP/1.1 401 ")
    assert b"100 Continue" not in response


def test_a_service_with_a_token_has_any_host_name(guarded: str) -> None:
    assert request(guarded, "/datasets", {"Host": "datasets.default.svc:8080", **BEARER}).status == 200


def test_a_service_without_a_token_answers_for_names_of_this_machine_only(served: str) -> None:
    for host in ("localhost", "LOCALHOST:8080", "127.0.0.1", "127.0.0.1:80", "[::1]", "[::1]:8080", "127.1.2.3:8080"):
        assert request(served, "/datasets", {"Host": host}).status == 200, host
    for host in [
        *("evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example", "127.0.0.1:80.evil"),
        *("", "10.0.0.1", "[::2]", "localhost:", "0.0.0.0", "2130706433", "localhost@evil", "127.0.0.1:x"),
    ]:
        for path in ("/datasets", "/healthz"):  # a page whose name resolves to this machine can read nothing
            answer = request(served, path, {"Host": host})
            assert (answer.status, bool(answer.error)) == (421, True), host


def test_pages_of_other_sites_can_change_nothing(dataset: Dataset) -> None:
    dataset.put("a", b"1")
    for site in ("cross-site", "same-site", "anything"):
        headers = {"Sec-Fetch-Site": site}
        for method, path in [
            ("PUT", "/files/a"),
            ("DELETE", ""),
            ("DELETE", "/files/a"),
            ("PUT", "?unpack=1"),
            ("POST", "/files"),
        ]:
            assert dataset.ask(method, path, b"x", headers).status == 403
        assert ask(dataset.address, "POST", "/datasets", b"{}", headers).status == 403
        assert dataset.get("a", headers).body == b"1"
    for fine in ("same-origin", "none"):
        assert dataset.put("a", b"2", {"Sec-Fetch-Site": fine}).status == 200


# Metrics


def test_requests_are_counted_by_method_route_and_status(dataset: Dataset) -> None:
    def count(method: str, status: int, name: str = "requests_total") -> float:
        labels = f'method="{method}",route="/datasets/{{name}}/files/{{path}}"'
        return metric(dataset.address, f"{name}{{{labels}{f',status={chr(34)}{status}{chr(34)}' if status else ''}}}")

    kinds = [("PUT", 200), ("GET", 200), ("GET", 404), ("PUT", 0)]
    names = ["requests_total"] * 3 + ["request_seconds_count"]
    before = [count(*kind, name) for kind, name in zip(kinds, names, strict=True)]
    for number in range(3):
        dataset.put(f"{number}", b"12345")
    dataset.get("0")
    ask(dataset.address, "GET", f"/dataset/{dataset.name}/files/none")
    after = [count(*kind, name) for kind, name in zip(kinds, names, strict=True)]
    assert [now - then for now, then in zip(after, before, strict=True)] == [3, 1, 1, 3]
    text = ask(dataset.address, "GET", "/metrics")
    assert text.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert dataset.name not in text.body.decode(), "names would make ever new series"
    assert list(text_string_to_metric_families(text.body.decode()))


def test_bytes_of_bodies_are_counted(dataset: Dataset) -> None:
    names = ("received_bytes_total", "sent_bytes_total")
    received, sent = (metric(dataset.address, name) for name in names)
    dataset.put("a", b"x" * 3_000_000)
    for _ in range(2):
        dataset.get("a")
    assert metric(dataset.address, names[0]) - received == 3_000_000
    assert 6_000_000 <= metric(dataset.address, names[1]) - sent < 7_000_000  # with the metrics themselves
    assert metric(dataset.address, "requests_in_flight") == 1  # this one
    assert metric(dataset.address, "free_bytes") > 0


def test_strange_requests_make_no_series_of_their_own(served: str) -> None:
    def num_series() -> int:
        return len(ask(served, "GET", "/metrics").body.splitlines())

    def strange(number: int) -> None:
        ask(served, f"METHOD{number}", "/datasets")
        ask(served, "GET", f"/nothing/{number}")
        request(served, "/datasets", {"Host": f"evil{number}"})

    strange(0)
    before = num_series()
    for number in range(1, 20):
        strange(number)
    assert num_series() == before
