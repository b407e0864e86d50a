"""Two services over one bucket, without state of their own, behave as one; reads are redirected to the bucket."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, urlsplit

import pytest

pytest.importorskip("starlette", reason="the service is not installed: pip install torchdata_remote[service]")

import torchdata_remote as tdr
from tests.servers.s3 import S3Server
from tests.servers.service import Service, running_service
from tests.servers.store_server import S3Place, StoreServer
from tests.servers.watched import Exchange, Proxy, running_proxy
from tests.service.conftest import TOKEN
from tests.support.service_clients import JSON, Answer, Dataset, ask, begin, in_tar, sha256, tar_bytes
from tests.support.waiting import wait_for

LARGE = bytes(range(256)) * (80 << 10)  # 20 MiB, which a bucket takes in parts


class Both(NamedTuple):
    """Two services over one folder of a bucket."""

    services: tuple[Service, Service]
    server: StoreServer
    place: str  # URL of its bucket

    def dataset(self) -> tuple[Dataset, Dataset]:
        """A new dataset, as each of them shows it."""
        made = Dataset(self.services[0].address)
        return made, Dataset(self.services[1].address, made.name)

    @property
    def arguments(self) -> tuple[str, ...]:
        """Arguments of one more service."""
        return f"{self.place}/datasets", "--storage-options", json.dumps(self.server.storage_options)

    def all_keys(self) -> list[str]:
        """All keys of the bucket."""
        return self.server.paths(self.place)


@pytest.fixture(scope="module", params=["moto", pytest.param("ceph", marks=pytest.mark.ceph), "azurite", "gcs"])
def both(request: pytest.FixtureRequest) -> Iterator[Both]:
    running: S3Server | StoreServer = request.getfixturevalue(request.param)
    server = S3Place(running) if isinstance(running, S3Server) else running
    place = server.new_place().rstrip("/")
    arguments = (f"{place}/datasets", "--storage-options", json.dumps(server.storage_options))
    first, second = Service(*arguments), Service(*arguments)
    try:
        yield Both((first, second), server, place)
    finally:
        assert (first.stop(), second.stop()) == (0, 0)


def followed(dataset: Dataset, path: str, headers: dict[str, str] | None = None) -> Answer:
    """Read a file by the redirect to the bucket; Google's test server has no credentials that sign."""
    answer = dataset.get(path, headers)
    if "Location" not in answer.headers:
        return answer
    assert (answer.status, answer.body) == (307, b"")
    place = urlsplit(answer.headers["Location"])
    return ask(place.netloc, "GET", f"{place.path}?{place.query}", None, headers)


def test_what_one_service_does_the_other_shows(both: Both) -> None:
    one, other = both.dataset()
    assert one.put("cat/ä 1.txt", b"meow").status == 200
    assert (other.paths(), followed(other, "cat/ä 1.txt").body) == (["cat/ä 1.txt"], b"meow")
    assert one.name in [found["name"] for found in ask(other.address, "GET", "/datasets").json()["datasets"]]
    replaced = other.put("cat/ä 1.txt", b"purr", {"If-Match": one.head("cat/ä 1.txt").headers["etag"]})
    assert (replaced.status, followed(one, "cat/ä 1.txt").body) == (200, b"purr")
    assert one.head("cat/ä 1.txt").headers["etag"] == replaced.headers["etag"]
    assert other.unpack(tar_bytes({"dog/1": b"1", "dog/2": b"2"})).status == 200
    assert in_tar(one.ask("GET").body) == {"cat/ä 1.txt": b"purr", "dog/1": b"1", "dog/2": b"2"}
    assert one.delete("dog/1").status == 204
    assert (other.get("dog/1").status, other.delete("dog/1").status) == (404, 404)
    assert other.ask("DELETE").status == 204
    assert (one.ask("GET").status, one.put("a", b"1").status) == (404, 404)
    assert not [key for key in both.all_keys() if one.name in key]


def test_a_read_is_redirected_for_some_minutes_and_answers_without_a_body_are_not(both: Both) -> None:
    one, other = both.dataset()
    etag = one.put("a", b"0123456789").headers["etag"]
    ranged = followed(other, "a", {"Range": "bytes=2-4", "If-Match": etag})
    assert (ranged.status, ranged.body, ranged.headers["etag"]) == (206, b"234", etag)
    if both.server.name != "gcs":
        redirect = other.get("a")
        assert (redirect.headers["cache-control"], redirect.headers["etag"]) == ("no-store", etag)
        assert "X-Amz-Expires=300" in redirect.headers["Location"] or "se=20" in redirect.headers["Location"]
    assert other.get("a", {"If-None-Match": etag}).status == 304
    assert other.get("a", {"If-Match": '"other"'}).status == 412
    assert other.get("a", {"Range": "bytes=10-"}).status == 416
    assert [other.head("a").status, other.head("none").status, other.get("none").status] == [200, 404, 404]
    assert [other.get("a?versionId=1").status, other.put("a?versionId=1", b"1").status] == [400, 400]
    page = other.get("a", {"Sec-Fetch-Site": "same-origin"})  # which may read from its own host only
    assert (page.status, page.body) == (200, b"0123456789")


def test_of_conditional_writes_by_both_services_one_succeeds(both: Both) -> None:
    for round_ in range(4):
        datasets = both.dataset()
        etag = datasets[0].put("a", b"0").headers["etag"] if round_ % 2 else None
        condition = {"If-None-Match": "*"} if etag is None else {"If-Match": etag}
        together = threading.Barrier(8, timeout=120)

        def write(number: int, datasets: tuple[Dataset, Dataset] = datasets) -> Answer:
            together.wait()  # noqa: B023
            return datasets[number % 2].put("a", b"%d" % number * 1000, condition)  # noqa: B023

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(write, range(8)))
        assert sorted(answer.status for answer in answers) == [200, *[412] * 7]
        (winner,) = (number for number, answer in enumerate(answers) if answer.status == 200)
        assert followed(datasets[1], "a").body == b"%d" % winner * 1000
    large, same = both.dataset()
    assert large.put("b", LARGE, {"If-None-Match": "*"}).status == 200
    assert same.put("b", LARGE, {"If-None-Match": "*"}).status == 412


def test_a_dataset_that_the_other_service_removed_stays_removed(both: Both) -> None:
    for target, is_created_again in itertools.product(("/files/q/r", "?unpack=1"), (False, True)):
        one, other = both.dataset()
        body = tar_bytes({"a": b"1"}) + bytes(3_000_000)
        lines = ("Expect: 100-continue", f"Content-Length: {len(body)}", "Connection: close")
        with begin(one.address, "PUT", f"/datasets/{one.name}{target}", *lines) as connection:
            assert connection.recv(65536).startswith(b"HTTP/1.1 100 ")
            assert other.ask("DELETE").status == 204
            if is_created_again:
                assert ask(other.address, "POST", "/datasets", json.dumps({"name": one.name}), JSON).status == 201
            connection.sendall(body)
            assert connection.recv(65536).startswith(b"HTTP/1.1 404 ")
        if is_created_again:
            assert other.paths() == []
        else:
            assert other.ask("GET").status == 404
        assert len([key for key in both.all_keys() if one.name in key]) == is_created_again


@pytest.mark.parametrize("target", ["/files/x", "?unpack=1"])
def test_a_late_write_to_a_removed_dataset_leaves_the_files_of_the_next_one(both: Both, target: str) -> None:
    one, other = both.dataset()
    body = tar_bytes({"x": b"old"}) if target == "?unpack=1" else b"old" * 100
    lines = (f"Content-Length: {len(body)}", "Connection: close")
    with begin(one.address, "PUT", f"/datasets/{one.name}{target}", *lines, sent=body[:-1]) as connection:
        assert other.ask("DELETE").status == 204
        assert ask(other.address, "POST", "/datasets", json.dumps({"name": one.name}), JSON).status == 201
        assert other.put("x", b"new").status == 200
        connection.sendall(body[-1:])
        assert connection.recv(65536).startswith(b"HTTP/1.1 404 ")
    assert followed(other, "x").body == b"new"


def test_of_two_removals_at_once_one_wins_and_the_other_leaves_the_next_dataset(moto: S3Server) -> None:
    place = f"s3://{moto.new_bucket()}"
    with contextlib.ExitStack() as opened:
        proxies, datasets = list[Proxy](), list[Dataset]()
        for _ in range(2):
            proxies.append(opened.enter_context(running_proxy(moto.endpoint_url.partition("://")[2])))
            options = json.dumps({**moto.storage_options, "endpoint_url": f"http://{proxies[-1].address}"})
            address = opened.enter_context(running_service(place, "--storage-options", options, "--pass-through"))
            datasets.append(Dataset(address, "twice"))
        slow, quick = datasets
        assert quick.put("old", b"1").status == 200
        slow_begins, quick_began, slow_decided, made = (threading.Event() for _ in range(4))

        def removes(exchange: Exchange) -> bool:
            return "list-type" in exchange.target or exchange.method == "DELETE" or "?delete" in exchange.target

        def of_slow(exchange: Exchange) -> None:
            if exchange.method == "PUT":
                slow_begins.set()
                assert quick_began.wait(60)
            elif removes(exchange) and slow_begins.is_set():
                slow_decided.set()
                assert made.wait(60)

        def of_quick(exchange: Exchange) -> None:
            if removes(exchange) and not made.is_set():
                quick_began.set()
                assert slow_decided.wait(60)

        proxies[0].on_request = of_slow
        with ThreadPoolExecutor() as pool:
            first = pool.submit(slow.ask, "DELETE")
            assert slow_begins.wait(60)
            first.add_done_callback(lambda _: slow_decided.set())
            proxies[1].on_request = of_quick
            assert quick.ask("DELETE").status == 204
            proxies[1].forget()
            assert ask(quick.address, "POST", "/datasets", json.dumps({"name": "twice"}), JSON).status == 201
            assert quick.put("new", b"2").status == 200
            made.set()
            assert first.result().status == 404
        assert quick.contents() == {"new": b"2"}


@pytest.mark.slow  # for a minute, nobody can tell whether the service still removes
@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_the_name_of_a_dataset_whose_removal_was_killed_is_free_after_a_minute(moto: S3Server, method: str) -> None:
    place, options = f"s3://{moto.new_bucket()}", json.dumps(moto.storage_options)
    with running_proxy(moto.endpoint_url.partition("://")[2]) as proxy:
        through = json.dumps({**moto.storage_options, "endpoint_url": f"http://{proxy.address}"})
        killed = Service(place, "--storage-options", through)
        dataset = Dataset(killed.address)
        assert dataset.put("a", b"1").status == 200

        def end(exchange: Exchange) -> None:
            if "list-type" in exchange.target:
                killed.kill()
                raise ConnectionError

        proxy.on_request = end
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            dataset.ask("DELETE")
    with running_service(place, "--storage-options", options) as address:

        def status() -> int:
            if method == "DELETE":
                return ask(address, "DELETE", f"/datasets/{dataset.name}").status
            return ask(address, "POST", "/datasets", json.dumps({"name": dataset.name}), JSON).status

        assert status() == {"POST": 503, "DELETE": 404}[method]
        wait_for(lambda: status() in (201, 204), 100)
        assert Dataset(address, dataset.name).paths() == []


def test_digests_are_kept_with_the_files_and_computed_for_those_of_others_when_asked(both: Both) -> None:
    one, other = both.dataset()
    files = {"small": b"small", "large": LARGE}

    def num_beside() -> int:
        return len([key for key in both.all_keys() if f"/sha256/{one.name}/" in key])

    for path, data in files.items():
        assert one.put(path, data).json()["sha256"] == sha256(data)
    assert num_beside() == 1, "beside large"
    assert other.put("large", b"no more").status == 200
    assert num_beside() == 0
    assert one.put("large", LARGE).status == 200
    both.server.put(f"{both.place}/datasets/{one.name}/others", b"of others")
    files["others"] = b"of others"
    assert {one["path"]: one["sha256"] for one in other.page(digests=1)["files"]} == {
        path: sha256(data) for path, data in files.items()
    }


def test_a_dataset_that_others_put_there_is_one(both: Both) -> None:
    both.server.put(f"{both.place}/datasets/foreign/x/1.txt", b"1")
    one, other = (Dataset(service.address, "foreign") for service in both.services)
    assert "foreign" in [found["name"] for found in ask(one.address, "GET", "/datasets").json()["datasets"]]
    assert (one.paths(), other.put("y", b"2").status, one.paths()) == (["x/1.txt"], 200, ["x/1.txt", "y"])
    assert one.ask("DELETE").status == 204
    assert other.ask("GET").status == 404


def test_keys_that_are_no_paths_are_not_listed_and_removed_with_their_dataset(moto: S3Server, tmp_path: Path) -> None:
    place = f"s3://{moto.new_bucket()}"
    for key in ("q/a//b", "q/c", "q/d/e", "q/z"):
        moto.client().put_object(Bucket=place.removeprefix("s3://"), Key=key, Body=b"1")
    options = json.dumps(moto.storage_options)
    with running_service(place, "--storage-options", options, "--pass-through") as address:
        dataset = Dataset(address, "q")
        assert dataset.paths() == ["c", "d/e", "z"]
        assert [one["path"] for one in dataset.page(digests=1)["files"]] == ["c", "d/e", "z"]
        assert in_tar(dataset.ask("GET").body) == dict.fromkeys(["c", "d/e", "z"], b"1")
        assert tdr.pull(dataset.url, tmp_path).num_files == 3
        assert dataset.ask("DELETE").status == 204
        assert S3Place(moto).paths(place) == []
        assert ask(address, "POST", "/datasets", json.dumps({"name": "q"}), JSON).status == 201


def test_a_service_that_is_killed_leaves_complete_files_and_the_other_one_goes_on(both: Both) -> None:
    _, other = both.dataset()
    killed = Service(*both.arguments)
    target = f"/datasets/{other.name}/files/"
    small = begin(killed.address, "PUT", target + "small", "Content-Length: 100", sent=b"x" * 99)
    large = begin(killed.address, "PUT", target + "large", f"Content-Length: {2 * len(LARGE)}", sent=LARGE)
    archive = tar_bytes({f"unpacked/{number:04}": b"%d" % number for number in range(2000)})
    length = f"Content-Length: {len(archive)}"
    unpacking = begin(killed.address, "PUT", f"/datasets/{other.name}?unpack=1", length, sent=archive)
    with small, large, unpacking:
        wait_for(lambda: len(other.paths()) > 10)
        killed.kill()
    found = in_tar(other.ask("GET").body)
    assert all(data == b"%d" % int(path.rpartition("/")[2]) for path, data in found.items())
    for path, data in {"small": b"y", "large": LARGE}.items():
        assert other.put(path, data).status == 200
        assert followed(other, path).body == data
    assert other.ask("DELETE").status == 204


def test_push_and_pull_by_different_services_copy_a_folder_and_show_no_token_to_the_bucket(
    both: Both, tmp_path: Path
) -> None:
    files = {"large": LARGE, **{f"{number % 3}/{number} ü.txt": b"%d" % number for number in range(300)}}
    for path, data in files.items():
        (tmp_path / "source" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "source" / path).write_bytes(data)
    tdr.push(tmp_path / "source", f"datasets://{both.services[0].address}/copied")
    # Not before: its clean-up takes all uploads for old, since moto says that each began in 2010
    (tmp_path / "token").write_text(TOKEN)
    guarded = Service(*both.arguments, "--token-file", str(tmp_path / "token"))
    try:
        url = f"datasets://{guarded.address}/copied"
        pulled = tdr.pull(url, tmp_path / "pulled", storage_options={"token": TOKEN})
        assert pulled.num_files == len(files)
        assert all((tmp_path / "pulled" / path).read_bytes() == data for path, data in files.items())
        target = f"/datasets/copied/files/{quote('1/1 ü.txt')}"
        answer = ask(guarded.address, "GET", target, None, {"Authorization": f"Bearer {TOKEN}"})
        assert TOKEN not in str(answer.headers["Location"])
    finally:
        assert guarded.stop() == 0


def test_the_answer_without_a_bucket_does_not_show_where_it_is(moto: S3Server) -> None:
    place = f"s3://{moto.new_bucket()}"
    with running_proxy(moto.endpoint_url.partition("://")[2]) as proxy:
        options = {**moto.storage_options, "endpoint_url": f"http://{proxy.address}"}
        with running_service(place, "--storage-options", json.dumps(options), "--pass-through") as address:
            dataset = Dataset(address)

            def leave(_: Exchange) -> None:
                raise ConnectionError

            proxy.on_request = leave
            answer = dataset.get("a")
            assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
            assert answer.error == "The bucket of the service does not respond. Send the request again."
            proxy.forget()


@pytest.mark.parametrize("header", ["If-None-Match", "If-Match"])
def test_a_bucket_that_ignores_conditions_is_not_served(
    moto: S3Server, header: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.servers.watched._DROPPED", {"connection", "transfer-encoding", "expect", header.lower()})
    with running_proxy(moto.endpoint_url.partition("://")[2]) as proxy, open(tmp_path / "log", "w") as log:
        options = json.dumps({**moto.storage_options, "endpoint_url": f"http://{proxy.address}"})
        with pytest.raises(RuntimeError, match="did not start"):
            Service(f"s3://{moto.new_bucket()}", "--storage-options", options, stderr=log)
    assert f"ignores {header}" in (tmp_path / "log").read_text()


def test_objects_that_need_a_key_to_be_read_are_sent_by_the_service(both: Both) -> None:
    if both.server.name != "moto":
        pytest.skip("a key of S3, which Ceph takes by https only")
    options = {**both.server.storage_options, "s3_additional_kwargs": {"SSECustomerKey": "k" * 32}}
    service = Service(f"{both.place}/keyed", "--storage-options", json.dumps(options))
    try:
        dataset = Dataset(service.address)
        assert dataset.put("a", b"secret").status == 200
        assert dataset.contents() == {"a": b"secret"}
    finally:
        assert service.stop() == 0
