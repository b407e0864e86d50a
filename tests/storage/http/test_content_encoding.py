"""Objects stored with a Content-Encoding are refused by every transport, unless the name has its extension."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from typing import Any

import pytest
from torch.utils.data.datapipes.iter import IterableWrapper

from tests.servers.s3 import S3Server
from tests.servers.scripted import Request, Response, scripted
from torchdata_remote import Backend, RetryPolicy, ShardWriter, stream_shards
from torchdata_remote.core.options import FetchOptions, StorageOptions
from torchdata_remote.errors import ContentEncodingError
from torchdata_remote.fetch.session import FetchSession
from torchdata_remote.fetch.streams import stream_objects
from torchdata_remote.storage.http.content_encoding import require_unencoded

DATA = b"\xff\xd8 a picture" * 50
STORED = gzip.compress(DATA)
TRANSPORTS = {
    "s3 by obstore": ("s3://bucket/{}", Backend.OBSTORE),
    "s3 by botocore": ("s3://bucket/{}", Backend.BOTOCORE),
    "s3 by s3fs": ("s3://bucket/{}", Backend.FSSPEC),
    "http by obstore": ("{url}/d/{}", Backend.AUTOMATIC),
    "http by urllib3": ("{url}/d/{}?x=1", Backend.AUTOMATIC),
    "http by fsspec": ("{url}/d/{}", Backend.FSSPEC),
    "service by obstore": ("datasets://{host}/d/{}", Backend.AUTOMATIC),
}
EACH = pytest.mark.parametrize("transport", TRANSPORTS)


def read(transport: str, server_url: str, name: str) -> bytes:
    template, backend = TRANSPORTS[transport]
    url = template.format(name, url=server_url, host=server_url.removeprefix("http://"))
    options: dict[str, Any] = {"endpoint_url": server_url, "key": "k", "secret": "s"} if url.startswith("s3") else {}
    fetch = FetchOptions(retry=RetryPolicy(first_wait_s=0, max_attempts=3), backend=backend)
    [(_, stream)] = stream_objects([url], FetchSession(fetch, StorageOptions(options)))
    with stream:
        return stream.read()


def stored_as(encoding: str, data: bytes = STORED) -> Callable[[Request], Response]:
    def respond(request: Request) -> Response:
        response = Response.of_object(request, data)
        return Response(response.status, response.body, {**response.headers, "Content-Encoding": encoding})

    return respond


@EACH
def test_an_encoded_object_is_refused_at_once(transport: str) -> None:
    """The error names the header, and no encoded byte is returned."""
    with scripted(stored_as("gzip")) as server:
        with pytest.raises(ContentEncodingError, match=r"cat\.jpg has Content-Encoding: gzip"):
            read(transport, server.url, "cat.jpg")
        assert sum(request.method == "GET" for request in server.requests) == 1


@EACH
@pytest.mark.parametrize("name", ["0.tar.gz", "0.tar"])
def test_encoded_bytes_are_read_if_the_name_has_their_extension(transport: str, name: str) -> None:
    """``0.tar.gz`` stored with Content-Encoding gzip is a gzip file under either reading of the header."""
    with scripted(stored_as("gzip")) as server:
        assert read(transport, server.url, name) == STORED


@EACH
@pytest.mark.parametrize("encoding", ["aws-chunked", "AWS-Chunked, identity", "UTF-8", "utf-8", "binary", "none"])
def test_content_encodings_without_meaning_are_accepted(transport: str, encoding: str) -> None:
    """Uploads by some clients leave ``aws-chunked`` behind, and users write the name of a charset there."""
    with scripted(stored_as(encoding, DATA)) as server:
        assert read(transport, server.url, "cat.jpg") == DATA


@EACH
def test_every_transport_requests_identity(transport: str) -> None:
    """A server that compresses on demand does not compress."""
    with scripted(lambda request: Response.of_object(request, DATA)) as server:
        assert read(transport, server.url, "cat.jpg") == DATA
        requested = {request.headers.get("accept-encoding", "identity") for request in server.requests}
        assert requested == {"identity"}


@pytest.mark.parametrize(
    ("encoding", "path"),
    [("br", "a.jpg"), ("gzip, gzip", "a.tar.gz"), ("zstd", "a.tar.gz"), ("gzip", "a.jpg?name=.gz"), ("x-gzip", "gz")],
)
def test_a_name_with_the_extension_of_another_encoding_is_refused(encoding: str, path: str) -> None:
    with pytest.raises(ContentEncodingError, match="http://host/a"):
        require_unencoded(encoding, path, "http://host/a?secret=canary")


def test_compressed_shards_with_content_encoding_are_read_from_s3(moto: S3Server) -> None:
    """Shards named .tar.gz that a tool uploaded with Content-Encoding gzip."""
    bucket, client = moto.new_bucket(), moto.client()
    with ShardWriter(f"s3://{bucket}/{{shard}}.tar.gz", storage_options=moto.storage_options) as writer:
        for number in range(5):
            writer.write({"__key__": f"{number}", "txt": str(number)})
    for found in client.list_objects_v2(Bucket=bucket)["Contents"]:
        body = client.get_object(Bucket=bucket, Key=found["Key"])["Body"].read()
        if found["Key"].endswith(".gz"):
            client.put_object(Bucket=bucket, Key=found["Key"], Body=body, ContentEncoding="gzip")
    client.put_object(Bucket=bucket, Key="cat.jpg", Body=STORED, ContentEncoding="gzip")
    samples = stream_shards(f"s3://{bucket}/", pattern="*.tar.gz", seed=None, storage_options=moto.storage_options)
    assert [sample["txt"] for sample in samples] == [str(number).encode() for number in range(5)]
    for backend in (Backend.OBSTORE, Backend.BOTOCORE, Backend.FSSPEC):
        source = IterableWrapper([f"s3://{bucket}/cat.jpg"])
        with pytest.raises(ContentEncodingError):
            list(source.async_prefetch(backend=backend, storage_options=moto.storage_options).file_reader())


@pytest.mark.parametrize(
    ("encoding", "path"),
    [("gzip", "a/0.TGZ"), ("X-Gzip", "0.json.gz?x=1"), ("zstd, aws-chunked", "0.tar.zst"), ("", "a"), (None, "a")],
)
def test_a_name_with_the_extension_of_the_encoding_is_accepted(encoding: str | None, path: str) -> None:
    require_unencoded(encoding, path, "http://host/a")
