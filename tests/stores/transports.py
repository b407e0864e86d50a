"""Each way to read an object over HTTP, from a server whose answers a test writes."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

import torchdata_remote as tdr
from tests.support import objects
from torchdata_remote import Backend

COMMIT = "a" * 40


class Target(NamedTuple):
    """An object of a server."""

    url: str
    options: dict[str, Any]
    backend: Backend = Backend.AUTOMATIC

    def read(self, size: int | None = None, etag: str | None = None, **more: Any) -> bytes:
        url = tdr.RemoteUrl(self.url, size, etag)
        return objects.read(url, self.options, **{"backend": self.backend, "retry": objects.QUICK, **more})


TRANSPORTS: dict[str, tuple[str, dict[str, Any], Backend]] = {
    "s3 by obstore": ("s3://bucket/{name}", {"endpoint_url": "{url}"}, Backend.OBSTORE),
    "s3 by s3fs": ("s3://bucket/{name}", {"endpoint_url": "{url}"}, Backend.FSSPEC),
    "gs by obstore": ("gs://bucket/{name}", {"endpoint_url": "{url}", "token": "anon"}, Backend.OBSTORE),
    "az": (
        "az://box/{name}",
        {"connection_string": "BlobEndpoint={url}/pets;AccountName=pets", "anon": True},
        Backend.AUTOMATIC,
    ),
    "hub": (
        f"hf://datasets/tests/x@{COMMIT}/{{name}}",
        {"endpoint": "{url}", "token": False},
        Backend.AUTOMATIC,
    ),
    "datasets": ("datasets://{host}/d/{name}", {}, Backend.AUTOMATIC),
    "http by obstore": ("{url}/d/{name}", {}, Backend.AUTOMATIC),
    "http by urllib3": ("{url}/d/{name}?x=1", {}, Backend.AUTOMATIC),
}
KEYS = {"key": "k", "secret": "s", "region": "us-east-1"}


def target(transport: str, server_url: str, name: str = "a") -> Target:
    template, options, backend = TRANSPORTS[transport]
    host = server_url.partition("://")[2]
    filled = {
        option: value.format(url=server_url, host=host) if isinstance(value, str) else value
        for option, value in options.items()
    }
    if transport.startswith("s3"):
        filled |= KEYS
    if transport == "datasets" and server_url.startswith("https"):
        filled |= {"secure": True}
    return Target(template.format(name=name, url=server_url, host=host), filled, backend)


def by(*without: str) -> pytest.MarkDecorator:
    """Run a test for each transport but some."""
    return pytest.mark.parametrize("transport", [name for name in TRANSPORTS if name not in without])
