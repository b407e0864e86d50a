"""S3 by s3fs: what obstore cannot do, such as odd keys, versions, access points, and processes that were forked.

Only s3fs's client is used, by ``call_s3``. Its readers wait forever after a fault, put zeros where bytes are missing
and mix versions; its listings leave out what it may not see.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import logging
import os
import re
import threading
import time
import uuid
from collections.abc import Callable, Coroutine, Generator, Iterator
from functools import partial
from typing import Any, TypeVar

import fsspec.asyn
import s3fs
from aiobotocore.httpsession import AIOHTTPSession
from aiobotocore.session import AioSession
from botocore.handlers import add_expect_header

from ..core.object_version import key_as_path, same_etag, split_version
from ..core.options import RetryPolicy, StorageOptions
from ..core.retry import call_with_retries
from ..core.urls import redact
from ..errors import (
    AccessDeniedError,
    ExpiredCredentialsError,
    ObjectExistsError,
    ObjectNotFoundError,
    StorageError,
    TransientStorageError,
    UrlError,
)
from .errors import from_status, translate_errors
from .folder_walk import page_after
from .http import parse_content_length, parse_content_range, range_header, require_unencoded
from .network import ENVIRONMENT
from .network_errors import details_of, mark_host_known, network_error, unusable_response
from .paging import every_page
from .protocol import Answer, Entry, Page, UnsupportedRequestError, for_if_match, normalized_etag
from .s3.credential_source import source_of_options
from .s3.session import options_for_s3fs
from .s3.versions import botocore_error, named, require_current

_PIECE_BYTES, _PIECE_S = 1 << 20, 0.5  # of a body, that the loop reads before it hands them over
_PART_BYTES, _PARTS_PER_SIZE = 16 << 20, 700  # S3 takes 10,000 parts: growing up to 224 MiB, they hold 1 TiB
_SLOW_BYTES_PER_S = 1 << 20  # an upload that is faster is not reported as slow
_WRITER = "torchdata-remote-upload"  # name of the metadata by which a writer recognises its object
_ANSWERED_BY = {"create_multipart_upload": "UploadId"} | dict.fromkeys(
    ("put_object", "upload_part", "complete_multipart_upload"), "ETag"
)
_KEEPS_UPLOADS = (
    "does not list or abort multipart uploads: parts of unfinished objects stay stored, invisible and billed. Remove "
    "them by the store's own means, such as a lifecycle rule"
)
_CHECKS_BEFORE_WRITING = (
    "refuses If-None-Match: whether an object exists is checked before it is written, and one that another process "
    "writes at the same moment is replaced"
)
_AWS_BY_HTTP = re.compile(r"http://[^/]+\.amazonaws\.com(\.cn)?[:/]", re.IGNORECASE)
_CUSTOMER_KEY = "x-amz-server-side-encryption-customer-key"
_REDIRECTS = (301, 302, 303, 307, 308)
T = TypeVar("T")
_log = logging.getLogger("torchdata_remote")

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=fsspec.asyn.reset_lock)  # fsspec's own hook leaves the lock as it was


class _Session(AIOHTTPSession):  # type: ignore[misc]
    """Follows no redirects: aiohttp would send the session token to the other host.

    botocore follows those of AWS to another region. From other stores it would ask for the region without end.
    """

    async def _get_session(self, proxy_url: str | None) -> Any:
        session = await super()._get_session(proxy_url)
        vars(session).setdefault("request", partial(session.request, allow_redirects=False))
        return session

    async def send(self, request: Any) -> Any:
        response = await super().send(request)
        if response.status_code in _REDIRECTS and "x-amz-bucket-region" not in response.headers:
            target = redact(response.headers.get("location", "nowhere")).partition("?")[0].partition("#")[0]
            raise StorageError(
                f"The store redirects to {target}. Redirects are not followed: set endpoint_url to the right address."
            )
        return response


def _arguments(options: StorageOptions, url: str, read_timeout_s: float) -> dict[str, Any]:
    """Return the arguments of s3fs's filesystem."""
    keywords = options_for_s3fs(options, url)
    profile = keywords.pop("profile", None)
    session = keywords.pop("session", None) or AioSession(profile=profile)
    session.unregister("before-call.s3", add_expect_header)  # aiohttp waits for 100 Continue without a time limit
    session.register("before-call.s3", _require_https)
    if "region" in keywords:
        keywords["client_kwargs"] = {"region_name": keywords.pop("region")} | (keywords.get("client_kwargs") or {})
    config = {
        "retries": {"mode": "standard", "total_max_attempts": 1},
        "connect_timeout": ENVIRONMENT.connect_timeout_s,
        "read_timeout": read_timeout_s,
        "max_pool_connections": ENVIRONMENT.max_connections,
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
        "http_session_cls": _Session,
        **(keywords.get("config_kwargs") or {}),
    }
    return {**keywords, "session": session, "config_kwargs": config, "skip_instance_cache": True}


def _filesystem(arguments: dict[str, Any]) -> Any:
    filesystem: Any = s3fs.S3FileSystem(**arguments)
    filesystem.retries = 1  # of s3fs, above those of botocore
    return filesystem


def _require_https(params: dict[str, Any], **_: Any) -> None:
    """Refuse to send a key of the user (SSE-C) in the clear to AWS, which would not accept it."""
    if _AWS_BY_HTTP.match(params["url"]) is not None and _CUSTOMER_KEY in params["headers"]:
        raise UrlError(
            "SSECustomerKey is sent with each request, and AWS accepts it by https only. Leave out use_ssl=False, or "
            "set the endpoint to https://."
        )


def _from_s3fs(error: Exception, url: str, *, writing: bool = False) -> Exception:
    """Convert an error of s3fs, which has botocore's as its cause, or of botocore."""
    cause = error.__cause__ if isinstance(error, OSError) else None
    return botocore_error(cause if isinstance(cause, Exception) else error, url, writing=writing)


class S3fsStore:
    """One bucket.

    Args:
        bucket: its name, or the ARN of an access point.
        options: of s3fs.
        read_timeout_s: seconds without a byte after which a request fails.
    """

    may_ignore_ranges = False
    maps_files = False

    def __init__(self, bucket: str, options: StorageOptions, read_timeout_s: float) -> None:
        self._bucket, self._root = bucket, f"s3://{bucket}"
        self._make: Callable[[], Any] = lambda: _filesystem(_arguments(options, self._root, read_timeout_s))
        self._source = source_of_options(options)
        self._in_order = not bucket.endswith("--x-s3")  # directory buckets list by folders, and from the start only
        self._lock = threading.RLock()
        self._warned = set[str]()
        self._filesystem = self._make()
        self.metadata = dict((options.get("s3_additional_kwargs") or {}).get("Metadata") or {})  # of what is written
        self.has_conditions = True  # until the store refuses If-None-Match

    def url(self, path: str) -> str:
        """URL of an object, for errors."""
        return f"{self._root}/{path}"

    def request(self, name: str, path: str, *, writing: bool = False, **arguments: Any) -> dict[str, Any]:
        """Send one request; once more with other credentials if they have expired.

        Args:
            name: of botocore's method.
            path: of the object, for errors.
            writing: whether 412 says that the object exists.
            arguments: of the method. Those of the options are added.
        """
        filesystem = self._filesystem
        try:
            return self._send(filesystem, name, path, writing, arguments)
        except ExpiredCredentialsError:
            with self._lock:
                if self._filesystem is filesystem:  # no other thread has replaced it
                    self._filesystem = self._make()
            return self._send(self._filesystem, name, path, writing, arguments)
        except AccessDeniedError as error:
            error.args = (f"{error}{self._source}",)
            raise

    def _send(self, filesystem: Any, name: str, path: str, writing: bool, arguments: dict[str, Any]) -> dict[str, Any]:
        with translate_errors(_from_s3fs, self.url(path), writing=writing):
            call = filesystem._call_s3(name, filesystem.req_kw, Bucket=self._bucket, **arguments)
            response: dict[str, Any] = _run(call)
        mark_host_known(self._root)
        needed = _ANSWERED_BY.get(name)
        if needed is not None and not response.get(needed):
            raise unusable_response(self.url(path), f"{name} was answered without {needed}: is it the page of a proxy?")
        return response

    def read(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        arguments = named(path)
        if (wanted := range_header(start, end)) is not None:
            arguments["Range"] = wanted
        if (expected := for_if_match(etag)) is not None:
            arguments["IfMatch"] = expected
        response = self.request("get_object", path, **arguments)
        body, url, received = response["Body"], self.url(path), normalized_etag(response.get("ETag"))
        try:
            about = response["ResponseMetadata"]
            headers = about["HTTPHeaders"]
            require_unencoded(headers.get("content-encoding"), path, url)
            length = parse_content_length(headers.get("content-length"))
            content_range = headers.get("content-range")
            first, after, total = parse_content_range(about["HTTPStatusCode"], content_range, length, url)
            if total is None:
                total = self._size(path, received)
        except BaseException:
            _close(body)
            raise
        chunks = _chunks(body, after - first, url)
        next(chunks)  # begin it: one that was not begun does not close the body
        return Answer(first, after, total, received, chunks)

    def _size(self, path: str, etag: str | None) -> int:
        """Size of the object, if the response to a range does not say it."""
        entry = self.stat(path)
        if entry.size is None or not same_etag(etag, entry.etag):
            raise unusable_response(self.url(path), f"the store does not send the size of the version {etag}")
        return entry.size

    def stat(self, path: str) -> Entry:
        found = self.request("head_object", path, **named(path))
        return _entry(path, found.get("ContentLength"), found)

    def find(self, path: str) -> Entry | None:
        return self.find_first(path, 1)[0]

    def find_first(self, path: str, limit: int) -> tuple[Entry | None, Page]:
        key, version = split_version(path)
        if version is not None:
            try:
                return self.stat(path), Page([], None)
            except ObjectNotFoundError:
                return None, Page([], None)
        more = {"MaxKeys": limit} if self._in_order else {}
        for page in self._pages(key, more):
            if page.entries or page.folders:
                break
        entry = next((one for one in page.entries if one.path == path), None)
        # A key sorts before all keys that it is a prefix of. But some servers list in another order
        if entry is None and page.next_token is not None and key and not key.endswith("/"):
            entry = self._stat_if_allowed(path)
        return entry, page

    def _stat_if_allowed(self, path: str) -> Entry | None:
        """Return an object; ``None`` if it is missing, or the store only allows to list it."""
        try:
            return self.stat(path)
        except (TransientStorageError, ExpiredCredentialsError):
            raise
        except StorageError:
            return None

    def list_page(self, prefix: str, *, recursive: bool, token: str | None, after: str = "") -> Page:
        more: dict[str, Any] = {} if recursive else {"Delimiter": "/"}
        if token is not None:
            more["ContinuationToken"] = token
        elif after and self._in_order:
            more["StartAfter"] = split_version(after)[0]
        return self._page(prefix, more)

    def _pages(self, prefix: str, more: dict[str, Any]) -> Iterator[Page]:
        def request(token: str | None) -> Page:
            return self._page(prefix, more if token is None else {**more, "ContinuationToken": token})

        return every_page(request, self.url(prefix))

    def _page(self, prefix: str, more: dict[str, Any]) -> Page:
        """Request a page, without markers of folders (empty objects whose key ends with a slash)."""
        listed = prefix if self._in_order else prefix[: prefix.rfind("/") + 1]
        found = self.request("list_objects_v2", prefix, Prefix=listed, **more)
        if "IsTruncated" not in found or (found["IsTruncated"] and not found.get("NextContinuationToken")):
            # botocore parses an empty body as an empty listing
            raise unusable_response(self.url(prefix), "a page of the listing does not say whether it is the last one")
        entries = [
            _entry(key_as_path(one["Key"]), one["Size"], one)
            for one in found.get("Contents", ())
            if one["Size"] or not one["Key"].endswith("/")
        ]
        folders = [one["Prefix"] for one in found.get("CommonPrefixes", ())]
        return Page(entries, found["NextContinuationToken"] if found["IsTruncated"] else None, folders)

    def list_after(self, prefix: str, *, recursive: bool, after: str, limit: int) -> Page:
        """Return a page like ``FolderStore.list_after``, from a listing of the whole folder."""
        folders = partial(self._pages, more={"Delimiter": "/"})
        return page_after(folders, prefix, after, recursive=recursive, limit=limit)

    def create(self, path: str, *, overwrite: bool) -> _Writer:
        require_current(path, self.url(path))
        return _Writer(self, path, overwrite=overwrite)

    def delete(self, path: str) -> None:
        require_current(path, self.url(path))
        self.request("delete_object", path, **named(path))

    def remove_leftovers(self, prefix: str, is_ours: Callable[[str], bool]) -> None:
        more: dict[str, Any] | None = {}
        with self._if_supported():
            while more is not None:
                found = self.request("list_multipart_uploads", prefix, Prefix=prefix, **more)
                for upload in found.get("Uploads", ()):
                    key = upload["Key"]
                    if "/" not in key[len(prefix) :] and is_ours(key.rpartition("/")[2]):
                        self.abort_upload(key, upload["UploadId"])
                markers = "KeyMarker", "UploadIdMarker"
                more = {name: found[f"Next{name}"] for name in markers} if found.get("IsTruncated") else None

    def abort_upload(self, key: str, upload_id: str) -> None:
        """Delete the parts of an upload. They stay if the store, or these credentials, do not allow it."""
        with self._if_supported():
            self.request("abort_multipart_upload", key, Key=key, UploadId=upload_id)

    @contextlib.contextmanager
    def _if_supported(self) -> Iterator[None]:
        try:
            yield
        except ObjectNotFoundError:
            pass  # completed or aborted since; rclone's response if there are no uploads
        except (AccessDeniedError, UnsupportedRequestError) as error:
            self.warn_once(_KEEPS_UPLOADS, error)

    def warn_once(self, what: str, error: StorageError) -> None:
        """Warn of a feature that this store does not support, and of the consequences."""
        if what not in self._warned:
            self._warned.add(what)
            _log.warning("%s %s (%s)", self._root, what, error)


class _Writer:
    """An object that is being written: one request for a small one, parts one after the other for a large one.

    It carries the id of its writer as metadata. By that its writer recognises it after a response was lost.
    """

    def __init__(self, store: S3fsStore, path: str, *, overwrite: bool) -> None:
        self._store, self._path, self._overwrite = store, path, overwrite
        self._key, self._url, self._id = split_version(path)[0], store.url(path), uuid.uuid4().hex
        self._buffer = bytearray()
        self._upload_id: str | None = None
        self._parts: list[dict[str, Any]] = []

    def write(self, data: bytes) -> None:
        view = memoryview(data).cast("B")
        while view:
            part_bytes = _PART_BYTES * max(1, len(self._parts) // _PARTS_PER_SIZE)
            if len(self._buffer) == part_bytes:  # kept until more bytes arrive, so that ``commit`` has a last part
                self._send_part()
            room = part_bytes - len(self._buffer)
            self._buffer += view[:room]
            view = view[room:]

    def commit(self) -> None:
        if self._upload_id is None:
            self._publish("put_object", Body=bytes(self._buffer), Metadata=self._metadata())
        else:
            self._send_part()
            parts = {"Parts": self._parts}
            self._publish("complete_multipart_upload", UploadId=self._upload_id, MultipartUpload=parts)
        self._buffer, self._upload_id = bytearray(), None

    def abort(self) -> None:
        self._buffer = bytearray()
        if self._upload_id is not None:
            upload_id, self._upload_id = self._upload_id, None
            self._retried(lambda: self._store.abort_upload(self._key, upload_id))

    def _metadata(self) -> dict[str, str]:
        return {**self._store.metadata, _WRITER: self._id}

    def _send_part(self) -> None:
        if self._upload_id is None:
            self._upload_id = self._call("create_multipart_upload", Metadata=self._metadata())["UploadId"]
        number, data, self._buffer = len(self._parts) + 1, bytes(self._buffer), bytearray()
        found = self._call("upload_part", UploadId=self._upload_id, PartNumber=number, Body=data)
        checksums = {name: one for name, one in found.items() if name[:8] == "Checksum" and name != "ChecksumType"}
        self._parts.append({"PartNumber": number, "ETag": found["ETag"], **checksums})

    def _call(self, name: str, **arguments: Any) -> dict[str, Any]:
        send = partial(self._store.request, name, self._path, writing=True, Key=self._key, **arguments)
        return self._retried(send, len(arguments.get("Body", b"")))

    def _retried(self, send: Callable[[], T], num_bytes: int = 0) -> T:
        return call_with_retries(send, RetryPolicy(), url=self._url, expected_s=num_bytes / _SLOW_BYTES_PER_S)

    def _publish(self, name: str, **arguments: Any) -> None:
        """Send the request that makes the object visible, on condition that none exists if need be."""
        if self._overwrite:
            self._make_visible(name, arguments)
            return
        self._require_absent()  # some stores ignore the condition, and send no error
        if self._store.has_conditions:
            try:
                self._make_visible(name, {**arguments, "IfNoneMatch": "*"})
            except UnsupportedRequestError as error:
                self._store.has_conditions = False
                self._store.warn_once(_CHECKS_BEFORE_WRITING, error)
            else:
                return
            self._require_absent()
        self._make_visible(name, arguments)

    def _require_absent(self) -> None:
        if self._retried(lambda: self._store.find(self._path)) is not None:
            raise from_status(412, "", self._url, writing=True)

    def _make_visible(self, name: str, arguments: dict[str, Any]) -> None:
        """Send the request. A refusal may be due to the own object: aiohttp, too, sends again what it has sent."""

        def send() -> None:
            try:
                self._store.request(name, self._path, writing=True, Key=self._key, **arguments)
            except (ObjectExistsError, ObjectNotFoundError):
                if not self._is_visible():
                    raise

        self._retried(send, len(arguments.get("Body", b"")))

    def _is_visible(self) -> bool:
        try:
            found = self._store.request("head_object", self._path, Key=self._key)
        except (ObjectNotFoundError, AccessDeniedError):  # a writer may have no right to read
            return False
        return found.get("Metadata", {}).get(_WRITER) == self._id  # type: ignore[no-any-return]


def _entry(path: str, size: int | None, found: dict[str, Any]) -> Entry:
    modified = found.get("LastModified")
    seconds = float(int(modified.timestamp())) if isinstance(modified, dt.datetime) else None  # whole ones, as in HEAD
    return Entry(path, size, normalized_etag(found.get("ETag")), seconds)


def _chunks(body: Any, num_bytes: int, url: str) -> Generator[memoryview, None, None]:
    """Yield an empty piece, and the bytes of a body. Those that came before a fault are yielded, too."""
    try:
        yield memoryview(b"")
        while num_bytes > 0:
            piece, fault = _run(_piece(body, num_bytes))
            num_bytes -= len(piece)
            if piece:
                yield memoryview(piece).toreadonly()
            if fault is not None:  # also one of aiohttp that carries the status 400, which is not the server's
                raise network_error(url, f"{type(fault).__name__}: {fault}", details_of(fault)) from fault
    finally:
        _close(body)


async def _piece(body: Any, num_bytes: int) -> tuple[bytearray, Exception | None]:
    """Read up to a MiB of a body, or what came in half a second; with the fault that ended it."""
    piece, until_s = bytearray(), time.monotonic() + _PIECE_S
    try:
        while len(piece) < min(num_bytes, _PIECE_BYTES) and (not piece or time.monotonic() < until_s):
            received = await body.read(min(num_bytes, _PIECE_BYTES) - len(piece))
            if not received:
                return piece, EOFError("the body ended early")
            piece += received
    except Exception as error:  # noqa: BLE001  # raised after the bytes before it
        return piece, error
    return piece, None


def _close(body: Any) -> None:
    fsspec.asyn.get_loop().call_soon_threadsafe(body.close)


def _run(call: Coroutine[Any, Any, T]) -> T:
    """Wait for a call in fsspec's loop. If the wait is interrupted, the call ends too."""
    future = asyncio.run_coroutine_threadsafe(call, fsspec.asyn.get_loop())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise
