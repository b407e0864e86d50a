"""S3 by s3fs: what obstore cannot do, such as odd keys, versions, access points, and processes that were forked.

Only s3fs's client is used, by ``call_s3``. Its readers wait forever after a fault, put zeros where bytes are missing
and mix versions; its listings leave out what it may not see.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import re
import threading
from collections.abc import Callable, Coroutine, Generator, Iterator
from typing import Any, TypeVar

import fsspec.asyn
import s3fs
from aiobotocore.httpsession import AIOHTTPSession
from aiobotocore.session import AioSession
from botocore.handlers import add_expect_header
from botocore.loaders import create_loader

from ..core.notices import say
from ..core.options import StorageOptions
from ..core.urls import key_as_path, redact, split_version
from ..errors import (
    AccessDeniedError,
    ExpiredCredentialsError,
    ObjectNotFoundError,
    StorageError,
    UrlError,
)
from .clouds.s3 import options_for_s3fs, source_of_options
from .errors import details_of, from_library, mark_host_known, network_error, translate_errors, unusable_response
from .folder_walk import ByFolders
from .http import range_header, span_of
from .multipart import WRITER_ID, ConditionalWriter
from .network import MAX_CONNECTIONS
from .protocol import (
    CONNECT_TIMEOUT_S,
    Answer,
    Entry,
    Page,
    UnsupportedRequestError,
    for_if_match,
    normalized_etag,
    stat_if_allowed,
)

_PIECE_BYTES = 1 << 20  # of a body, at most: what has arrived
_KEEPS_UPLOADS = (
    "does not list or abort multipart uploads: parts of unfinished objects stay stored, invisible and billed. Remove "
    "them by the store's own means, such as a lifecycle rule"
)
_CHECKSUM = re.compile("ETag|Checksum[A-S]")
T = TypeVar("T")
_loader = functools.cache(create_loader)  # also of forked children: each session would read a megabyte of JSON

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=fsspec.asyn.reset_lock)  # fsspec's own hook leaves the lock as it was


class _Session(AIOHTTPSession):  # type: ignore[misc]
    """Follows no redirects: aiohttp would send the session token to the other host.

    botocore follows those of AWS to another region. From other stores it would ask for the region without end.
    """

    async def _get_session(self, proxy_url: str | None) -> Any:
        session = await super()._get_session(proxy_url)
        vars(session).setdefault("request", functools.partial(session.request, allow_redirects=False))
        return session

    async def send(self, request: Any) -> Any:
        response = await super().send(request)
        if 300 < response.status_code < 309 and "x-amz-bucket-region" not in response.headers:
            target = redact(response.headers.get("location", "nowhere")).partition("?")[0]  # may be signed
            raise StorageError(
                f"The store redirects to {target}. Redirects are not followed: set endpoint_url to the right address."
            )
        return response


def _connected(options: StorageOptions, url: str, read_timeout_s: float) -> Any:
    """Return s3fs's filesystem."""
    keywords = options_for_s3fs(options, url)
    profile = keywords.pop("profile", None)
    session = keywords.pop("session", None) or AioSession(profile=profile)
    session.register_component("data_loader", _loader())
    session.unregister("before-call.s3", add_expect_header)  # aiohttp waits for 100 Continue without a time limit
    if "region" in keywords:
        keywords["client_kwargs"] = {"region_name": keywords.pop("region")} | (keywords.get("client_kwargs") or {})
    config = {
        "retries": {"mode": "standard", "total_max_attempts": 1},
        "connect_timeout": CONNECT_TIMEOUT_S,
        "read_timeout": read_timeout_s,
        "max_pool_connections": MAX_CONNECTIONS,
        "request_checksum_calculation": "when_required",
        "response_checksum_validation": "when_required",
        "http_session_cls": _Session,
        **(keywords.pop("config_kwargs", None) or {}),
    }
    filesystem: Any = s3fs.S3FileSystem(**keywords, session=session, config_kwargs=config, skip_instance_cache=True)
    filesystem.retries = 1  # of s3fs, above those of botocore
    return filesystem


def _from_s3fs(error: Exception, url: str, *, writing: bool = False) -> Exception:
    """Convert an error of s3fs, which has botocore's as its cause."""
    cause = error.__cause__ if isinstance(error, OSError) else None
    return from_library(cause if isinstance(cause, Exception) else error, url, writing=writing)


def _named(path: str) -> dict[str, Any]:
    """Return botocore's arguments that name an object: its key and, if the path has one, its version."""
    key, version = split_version(path)
    return {"Key": key} if version is None else {"Key": key, "VersionId": version}


class S3fsStore(ByFolders):
    """One bucket.

    Args:
        bucket: its name, or the ARN of an access point.
        options: of s3fs.
        read_timeout_s: seconds without a byte after which a request fails.
    """

    def __init__(self, bucket: str, options: StorageOptions, read_timeout_s: float) -> None:
        self._bucket, self._root = bucket, f"s3://{bucket}"
        self._make = functools.partial(_connected, options, self._root, read_timeout_s)
        self._source = source_of_options(options)
        self._lock = threading.RLock()
        self._filesystem = self._make()
        self.metadata = dict((options.get("s3_additional_kwargs") or {}).get("Metadata") or {})  # of what is written
        self.supports_conditional_writes = True  # until the store refuses If-None-Match

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
        for is_last in (False, True):
            filesystem = self._filesystem
            try:
                with translate_errors(self.url(path), _from_s3fs, writing=writing):
                    call = filesystem._call_s3(name, filesystem.req_kw, Bucket=self._bucket, **arguments)
                    response: dict[str, Any] = _run(call)
                break
            except ExpiredCredentialsError:
                if is_last:
                    raise
                with self._lock:
                    if self._filesystem is filesystem:  # no other thread has replaced it
                        self._filesystem = self._make()
            except AccessDeniedError as error:
                error.args = (f"{error}{self._source}",)
                raise
        mark_host_known(self._root)
        if writing and not (response.get("ETag") or response.get("UploadId")):
            raise unusable_response(self.url(path), f"{name} has no usable answer: is it the page of a proxy?")
        return response

    def read(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        wanted = {**_named(path), "Range": range_header(start, end), "IfMatch": for_if_match(etag)}
        given: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None}
        response = self.request("get_object", path, **given)
        body, about, url = response["Body"], response["ResponseMetadata"], self.url(path)
        try:
            first, after, total = span_of(about["HTTPStatusCode"], about["HTTPHeaders"], path, url)
        except BaseException:
            _close(body)
            raise
        chunks = _chunks(body, after - first, url)
        next(chunks)  # begin it: one that was not begun does not close the body
        return Answer(first, after, total, normalized_etag(response.get("ETag")), chunks)

    def stat(self, path: str) -> Entry:
        found = self.request("head_object", path, **_named(path))
        return _entry(path, found["ContentLength"], found)

    def attributes(self, path: str) -> dict[str, Any]:
        """Return the metadata that an object is stored with."""
        return dict(self.request("head_object", path, **_named(path)).get("Metadata", {}))

    def find(self, path: str) -> Entry | None:
        key, version = split_version(path)
        if version is None:
            page = self._page(key, {"MaxKeys": 1})  # a key sorts before all keys that it is a prefix of
            found = next((one for one in page.entries if one.path == path), None)
            if found is not None or page.next_token is None:
                return found
        return stat_if_allowed(self, path)  # some servers list in another order

    def list_page(self, prefix: str, *, recursive: bool, token: str | None, after: str = "") -> Page:
        more: dict[str, Any] = {} if recursive else {"Delimiter": "/"}
        if token is not None:
            more["ContinuationToken"] = token
        elif after:
            more["StartAfter"] = after
        return self._page(prefix, more)

    def _page(self, prefix: str, more: dict[str, Any]) -> Page:
        """Request a page, without markers of folders (empty objects whose key ends with a slash)."""
        is_zonal = self._bucket.endswith("--x-s3")  # directory buckets list by folders only
        listed = prefix[: prefix.rfind("/") + 1] if is_zonal else prefix
        found = self.request("list_objects_v2", prefix, Prefix=listed, **more)
        is_last = found.get("IsTruncated") is False
        following = None if is_last else found.get("NextContinuationToken")
        if not is_last and following in (None, more.get("ContinuationToken")):
            # botocore parses an empty body as an empty listing
            what = "does not say whether it is the last one" if following is None else "names itself as the next one"
            raise unusable_response(self.url(prefix), f"a page of the listing {what}")
        entries = [
            _entry(key_as_path(one["Key"]), one["Size"], one)
            for one in found.get("Contents", ())
            if one["Size"] or not one["Key"].endswith("/")
        ]
        return Page(entries, following, [one["Prefix"] for one in found.get("CommonPrefixes", ())])

    # Writing

    def create(self, path: str, *, overwrite: bool) -> _Writer:
        return _Writer(self, path, self._key(path), overwrite=overwrite)

    def delete(self, path: str) -> None:
        self.request("delete_object", path, Key=self._key(path))

    def _key(self, path: str) -> str:
        """Return the key to write."""
        key, version = split_version(path)
        if version is not None:
            url = self.url(path)
            raise UrlError(f"{url}: a version of an object is neither written nor deleted. Leave it out.", url=url)
        return key

    def remove_leftovers(self, prefix: str, is_ours: Callable[[str], bool]) -> None:
        self.remove_unfinished(prefix, lambda key, _: "/" not in key[len(prefix) :] and is_ours(key.rpartition("/")[2]))

    def remove_unfinished(self, prefix: str, is_left: Callable[[str, float | None], bool]) -> None:
        """Abort the unfinished uploads below a prefix that ``is_left`` selects by key and time (seconds since 1970)."""
        more: dict[str, Any] = {}
        with self._if_supported():
            while True:
                found = self.request("list_multipart_uploads", prefix, Prefix=prefix, **more)
                for upload in found.get("Uploads", ()):
                    began = upload.get("Initiated")
                    if is_left(upload["Key"], None if began is None else began.timestamp()):
                        self.abort_upload(upload["Key"], upload["UploadId"])
                if not found.get("IsTruncated"):
                    return
                more = {"KeyMarker": found["NextKeyMarker"], "UploadIdMarker": found["NextUploadIdMarker"]}

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
            say("keeps uploads", self._root, f"{self._root} {_KEEPS_UPLOADS} ({error})")


class _Writer(ConditionalWriter[dict[str, Any]]):
    """An object that is being written: by one request if it is small, else in parts."""

    def __init__(self, store: S3fsStore, path: str, key: str, *, overwrite: bool) -> None:
        super().__init__(store, path, overwrite=overwrite)
        self._store, self._key = store, key
        self._metadata = {**store.metadata, WRITER_ID: self._id}

    def _send(self, name: str, **arguments: Any) -> dict[str, Any]:
        return self._store.request(name, self._path, writing=True, Key=self._key, **arguments)

    def _put(self, data: bytearray) -> None:
        self._end("put_object", len(data), Body=bytes(data), Metadata=self._metadata)

    def _start_upload(self) -> str:
        made = self._repeat(lambda: self._send("create_multipart_upload", Metadata=self._metadata))
        return str(made["UploadId"])

    def _send_part(self, upload_id: str, number: int, start: int, data: bytearray) -> dict[str, Any]:
        about = {"UploadId": upload_id, "PartNumber": number, "Body": bytes(data)}
        made = self._repeat(lambda: self._send("upload_part", **about), len(data))
        return {"PartNumber": number, **{name: one for name, one in made.items() if _CHECKSUM.match(name)}}

    def _complete(self, upload_id: str) -> None:
        if self._buffer:
            self._submit_part()
        parts = {"Parts": self._wait_for_parts()}
        self._end("complete_multipart_upload", 0, UploadId=upload_id, MultipartUpload=parts)

    def _end(self, name: str, num_bytes: int, **arguments: Any) -> None:
        def send(is_new: bool) -> None:
            self._send(name, **arguments, **({"IfNoneMatch": "*"} if is_new else {}))

        self._publish(send, num_bytes)

    def _discard(self, upload_id: str) -> None:
        self._repeat(lambda: self._store.abort_upload(self._key, upload_id))


def _entry(path: str, size: int, found: dict[str, Any]) -> Entry:
    modified = found.get("LastModified")
    seconds = None if modified is None else float(int(modified.timestamp()))  # whole ones, as in HEAD
    return Entry(path, size, normalized_etag(found.get("ETag")), seconds)


def _chunks(body: Any, num_bytes: int, url: str) -> Generator[memoryview, None, None]:
    """Yield an empty piece, and the bytes of a body as they arrive."""
    try:
        yield memoryview(b"")
        while num_bytes > 0:
            try:
                piece = _run(body.read(min(num_bytes, _PIECE_BYTES)))
            except Exception as error:  # also one of aiohttp that carries the status 400, which is not the server's
                raise network_error(url, f"{type(error).__name__}: {error}", details_of(error)) from error
            if not piece:
                raise network_error(url, "the body ended early", "")
            num_bytes -= len(piece)
            yield memoryview(piece)
    finally:
        _close(body)


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
