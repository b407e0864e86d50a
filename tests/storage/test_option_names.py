from __future__ import annotations

import socket
from contextlib import closing
from typing import Any

import pytest

import torchdata_remote as tdr
from torchdata_remote.core.options import StorageOptions
from torchdata_remote.errors import UrlError
from torchdata_remote.storage import open_store

CASES = [
    ("s3://b/a", {"endpoint": "x"}, "unknown option 'endpoint' in storage_options; did you mean 'endpoint_url'?"),
    ("s3://b/a", {"aws_access_key_id": "x"}, "'aws_access_key_id' in storage_options; did you mean 'key'?"),
    ("s3://b/a", {"secret_access_key": "x"}, "did you mean 'secret'?"),
    ("s3://b/a", {"region_name": "x"}, "did you mean 'region'?"),
    ("s3://b/a", {"anonymous": True}, "did you mean 'anon'?"),
    ("s3://b/a", {"colour": "x"}, "unknown option 'colour' in storage_options. Known are anon, endpoint_url, key"),
    ("s3://b/a", {"client_kwargs": {"region": "x"}}, "storage_options['client_kwargs']; did you mean 'region_name'?"),
    ("s3://b/a", {"config_kwargs": {"read_timout": 1}}, "['config_kwargs']; did you mean 'read_timeout'?"),
    ("s3://b/a", {"client_kwargs": "x"}, "storage_options['client_kwargs'] must be a dict, got str"),
    ("s3://b/a", {"endpoint_url": "host:80"}, "did you mean 'http://host:80'?"),
    ("https://h/a", {"header": {}}, "did you mean 'headers'?"),
    ("datasets://h:1/d/a", {"tokn": "x"}, "did you mean 'token'?"),
    ("/data/a", {"auto_mkdri": True}, "did you mean 'auto_mkdir'? Local files need none"),
    ("file:///data/a", {"endpont_url": "x"}, "did you mean 'endpoint_url'? Local files need none"),
    ("memory://b/a", {"colour": "x"}, "unknown option 'colour' in storage_options. memory:// needs none"),
]


@pytest.mark.parametrize(("url", "options", "text"), CASES)
def test_an_unknown_option_is_refused_with_a_suggestion(url: str, options: dict[str, Any], text: str) -> None:
    """When the store is opened, so before any request."""
    with pytest.raises(UrlError) as caught:
        open_store(url, StorageOptions(options))
    assert text in str(caught.value)


def test_values_are_not_shown() -> None:
    """They may be credentials."""
    with pytest.raises(UrlError) as caught:
        open_store("s3://b/a", StorageOptions({"acces_key": "SECRET", "client_kwargs": {"tokn": "SECRET"}}))
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize("url", ["/data/a/", "memory://b/a/", "file:///data/a/"])
def test_a_chain_over_local_files_refuses_an_unknown_option_when_it_is_built(url: str) -> None:
    """Their filesystems would ignore it."""
    with pytest.raises(UrlError, match="unknown option 'colour'"):
        tdr.stream_shards(url, storage_options={"colour": "x"})


@pytest.mark.parametrize("build", [tdr.stream_shards, tdr.stream_files])
def test_the_usual_chain_refuses_an_unknown_option_when_it_is_built(build: Any) -> None:
    with pytest.raises(UrlError, match="did you mean 'endpoint_url'"):
        build("s3://b/a/", storage_options={"endpoint": "http://localhost:9000"})


def test_no_request_is_sent() -> None:
    """Not even a connection is made."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        server.settimeout(0)
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        options = {"endpoint_url": address, "key": "k", "secrt": "s"}
        with pytest.raises(UrlError, match="did you mean 'secret'"):
            next(iter(tdr.IterableWrapper(["s3://b/a/"]).list_remote(storage_options=options)))
        with pytest.raises(BlockingIOError):
            server.accept()


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("s3://b/a", {"key": "k", "secret": "s", "requester_pays": True, "use_listings_cache": False}),
        ("s3://b/a", {"anon": True, "config_kwargs": {"signature_version": "s3", "connect_timeout": 1}}),
        ("s3://b/a", {"anon": True, "client_kwargs": {"region_name": "x", "verify": False}}),
        ("https://h/a", {"headers": {"x": "y"}, "simple_links": False}),
        ("memory://a", {"key": "k", "secret": "s", "requester_pays": True}),
        ("memory://a", {"skip_instance_cache": True}),
        ("/data/a", {"auto_mkdir": True, "endpoint_url": "http://host", "client_kwargs": {}}),
        ("/data/a", {"headers": {"x": "y"}, "token": "t"}),
    ],
)
def test_options_that_a_library_knows_are_accepted(url: str, options: dict[str, Any]) -> None:
    """Those of s3fs, its session, client and configuration; for a local path those of other stores in the list too."""
    open_store(url, StorageOptions(options))
