"""Google Cloud Storage's XML API in front of fake-gcs-server, which has the JSON API, and of the XML API only reads.

fake-gcs-server stores the objects and answers the reads. This process translates what is missing there: writes with
conditions, multipart uploads, copies, listings in pages, ``If-Match``, XML errors, hexadecimal etags. It is as strict
as Google's documentation says: conditions on multipart uploads are not implemented, ``x-amz-`` headers are refused,
an upload's etag is no MD5, and a missing object cannot be deleted.

Run by ``python -m tests.servers.gcs_xml PORT BACKEND_PORT``.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import itertools
import json
import sys
import threading
import time
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, quote, unquote, urlencode
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

_GENERATION_MATCH = "x-goog-if-generation-match"
_META = "x-goog-meta-"
_LAST = "\U0010ffff"
_PAGE = 1000
_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
_HOP_BY_HOP = {"connection", "date", "transfer-encoding", "access-control-allow-origin"}


class ApiError(Exception):
    """An answer of the XML API that is an error."""

    def __init__(self, status: int, code: str, message: str = "") -> None:
        super().__init__(code)
        self.status, self.code, self.message = status, code, message or code


_NO_SUCH_KEY = (404, "NoSuchKey", "The specified key does not exist.")
_PRECONDITION = (412, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold.")


class Upload(NamedTuple):
    """A multipart upload that is neither completed nor aborted."""

    bucket: str
    key: str
    began_s: float
    metadata: dict[str, str]
    parts: dict[int, bytes]


uploads: dict[str, Upload] = {}
composed: set[tuple[str, str, str]] = set()  # bucket, key and generation of objects without MD5
_numbers = itertools.count(1)
_lock = threading.RLock()


class Handler(BaseHTTPRequestHandler):
    """One connection of a client, with one to the server behind."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True
    backend_port: int

    def setup(self) -> None:
        super().setup()
        self._backend = http.client.HTTPConnection("127.0.0.1", self.backend_port)

    def finish(self) -> None:
        self._backend.close()
        with contextlib.suppress(OSError):
            super().finish()

    def handle_expect_100(self) -> bool:
        answered = super().handle_expect_100()
        self.wfile.flush()  # a client waits a second for it
        return answered

    def _serve(self) -> None:
        path, _, query = self.path.partition("?")
        bucket, _, key = path.lstrip("/").partition("/")
        self._bucket, self._key = unquote(bucket), unquote(key)
        self._query = {name: found[0] for name, found in parse_qs(query, keep_blank_values=True).items()}
        self._body = self._read_body()
        try:
            foreign = [name for name in self.headers if name.lower().startswith("x-amz-")]
            if foreign:
                raise ApiError(400, "ExcessHeaderValues", f"Multiple dialects of headers: {foreign}")
            name = f"_{self.command.lower()}_{'object' if self._key else 'bucket'}"
            getattr(self, name, self._not_allowed)()
        except ApiError as error:
            text = f"<Code>{error.code}</Code><Message>{escape(error.message)}</Message>"
            self._send(error.status, f"<?xml version='1.0' encoding='UTF-8'?><Error>{text}</Error>".encode())

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve  # noqa: N815  # names of the base class

    def _read_body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _not_allowed(self) -> None:
        raise ApiError(405, "MethodNotAllowed")

    def _send(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response_only(status)
        for name, value in {
            "Content-Type": "application/xml; charset=UTF-8",
            **(headers or {}),
            "Content-Length": str(len(body)),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _send_xml(self, tag: str, inside: str, headers: dict[str, str] | None = None) -> None:
        text = f"<?xml version='1.0' encoding='UTF-8'?><{tag} xmlns='{_NAMESPACE}'>{inside}</{tag}>"
        self._send(200, text.encode(), headers)

    def _ask(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Send a request to fake-gcs-server."""
        for may_be_stale in (self._backend.sock is not None, False):
            try:
                self._backend.request(method, path, body, headers or {})
                response = self._backend.getresponse()
                data = response.read()
            except (http.client.HTTPException, OSError):
                self._backend.close()
                if not may_be_stale:
                    raise
            else:
                return response.status, {name.lower(): value for name, value in response.getheaders()}, data
        raise AssertionError

    def _require_bucket(self) -> None:
        if self._ask("GET", f"/storage/v1/b/{quote(self._bucket, safe='')}")[0] == 404:
            raise ApiError(404, "NoSuchBucket", "The specified bucket does not exist.")

    # Objects

    def _object(self, key: str, headers: dict[str, str], method: str = "GET") -> tuple[int, dict[str, str], bytes]:
        status, found, data = self._ask(method, f"/{quote(self._bucket, safe='')}/{quote(key, safe='')}", b"", headers)
        if status == 404:
            self._require_bucket()
            raise ApiError(*_NO_SUCH_KEY)
        generation = found.get("x-goog-generation", "")
        md5 = base64.b64decode(found.get("x-goog-hash", "").partition("md5=")[2]).hex()
        found["etag"] = self._etag(key, generation, md5)
        return status, {name: value for name, value in found.items() if name not in _HOP_BY_HOP}, data

    def _etag(self, key: str, generation: str, md5: str) -> str:
        """Return the etag of a version: an MD5, or a text for the generation where there is none."""
        if (self._bucket, key, generation) not in composed:
            return f'"{md5}"'
        return f'"-{base64.b64encode(generation.encode()).decode()}="'

    def _get_object(self) -> None:
        sent = {name: value for name in ("Range", "Accept-Encoding") if (value := self.headers.get(name)) is not None}
        status, headers, data = self._object(self._key, {"Accept-Encoding": "identity", **sent}, self.command)
        wanted = self.headers.get("If-Match")
        if wanted is not None and wanted != headers["etag"]:
            raise ApiError(*_PRECONDITION)
        if status == 416:
            raise ApiError(416, "InvalidRange", "The requested range cannot be satisfied.")
        length = headers.pop("content-length")
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        self.wfile.write(data)

    _head_object = _get_object

    def _conditions(self) -> str:
        wanted = self.headers.get(_GENERATION_MATCH)
        return "" if wanted is None else f"&ifGenerationMatch={wanted}"

    def _metadata(self) -> dict[str, str]:
        return {name.lower()[len(_META) :]: value for name, value in self.headers.items() if _META in name.lower()}

    def _insert(self, data: bytes, metadata: dict[str, str], *, is_composed: bool) -> dict[str, str]:
        """Store an object by the JSON API, atomically and on the conditions of the request."""
        about: dict[str, Any] = {"name": self._key, "metadata": metadata}
        if encoding := self.headers.get("Content-Encoding"):
            about["contentEncoding"] = encoding
        border = "b" + hashlib.sha256(data).hexdigest()
        start = f"--{border}\r\nContent-Type: application/json\r\n\r\n{json.dumps(about)}\r\n--{border}\r\n"
        start += "Content-Type: application/octet-stream\r\n\r\n"
        with _lock:  # no reader sees the generation before its kind is known
            status, _, answer = self._ask(
                "POST",
                f"/upload/storage/v1/b/{quote(self._bucket, safe='')}/o?uploadType=multipart{self._conditions()}",
                start.encode() + data + f"\r\n--{border}--\r\n".encode(),
                {"Content-Type": f"multipart/related; boundary={border}"},
            )
            if status == 412:
                raise ApiError(*_PRECONDITION)
            if status == 404:
                raise ApiError(404, "NoSuchBucket", "The specified bucket does not exist.")
            assert status == 200, answer
            stored = json.loads(answer)
            if is_composed:
                composed.add((self._bucket, self._key, stored["generation"]))
        etag = self._etag(self._key, stored["generation"], base64.b64decode(stored["md5Hash"]).hex())
        return {"ETag": etag, "x-goog-generation": stored["generation"]}

    def _put_object(self) -> None:
        md5 = self.headers.get("Content-MD5")
        if md5 is not None and base64.b64decode(md5) != hashlib.md5(self._body, usedforsecurity=False).digest():
            raise ApiError(400, "BadDigest", "The Content-MD5 you specified did not match what we received.")
        if "uploadId" in self._query:
            return self._put_part()
        source = self.headers.get("x-goog-copy-source")
        if source is None:
            return self._send(200, headers=self._insert(self._body, self._metadata(), is_composed=False))
        bucket, _, key = unquote(source).lstrip("/").partition("/")
        assert bucket == self._bucket
        _, about, data = self._object(key, {"Accept-Encoding": "gzip"})
        metadata = {name[len(_META) :]: value for name, value in about.items() if name.startswith(_META)}
        made = self._insert(data, metadata, is_composed=(bucket, key, about["x-goog-generation"]) in composed)
        return self._send_xml("CopyObjectResult", f"<ETag>{escape(made['ETag'])}</ETag>", made)

    def _delete_object(self) -> None:
        if "uploadId" in self._query:
            with _lock:
                self._upload()
                del uploads[self._query["uploadId"]]
            return self._send(204)
        path = f"/storage/v1/b/{quote(self._bucket, safe='')}/o/{quote(self._key, safe='')}"
        if self._ask("DELETE", path)[0] == 404:
            self._require_bucket()
            raise ApiError(*_NO_SUCH_KEY)
        return self._send(204)

    # Multipart uploads

    def _upload(self) -> Upload:
        upload = uploads.get(self._query["uploadId"])
        if upload is None or (upload.bucket, upload.key) != (self._bucket, self._key):
            raise ApiError(404, "NoSuchUpload", "The requested upload was not found.")
        return upload

    def _put_part(self) -> None:
        self._upload().parts[int(self._query["partNumber"])] = self._body
        digest = hashlib.md5(self._body, usedforsecurity=False).hexdigest()
        self._send(200, headers={"ETag": f'"{digest}"'})

    def _post_object(self) -> None:
        if _GENERATION_MATCH in self.headers or "If-None-Match" in self.headers:
            raise ApiError(400, "NotImplemented", "Preconditions are not supported for multipart uploads.")
        if "uploads" in self._query:
            self._require_bucket()
            upload_id = f"upload/{next(_numbers):08d}+{time.time_ns()}"
            uploads[upload_id] = Upload(self._bucket, self._key, time.time(), self._metadata(), {})
            name = f"<Bucket>{escape(self._bucket)}</Bucket><Key>{escape(self._key)}</Key>"
            return self._send_xml("InitiateMultipartUploadResult", f"{name}<UploadId>{upload_id}</UploadId>")
        with _lock:
            upload = self._upload()
            data = b"".join(upload.parts[number] for number in self._wanted_parts(upload))
            made = self._insert(data, upload.metadata, is_composed=True)
            del uploads[self._query["uploadId"]]
        name = f"<Bucket>{escape(self._bucket)}</Bucket><Key>{escape(self._key)}</Key>"
        return self._send_xml("CompleteMultipartUploadResult", f"{name}<ETag>{escape(made['ETag'])}</ETag>", made)

    def _wanted_parts(self, upload: Upload) -> list[int]:
        numbers = []
        for part in ET.fromstring(self._body).iter():
            if part.tag.rpartition("}")[2] == "Part":
                fields = {field.tag.rpartition("}")[2]: field.text or "" for field in part}
                number = int(fields["PartNumber"])
                digest = hashlib.md5(upload.parts.get(number, b""), usedforsecurity=False).hexdigest()
                if number not in upload.parts or fields["ETag"].strip('"') != digest:
                    raise ApiError(400, "InvalidPart", f"part {number}")
                numbers.append(number)
        return numbers

    # Listings

    def _get_bucket(self) -> None:
        self._require_bucket()
        if "uploads" in self._query:
            return self._list_uploads()
        if self._query.get("list-type") != "2":
            raise ApiError(400, "InvalidArgument", "only list-type=2")
        prefix, delimiter = self._query.get("prefix", ""), self._query.get("delimiter", "")
        after = self._query.get("start-after", "")
        start = after + "\0" if after else ""
        if token := self._query.get("continuation-token"):
            start = base64.urlsafe_b64decode(token).decode()
        limit = min(int(self._query.get("max-keys", _PAGE)), _PAGE)
        rows, folders, following = self._page(prefix, delimiter, start, limit)
        is_encoded = self._query.get("encoding-type") == "url"
        encode = (lambda text: quote(text, safe="/")) if is_encoded else escape
        parts = [f"<Name>{escape(self._bucket)}</Name><Prefix>{encode(prefix)}</Prefix>"]
        parts += ["<EncodingType>url</EncodingType>"] * is_encoded
        parts += [f"<IsTruncated>{str(following is not None).lower()}</IsTruncated>"]
        if following is not None:
            parts += [
                f"<NextContinuationToken>{base64.urlsafe_b64encode(following.encode()).decode()}</NextContinuationToken>"
            ]
        for one in rows:
            etag = self._etag(one["name"], one["generation"], base64.b64decode(one["md5Hash"]).hex())
            fields = f"<Key>{encode(one['name'])}</Key><Generation>{one['generation']}</Generation>"
            fields += f"<MetaGeneration>1</MetaGeneration><LastModified>{one['updated'][:19]}.000Z</LastModified>"
            parts += [f"<Contents>{fields}<ETag>{escape(etag)}</ETag><Size>{one['size']}</Size></Contents>"]
        parts += [f"<CommonPrefixes><Prefix>{encode(one)}</Prefix></CommonPrefixes>" for one in folders]
        return self._send_xml("ListBucketResult", "".join(parts))

    def _page(
        self, prefix: str, delimiter: str, start: str, limit: int
    ) -> tuple[list[dict[str, Any]], list[str], str | None]:
        """Return objects and folders of a page, and the name with which the next one begins."""
        rows: list[dict[str, Any]] = []
        folders: list[str] = []
        while True:
            query = {"prefix": prefix, "startOffset": start, "maxResults": str(limit + 1)}
            _, _, answer = self._ask("GET", f"/storage/v1/b/{quote(self._bucket, safe='')}/o?{urlencode(query)}")
            found = json.loads(answer)
            for one in found.get("items", []):
                name = one["name"]
                if name < start:
                    continue  # in a folder that is listed already
                if len(rows) + len(folders) == limit:
                    return rows, folders, start if folders and start == folders[-1] + _LAST else name
                end = name.find(delimiter, len(prefix)) if delimiter else -1
                if end < 0:
                    rows.append(one)
                    start = name + "\0"
                else:
                    folders.append(name[: end + len(delimiter)])
                    start = folders[-1] + _LAST
            if "nextPageToken" not in found:
                return rows, folders, None

    def _list_uploads(self) -> None:
        prefix = self._query.get("prefix", "")
        after = self._query.get("key-marker", ""), self._query.get("upload-id-marker", "")
        limit = min(int(self._query.get("max-uploads", _PAGE)), _PAGE)
        with _lock:
            found = sorted((one.key, name, one.began_s) for name, one in uploads.items() if one.bucket == self._bucket)
        found = [one for one in found if one[0].startswith(prefix) and one[:2] > after]
        parts = [f"<Bucket>{escape(self._bucket)}</Bucket><IsTruncated>{str(len(found) > limit).lower()}</IsTruncated>"]
        if len(found) > limit:
            key, upload_id, _ = found[limit - 1]
            parts += [f"<NextKeyMarker>{escape(key)}</NextKeyMarker>"]
            parts += [f"<NextUploadIdMarker>{upload_id}</NextUploadIdMarker>"]
        for key, upload_id, began_s in found[:limit]:
            began = datetime.fromtimestamp(began_s, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.000Z")
            parts += [
                f"<Upload><Key>{escape(key)}</Key><UploadId>{upload_id}</UploadId><Initiated>{began}</Initiated></Upload>"
            ]
        self._send_xml("ListMultipartUploadsResult", "".join(parts))

    def log_message(self, *arguments: object) -> None:
        pass


def main() -> None:
    """Serve until the process is ended."""
    port, backend_port = map(int, sys.argv[1:])
    handler = type("Handler", (Handler,), {"backend_port": backend_port})
    server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    server.daemon_threads = True
    server.serve_forever()


if __name__ == "__main__":
    main()
