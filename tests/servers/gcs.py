"""Google Cloud Storage's XML API, with objects in memory, in a process that tests share.

It is as strict as Google's documentation says: conditions on multipart uploads are not implemented, ``x-amz-`` headers
are refused, an upload's etag is no MD5, a missing object cannot be deleted, and what is stored compressed is
decompressed for clients that do not accept that.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import gzip
import hashlib
import itertools
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, quote, unquote
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

import urllib3

from tests.servers.scripted import Request, Response, scripted

_GENERATION_MATCH = "x-goog-if-generation-match"
_META = "x-goog-meta-"
_PAGE = 1000
_DATE = "2026-11-21T00:00:00.000Z"


class Stored(NamedTuple):
    """A version of an object."""

    data: bytes
    headers: dict[str, str]  # of its responses


class Upload(NamedTuple):
    """A multipart upload that is neither completed nor aborted."""

    bucket: str
    key: str
    headers: dict[str, str]
    parts: dict[int, bytes]


class _Refused(Exception):  # noqa: N818  # an answer
    """A request is an error."""

    def __init__(self, status: int, code: str) -> None:
        super().__init__(code)
        self.answer = Response.of_error(status, code)


class _Gcs:
    """All objects."""

    def __init__(self) -> None:
        self.buckets: dict[str, dict[str, Stored]] = {}
        self.uploads: dict[str, Upload] = {}
        self.numbers = itertools.count(1)
        self.lock = threading.RLock()

    def respond(self, request: Request) -> Response:
        try:
            with self.lock:
                return _Exchange(self, request).answer()
        except _Refused as refused:
            return refused.answer


class _Exchange:
    """A request, and its answer."""

    def __init__(self, gcs: _Gcs, request: Request) -> None:
        self.gcs, self.headers, self.body, self.request = gcs, request.headers, request.body, request
        path, _, query = request.target.partition("?")
        self.bucket, _, self.key = map(unquote, path.lstrip("/").partition("/"))
        self.query = {name: found[0] for name, found in parse_qs(query, keep_blank_values=True).items()}

    def answer(self) -> Response:
        if any(name.startswith("x-amz-") for name in self.headers):
            raise _Refused(400, "ExcessHeaderValues")
        if self.request.method == "PUT" and not self.key:
            self.gcs.buckets[self.bucket] = {}
            return Response()
        if self.bucket not in self.gcs.buckets:
            raise _Refused(404, "NoSuchBucket")
        self.objects = self.gcs.buckets[self.bucket]
        method = {"HEAD": "GET"}.get(self.request.method, self.request.method).lower()
        kind = "upload" if {"uploads", "uploadId"} & self.query.keys() else "object" if self.key else "bucket"
        answer: Response = getattr(self, f"_{method}_{kind}")()
        return answer

    # Objects

    def _object(self, key: str) -> Stored:
        if key not in self.objects:
            raise _Refused(404, "NoSuchKey")
        return self.objects[key]

    def _get_object(self) -> Response:
        data, headers = self._object(self.key)
        if self.headers.get("if-match", headers["ETag"]) != headers["ETag"]:
            raise _Refused(412, "PreconditionFailed")
        if headers.get("Content-Encoding") == "gzip" and "gzip" not in self.headers.get("accept-encoding", ""):
            return Response(200, gzip.decompress(data), {"ETag": headers["ETag"]})
        span = self.headers.get("range", "bytes=0-")[6:]
        if span != "0-" and int(span.partition("-")[0]) >= len(data):
            raise _Refused(416, "InvalidRange")
        found = Response.of_object(self.request, data)
        return Response(found.status, found.body, {**found.headers, **headers})

    def _store(self, data: bytes, headers: dict[str, str], *, is_composed: bool) -> dict[str, str]:
        """Store an object on the condition of the request, and return the headers of its version."""
        present = self.objects[self.key].headers["x-goog-generation"] if self.key in self.objects else "0"
        if self.headers.get(_GENERATION_MATCH, present) != present:
            raise _Refused(412, "PreconditionFailed")
        generation = f"{next(self.gcs.numbers)}"
        etag = f"-{base64.b64encode(generation.encode()).decode()}=" if is_composed else _md5(data).hex()
        self.objects[self.key] = Stored(data, {**headers, "ETag": f'"{etag}"', "x-goog-generation": generation})
        return self.objects[self.key].headers

    def _kept(self) -> dict[str, str]:
        return {
            name.title() if name == "content-encoding" else name: value
            for name, value in self.headers.items()
            if name == "content-encoding" or name.startswith(_META)
        }

    def _put_object(self) -> Response:
        if base64.b64decode(self.headers.get("content-md5", "")) not in (b"", _md5(self.body)):
            raise _Refused(400, "BadDigest")
        source = self.headers.get("x-goog-copy-source")
        if source is None:
            return Response(200, b"", self._store(self.body, self._kept(), is_composed=False))
        data, headers = self._object(unquote(source).lstrip("/").partition("/")[2])
        made = self._store(data, headers, is_composed=headers["ETag"].startswith('"-'))
        return _xml("CopyObjectResult", f"<ETag>{escape(made['ETag'])}</ETag>")

    def _delete_object(self) -> Response:
        self._object(self.key)
        del self.objects[self.key]
        return Response(204)

    # Multipart uploads

    def _upload(self) -> Upload:
        upload = self.gcs.uploads.get(self.query["uploadId"])
        if upload is None or (upload.bucket, upload.key) != (self.bucket, self.key):
            raise _Refused(404, "NoSuchUpload")
        return upload

    def _put_upload(self) -> Response:
        self._upload().parts[int(self.query["partNumber"])] = self.body
        return Response(200, b"", {"ETag": f'"{_md5(self.body).hex()}"'})

    def _delete_upload(self) -> Response:
        self._upload()
        del self.gcs.uploads[self.query["uploadId"]]
        return Response(204)

    def _post_upload(self) -> Response:
        if {_GENERATION_MATCH, "if-none-match"} & self.headers.keys():
            raise _Refused(400, "NotImplemented")
        if "uploads" in self.query:
            name = f"upload/{next(self.gcs.numbers):08d}"
            self.gcs.uploads[name] = Upload(self.bucket, self.key, self._kept(), {})
            return _xml("InitiateMultipartUploadResult", f"<UploadId>{name}</UploadId>")
        upload, data = self._upload(), b""
        for part in ET.fromstring(self.body).iterfind("{*}Part"):
            one = upload.parts.get(int(part.findtext("{*}PartNumber", "")), b"")
            if part.findtext("{*}ETag", "").strip('"') != _md5(one).hex():
                raise _Refused(400, "InvalidPart")
            data += one
        made = self._store(data, upload.headers, is_composed=True)
        del self.gcs.uploads[self.query["uploadId"]]
        return _xml("CompleteMultipartUploadResult", f"<ETag>{escape(made['ETag'])}</ETag>")

    def _get_upload(self) -> Response:
        """The list of them, in one page."""
        found = [
            f"<Upload><Key>{escape(one.key)}</Key><UploadId>{name}</UploadId><Initiated>{_DATE}</Initiated></Upload>"
            for name, one in self.gcs.uploads.items()
            if one.bucket == self.bucket and one.key.startswith(self.query.get("prefix", ""))
        ]
        return _xml("ListMultipartUploadsResult", f"<IsTruncated>false</IsTruncated>{''.join(found)}")

    # Listings

    def _get_bucket(self) -> Response:
        prefix, delimiter = self.query.get("prefix", ""), self.query.get("delimiter", "")
        start = self.query.get("continuation-token") or self.query.get("start-after", "")
        rows, more, last = dict[str, str](), "", ""
        encode = quote if self.query.get("encoding-type") == "url" else escape
        for key in sorted(key for key in self.objects if key.startswith(prefix) and key > start):
            end = key.find(delimiter, len(prefix)) if delimiter else -1
            name = key if end < 0 else key[: end + 1]
            if len(rows) == _PAGE and name not in rows:
                more = f"<NextContinuationToken>{escape(last)}</NextContinuationToken>"
                break
            last, (data, headers) = key, self.objects[key]
            rows[name] = (
                f"<Contents><Key>{encode(key)}</Key><Size>{len(data)}</Size><LastModified>{_DATE}</LastModified>"
                f"<ETag>{escape(headers['ETag'])}</ETag></Contents>"
            )
            if end >= 0:
                rows[name] = f"<CommonPrefixes><Prefix>{encode(name)}</Prefix></CommonPrefixes>"
        kind = "<EncodingType>url</EncodingType>" * (encode is quote)
        flag = f"<IsTruncated>{str(bool(more)).lower()}</IsTruncated>"
        return _xml("ListBucketResult", f"{kind}{flag}{more}{''.join(rows.values())}")


def _md5(data: bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()


def _xml(tag: str, inside: str) -> Response:
    text = f"<?xml version='1.0' encoding='UTF-8'?><{tag} xmlns='http://s3.amazonaws.com/doc/2006-03-01/'>"
    return Response(200, f"{text}{inside}</{tag}>".encode(), {"Content-Type": "application/xml; charset=UTF-8"})


@dataclasses.dataclass(frozen=True)
class GcsServer:
    """A running server. Objects are put, read and deleted by plain requests.

    Args:
        url: of it.
        requests_to: where this package sends its requests; empty for ``url``.
    """

    url: str
    requests_to: str = ""
    name: str = "gcs"
    can_write: bool = True

    @property
    def endpoint_url(self) -> str:
        return self.requests_to or self.url

    @property
    def storage_options(self) -> dict[str, Any]:
        return {"endpoint_url": self.endpoint_url, "token": "anon"}

    def through(self, endpoint_url: str) -> GcsServer:
        return dataclasses.replace(self, requests_to=endpoint_url)

    def new_place(self) -> str:
        place = f"gs://test-{uuid.uuid4().hex[:12]}"
        self.put(place, b"")
        return place

    def _ask(self, method: str, url: str, body: bytes = b"", query: str = "", **headers: str) -> bytes:
        bucket, _, key = url.partition("://")[2].partition("/")
        path = f"{self.url}/{bucket}/{quote(key, safe='')}"  # urllib3 would resolve dots between slashes
        headers = {"Accept-Encoding": "gzip", **headers}
        answer = _pool().request(method, path + query, body=body, headers=headers, decode_content=False)
        if answer.status == 404:
            raise FileNotFoundError(path)
        assert answer.status < 300, (method, path, answer.status, answer.data)
        return answer.data

    def put(self, url: str, data: bytes, **headers: str) -> None:
        self._ask("PUT", url, data, **headers)

    def get(self, url: str) -> bytes:
        return self._ask("GET", url)

    def delete(self, url: str) -> None:
        self._ask("DELETE", url)

    def paths(self, place: str) -> list[str]:
        found, after = list[str](), ""
        while True:
            page = ET.fromstring(self._ask("GET", place, query=f"?list-type=2&start-after={quote(after)}"))
            found += [one.text or "" for one in page.iterfind("{*}Contents/{*}Key")]
            if page.findtext("{*}IsTruncated") == "false":
                return found
            after = found[-1]


@functools.cache
def _pool() -> urllib3.PoolManager:
    return urllib3.PoolManager(maxsize=16)


@contextmanager
def gcs_server(folder: Path) -> Iterator[GcsServer]:
    """Run it until the block ends."""
    with scripted(_Gcs().respond, keeps=False) as server:
        yield GcsServer(server.url)
