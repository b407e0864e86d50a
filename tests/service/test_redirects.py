"""A service that redirects reads to signed URLs: they are followed without the token, and never shown."""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Callable
from pathlib import Path

import fsspec
import pytest
from torch.utils.data.datapipes.iter import IterableWrapper

pytest.importorskip("starlette", reason="the service is not installed: pip install torchdata_remote[service]")

import torchdata_remote as tdr
from tests.servers.scripted import Request, Response, scripted
from tests.support.service_clients import sha256
from tests.support.transfers import read_tree
from torchdata_remote.errors import AccessDeniedError, ObjectChangedError, RemoteDataError

TOKEN, SIGNATURE = "canary-token-long-enough", "canary-signature"
ONCE = tdr.RetryPolicy(max_attempts=1)
DATA = bytes(range(256)) * 8_000  # is fetched by itself, not in a batch


def read(url: str) -> bytes:
    options = {"token": TOKEN}
    pipe = IterableWrapper([url]).async_prefetch(storage_options=options, retry=ONCE, part_bytes=1_000_000)
    return b"".join(b"".join(stream.parts()) for _, stream in pipe)


@pytest.mark.parametrize("name", ["a.bin", "%20 å.bin"])
def test_reads_follow_a_redirect_without_the_token_and_errors_show_no_signature(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    refusals: list[int] = []

    def bucket(request: Request) -> Response:
        assert SIGNATURE in request.target
        if request.target.startswith("/x"):  # once more, to itself
            return Response(307, b"", {"Location": f"{store.url}/y?X-Amz-Signature={SIGNATURE}"})
        return Response(refusals[0], b"<Error/>") if refusals else Response.of_object(request, DATA)

    with scripted(bucket) as store, caplog.at_level(logging.DEBUG):
        listed = {"path": name, "size": len(DATA), "etag": '"1"', "modified": None, "sha256": sha256(DATA)}

        def respond(request: Request) -> Response:
            if request.method == "HEAD":
                return Response.of_object(request, DATA)
            if "/files/" in request.target and request.method == "GET":
                return Response(302, b"", {"Location": f"{store.url}/x?X-Amz-Signature={SIGNATURE}"})
            return Response(200, json.dumps({"files": [listed], "folders": [], "next": None}).encode())

        with scripted(respond) as service:
            url = f"datasets://{service.url.partition('://')[2]}/d"
            assert read(f"{url}/{name}") == DATA
            fs = fsspec.filesystem("datasets", token=TOKEN)
            assert fs.cat_file(f"{url}/{name}") == DATA
            tdr.pull(url, tmp_path / "t", storage_options={"token": TOKEN}, retry=ONCE)
            assert read_tree(tmp_path / "t") == {name: DATA}
            shown: list[str] = []
            attempts: list[Callable[[], object]] = [
                lambda: read(f"{url}/{name}"),
                lambda: tdr.pull(url, tmp_path / "u", storage_options={"token": TOKEN}, retry=ONCE),
            ]
            for status, kind in ((403, AccessDeniedError), (412, ObjectChangedError), (500, RemoteDataError)):
                refusals[:] = [status]
                for attempt in attempts:
                    with pytest.raises(kind) as caught:
                        attempt()
                    shown += [repr(caught.value), *traceback.format_exception(caught.value)]
            assert all("authorization" in request.headers for request in service.requests)
        assert store.requests
        assert not [request for request in store.requests if "authorization" in request.headers]
    assert "canary" not in "".join([*shown, caplog.text])
