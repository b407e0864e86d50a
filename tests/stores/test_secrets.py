"""Secrets are shown by no text, log, state, sample or error, whatever the store and however it fails."""

from __future__ import annotations

import base64
import json
import logging
import pickle
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

import torchdata_remote as tdr
from tests.servers.scripted import Request, Response, scripted
from tests.support import objects
from tests.support.archive_bytes import pack_tar
from tests.support.objects import text_of
from torchdata_remote import Backend
from torchdata_remote.errors import RemoteDataError

CANARY = "Sup3rS3cretCanary"
KEY_OF_ACCOUNT = "U3VwM3JTM2NyZXRDYW5hcnk="  # base64 of it
COMMIT = "a" * 40

# url, options: {url} is that of a server
STORES: dict[str, tuple[str, dict[str, Any], Backend]] = {
    **{
        f"s3 by {backend.value}": (
            "s3://bucket/0.tar",
            {"endpoint_url": "{url}", "key": f"AKIA{CANARY}", "secret": CANARY, "token": CANARY, "region": "us-east-1"},
            backend,
        )
        for backend in (Backend.OBSTORE, Backend.FSSPEC)
    },
    "s3 by keys of client_kwargs": (
        "s3://bucket/0.tar",
        {
            "client_kwargs": {
                "endpoint_url": "{url}", "aws_access_key_id": "k", "aws_secret_access_key": CANARY,
                "region_name": "us-east-1",
            }
        },
        Backend.AUTOMATIC,
    ),
    "s3 by fallback": (
        "s3://bucket/0.tar",
        {"endpoint_url": "{url}", "fallback_key": f"AKIA{CANARY}", "fallback_secret": CANARY, "region": "us-east-1"},
        Backend.AUTOMATIC,
    ),
    "s3 by a key of the user": (
        "s3://bucket/0.tar",
        {
            "endpoint_url": "{url}", "key": "k", "secret": CANARY, "region": "us-east-1",
            "s3_additional_kwargs": {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": CANARY.encode() + bytes(15)},
        },
        Backend.AUTOMATIC,
    ),
    "gs by obstore": ("gs://bucket/0.tar", {"endpoint_url": "{url}", "token": CANARY}, Backend.OBSTORE),
    "az by key": (
        "az://box/0.tar",
        {"connection_string": f"BlobEndpoint={{url}}/pets;AccountName=pets;AccountKey={KEY_OF_ACCOUNT}"},
        Backend.AUTOMATIC,
    ),
    "az by SAS": (
        "az://box/0.tar",
        {"connection_string": "BlobEndpoint={url}/pets;AccountName=pets", "sas_token": f"sv=1&sig={CANARY}"},
        Backend.AUTOMATIC,
    ),
    "hub": (f"hf://datasets/tests/x@{COMMIT}/0.tar", {"endpoint": "{url}", "token": CANARY}, Backend.AUTOMATIC),
    "datasets": ("datasets://{host}/d/0.tar", {"token": CANARY}, Backend.AUTOMATIC),
    "http": ("{url}/0.tar", {"headers": {"Authorization": f"Bearer {CANARY}"}}, Backend.AUTOMATIC),
    "http by urllib3": ("{url}/0.tar", {"headers": {"Private-Token": CANARY}}, Backend.AUTOMATIC),
    "a signed URL": (f"{{url}}/0.tar?X-Amz-Signature={CANARY}", {}, Backend.AUTOMATIC),
}  # fmt: skip
KEY_OF_USER = base64.b64encode(CANARY.encode() + bytes(15)).decode()
NOT_IN_REQUESTS = {"s3 by keys of client_kwargs", "az by key"}  # they sign with it


def filled(value: Any, url: str) -> Any:
    if isinstance(value, dict):
        return {name: filled(one, url) for name, one in value.items()}
    return value.format(url=url, host=url.partition("://")[2]) if isinstance(value, str) else value


DATA = pack_tar((f"{number}.txt", b"x") for number in range(3))
FAULTS: dict[str, Callable[[Request], Response]] = {
    "403": lambda request: Response.of_error(403, "AccessDenied"),
    "401": lambda request: Response.of_error(401, "InvalidAuthenticationInfo"),
    "404": lambda request: Response.of_error(404, "NoSuchKey"),
    "500, and the request": lambda request: Response(500, str(request.headers.get("host")).encode()),
    "page of a proxy": lambda request: Response(200, b"<html>log in</html>"),
    "redirect to a failure": lambda request: (
        Response(500) if "x?sig=" in request.target else Response(302, b"", {"Location": f"/x?sig={CANARY}"})
    ),
    "redirect": lambda request: Response(302, b"", {"Location": f"http://127.0.0.1:9/x?sig={CANARY}"}),
}


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def chain(url: str, options: dict[str, Any], backend: Backend, retry: tdr.RetryPolicy = objects.ONCE) -> Any:
    streams = tdr.IterableWrapper([url]).async_prefetch(backend=backend, retry=retry, storage_options=options)
    return streams.shard_tar_reader()


def is_shown(text: str) -> bool:
    return CANARY in text or KEY_OF_ACCOUNT in text or KEY_OF_USER in text


@pytest.fixture(autouse=True)
def _nothing_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.DEBUG, "torchdata_remote"):
        yield
        logged = [one for one in caplog.records if one.name == "torchdata_remote"]
        assert not is_shown(" ".join(f"{one.getMessage()} {one.exc_text}" for one in logged))


def test_texts_states_and_samples_of_a_chain_show_no_secret(store: str) -> None:
    """Although it is sent with each request."""
    template, options, backend = STORES[store]
    with scripted(lambda request: Response.of_object(request, DATA)) as server:
        url, options = filled(template, server.url), filled(options, server.url)
        data = tdr.Resumable(chain(url, options, backend))
        assert not is_shown(f"{tdr.StorageOptions(options)!r} {tdr.StorageOptions(options)} {data!r}")
        samples = []
        for sample in data:
            samples.append(sample)
            assert not is_shown(json.dumps(data.state_dict()))
        assert [sample["txt"] for sample in samples] == [b"x"] * 3
        shown = repr(samples) + repr(pickle.loads(pickle.dumps(samples)))
        assert not is_shown(shown) or store == "a signed URL", "the URL of a sample is that of the user"
        assert is_shown(" ".join(f"{one.target} {one.headers}" for one in server.requests)) or store in NOT_IN_REQUESTS


@pytest.mark.parametrize("fault", FAULTS)
def test_the_error_of_a_store_that_fails_shows_no_secret(store: str, fault: str) -> None:
    """Neither in its message nor in its causes, attributes, traceback and pickle, for reads and listings."""
    template, options, backend = STORES[store]
    with scripted(FAULTS[fault]) as server:
        check_errors(filled(template, server.url), filled(options, server.url), backend)


def test_the_error_of_a_store_that_cannot_be_reached_shows_no_secret(store: str) -> None:
    template, options, backend = STORES[store]
    check_errors(filled(template, "http://127.0.0.1:9"), filled(options, "http://127.0.0.1:9"), backend)


def check_errors(url: str, options: dict[str, Any], backend: Backend) -> None:
    attempts: list[Callable[[], object]] = [
        lambda: list(chain(url, options, backend)),
        lambda: objects.listed(url, options),
    ]
    found: list[RemoteDataError] = []
    for attempt in attempts:
        try:
            attempt()
        except RemoteDataError as error:
            found.append(error)
    assert found
    for one in found:
        assert not is_shown(text_of(one)), one
        rebuilt = pickle.loads(pickle.dumps(one))
        assert (type(rebuilt), str(rebuilt)) == (type(one), str(one))
        assert not is_shown(text_of(rebuilt))


def test_a_password_of_a_proxy_is_in_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, f"http://user:{CANARY}@127.0.0.1:9")
    for url in ("http://host.invalid/0.tar", "http://host.invalid/0.tar?x=1", "s3://bucket/0.tar"):
        options = {"endpoint_url": "http://host.invalid", "key": "k", "secret": "s"} if url[:2] == "s3" else {}
        for backend in (Backend.AUTOMATIC, Backend.FSSPEC):
            with pytest.raises(RemoteDataError) as caught, closing(iter(chain(url, options, backend))) as samples:
                next(samples)
            assert not is_shown(text_of(caught.value))
