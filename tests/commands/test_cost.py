"""``torchdata-remote cost`` against what a server counted while the same epochs were read."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs

import pytest

import torchdata_remote as tdr
from tests.servers.s3 import S3Server
from tests.servers.scripted import Request, Response, scripted
from torchdata_remote.cli import main
from torchdata_remote.testing import FaultyStore, write_small_shards

PART_BYTES = 1 << 20


def kinds(requests: Iterable[Any]) -> Counter[str]:
    """Requests by kind: a GET of a bucket is a LIST."""
    found = Counter("list" if "list-type" in parse_qs(seen.query) else seen.method.lower() for seen in requests)
    return Counter({kind: found[kind] for kind in ("list", "get", "head") if found[kind]})


def cost_of(capsys: pytest.CaptureFixture[str], *arguments: str, options: dict[str, Any] | None = None) -> Any:
    capsys.readouterr()
    assert main(["cost", *arguments, "--json", "--storage-options", json.dumps(options or {})]) == 0
    return json.loads(capsys.readouterr().out)


def requests_of(planned: Any) -> Counter[str]:
    return Counter({kind: number for kind, number in planned["requests"].items() if number})


@contextmanager
def recorded(server: S3Server) -> Iterator[tuple[FaultyStore, dict[str, Any]]]:
    """A proxy before a server that records requests, and the options that lead to it."""
    with FaultyStore(server.endpoint_url) as proxy:
        yield proxy, {**server.storage_options, "endpoint_url": proxy.endpoint_url}


def large_shards(url: str, options: dict[str, Any], num_shards: int) -> None:
    """Shards of 3.1 MB, the last one shorter, with a manifest and indexes."""
    template = f"{url}/{{shard:06d}}.tar"
    with tdr.ShardWriter(template, max_shard_samples=10, storage_options=options) as writer:
        for i in range(10 * num_shards - 4):
            writer.write({"__key__": f"{i:04d}", "bin": bytes(310_000)})


def read_epochs(url: Any, options: dict[str, Any], epochs: int = 1, **arguments: Any) -> None:
    pipe = tdr.stream_shards(url, storage_options=options, **arguments)
    for epoch in range(epochs):
        pipe.set_epoch(epoch)
        assert sum(1 for _ in pipe)


@pytest.mark.parametrize("source", ["/", "/index.json", "/{000000..000002}.tar"])
def test_cost_of_shards_is_what_the_server_counts(
    source: str, moto: S3Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """LISTs, GETs and HEADs of two epochs, and the bytes; the size of an object of a brace range is not listed."""
    url = f"s3://{moto.new_bucket()}/shards"
    large_shards(url, moto.storage_options, 3)
    arguments: dict[str, Any] = {"max_in_flight": 64}  # parts of 1.5 MB
    with recorded(moto) as (proxy, options):
        read_epochs(url + source, options, epochs=2, **arguments)
        seen = kinds(proxy.requests)
        planned = cost_of(capsys, url + source, "--epochs", "2", "--max-in-flight", "64", options=options)
    assert requests_of(planned) == seen
    assert planned["num_bytes"] >= 2 * planned["object_bytes"] > 0
    assert planned["num_unknown"] == 0
    assert planned["read_as"] == "shards"


def test_cost_reads_no_objects(moto: S3Server, capsys: pytest.CaptureFixture[str]) -> None:
    """It lists, and asks for sizes that a listing does not have."""
    url = f"s3://{moto.new_bucket()}/shards"
    write_small_shards(url, num_shards=2, samples_per_shard=2, storage_options=moto.storage_options)
    with recorded(moto) as (proxy, options):
        planned = cost_of(capsys, url + "/", options=options)
        planned_of_range = cost_of(capsys, url + "/{000000..000001}.tar", options=options)
        assert not [seen for seen in proxy.requests if seen.path.endswith(".tar") and seen.method == "GET"]
        assert Counter(planned["sent"]) + Counter(planned_of_range["sent"]) == kinds(proxy.requests)


def test_cost_of_shards_split_by_samples_has_the_requests_for_indexes(
    moto: S3Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """One shard for four workers, each of which lists the manifest and reads the index and its range."""
    url = f"s3://{moto.new_bucket()}/shards"
    large_shards(url, moto.storage_options, 1)
    with recorded(moto) as (proxy, options):
        for rank in range(2):
            for worker in range(2):
                read_epochs(f"{url}/index.json", options, world=tdr.World(rank, 2, worker, 2))
        seen = kinds(proxy.requests)
        planned = cost_of(
            capsys, f"{url}/index.json", "--ranks", "2", "--workers", "2", "--listed-by", "worker", options=options
        )
    assert requests_of(planned) == seen


def test_cost_of_a_rank_with_workers_is_what_its_loader_requests(
    moto: S3Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """``stateful_loader`` lists once for its workers, in each epoch; with ``list_once`` in the first one."""
    url = f"s3://{moto.new_bucket()}/shards"
    write_small_shards(url, num_shards=3, samples_per_shard=2, storage_options=moto.storage_options)
    for once in (False, True):
        with recorded(moto) as (proxy, options):
            pipe = tdr.stream_shards(url, storage_options=options)
            loader = tdr.stateful_loader(pipe, batch_size=1, num_workers=2, list_once=once)
            for _ in range(2):
                assert sum(1 for _ in loader) == 6
            seen = kinds(proxy.requests)
            listed_by = "once" if once else "rank"
            planned = cost_of(capsys, url, "--epochs", "2", "--workers", "2", "--listed-by", listed_by, options=options)
        assert requests_of(planned) == seen


def test_cost_of_loose_files_is_a_get_each(moto: S3Server, capsys: pytest.CaptureFixture[str]) -> None:
    """Also of an empty one, and one that has several parts."""
    bucket = moto.new_bucket()
    for name, num_bytes in (("a", 0), ("b", 10), ("c", 3_000_000), ("d", 1)):
        moto.client().put_object(Bucket=bucket, Key=f"f/{name}.bin", Body=bytes(num_bytes))
    with recorded(moto) as (proxy, options):
        for source in ("f/", "f/{a,b}.bin"):
            proxy.requests.clear()
            url = f"s3://{bucket}/{source}"
            assert sum(1 for _ in tdr.stream_files(url, storage_options=options, max_in_flight=128))
            seen = kinds(proxy.requests)
            planned = cost_of(capsys, url, "--max-in-flight", "128", options=options)
            assert requests_of(planned) == seen
            assert planned["read_as"] == "files"


def test_cost_over_http_needs_no_listing(capsys: pytest.CaptureFixture[str]) -> None:
    """The first response reports each size, and then the other parts are requested."""
    data = bytes(3_000_000)

    def respond(request: Request) -> Response:
        if request.method == "HEAD":
            return Response(200, data, {"ETag": '"1"'})
        return Response.of_object(request, data)

    with scripted(respond) as server:
        url = f"{server.url}/{{0..2}}.bin"
        assert sum(1 for _ in tdr.stream_files(url, max_in_flight=128)) == 3
        seen = Counter(request.method.lower() for request in server.requests)
        planned = cost_of(capsys, url, "--max-in-flight", "128")
    assert requests_of(planned) == seen
    assert planned["num_bytes"] == 9_000_000


def test_cost_prints_counts_and_prices(memory_folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Without prices only counts."""
    write_small_shards(memory_folder, num_shards=2, samples_per_shard=3)
    prices = ["--price-get", "400000", "--price-list", "5e6", "--price-gb-out", "1000"]
    assert main(["cost", f"{memory_folder}/", "--epochs", "2", *prices]) == 0
    heading, names, *rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert heading[:3] == [f"{memory_folder}/:", "2", "shards,"]
    assert names == ["number", "price"]
    assert rows[:5] == [
        ["LIST", "2", "10.0000"],
        ["GET", "4", "1.6000"],
        ["HEAD", "0", "0.0000"],
        ["bytes", "28,672", "0.0287"],
        ["total", "11.6287"],
    ]
    assert main(["cost", f"{memory_folder}/"]) == 0
    assert "price" not in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [["--price-get", "-1"], ["--price-list", "free"], ["--price-gb-out", "inf"]])
def test_cost_refuses_a_price_that_is_none(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost", "memory://a/", *wrong]) == 2
    assert wrong[0] in capsys.readouterr().err


def test_cost_reports_the_errors_of_the_epoch(memory_folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty listing, and fewer shards than readers without a manifest."""
    assert main(["cost", f"{memory_folder}/"]) == 1
    assert "no objects found" in capsys.readouterr().err
    write_small_shards(memory_folder, num_shards=2, samples_per_shard=3)
    assert main(["cost", f"{memory_folder}/", "--ranks", "3"]) == 1
    assert "2 shards for 3 readers (3 ranks, 0 workers each): " in capsys.readouterr().err
