"""Write to a dataset service: one PUT for a small file, several for a large one."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import itertools
import secrets
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from ...errors import ObjectExistsError, ObjectNotFoundError, RemoteDataError, StorageError
from ..multipart import MultipartWriter
from .client import ServiceRequests
from .fields import byte_count, text
from .json_body import page_limits
from .listing import MAX_PAGE
from .protocol import digest_field

T = TypeVar("T")
_COMPLETE_TIMEOUT_S = 600.0  # the service joins the parts and compares the digest before it answers
_SHA256 = "sha-256=:"
_PROGRESS = page_limits(MAX_PAGE)  # an upload has as many parts at most


class _Source:
    """Pieces of a body, and the error that ended them."""

    def __init__(self, pieces: Iterable[memoryview]) -> None:
        self._pieces = pieces
        self.error: RemoteDataError | None = None

    def __iter__(self) -> Iterator[memoryview]:
        try:
            yield from self._pieces
        except RemoteDataError as error:
            self.error = error
            raise


class UploadRequests(ServiceRequests):
    """The requests that write files on one host. None is retried."""

    def put(self, path: str, data: bytes | bytearray, *, sha256: str, overwrite: bool = True) -> str:
        """Store a small file in one request.

        Args:
            path: ``NAME/PATH``; the dataset must exist.
            data: all of it.
            sha256: in hex; the service compares it.
            overwrite: whether an existing file is replaced.

        Returns:
            Its etag.

        Raises:
            ObjectNotFoundError: if there is no such dataset.
            ObjectExistsError: if the file exists and ``overwrite`` is ``False``.
        """
        headers = {"Repr-Digest": digest_field(sha256), **({} if overwrite else {"If-None-Match": "*"})}
        target = self._client.file_target(path)
        response = self._client.request_json("PUT", target, path, headers=headers, body=data, writing=True)
        with self._client.expecting("etag", path):
            return text(response["etag"])

    def put_part(
        self,
        path: str,
        upload_id: str,
        start: int,
        data: bytes | bytearray | Iterable[memoryview],
        total_bytes: int | None,
        *,
        sha256: str | None,
        overwrite: bool = True,
        num_bytes: int | None = None,
    ) -> str | None:
        """Store a part of a file. The file becomes visible when all parts are stored, in whatever order they arrive.

        Args:
            path: ``NAME/PATH``; the dataset must exist.
            upload_id: the caller's choice: 8 to 64 letters, digits, ``_`` and ``-``.
            start: the part's first byte.
            data: the part, of at least one byte, or its pieces. If the connection breaks, the service keeps what it
                received.
            total_bytes: of the file, if known.
            sha256: of the whole file, in hex, for the part that completes it.
            overwrite: whether an existing file is replaced; checked when a part completes the file.
            num_bytes: of the part, if ``data`` are pieces.

        Returns:
            The etag, if the file is complete.
        """
        if isinstance(data, bytes | bytearray):
            num_bytes = len(data)
        if not num_bytes:
            raise ValueError(f"{self._client.url(path)}: a part of an upload has at least one byte.")
        total = "*" if total_bytes is None else total_bytes
        headers = {
            "Content-Range": f"bytes {start}-{start + num_bytes - 1}/{total}",
            "Content-Length": str(num_bytes),
        }
        if sha256 is not None:
            headers["Repr-Digest"] = digest_field(sha256)
        if not overwrite:
            headers["If-None-Match"] = "*"
        body = data if isinstance(data, bytes | bytearray) else _Source(data)
        try:
            response = self._client.request_json(
                "PUT",
                self._client.file_target(path, upload=upload_id),
                path,
                headers=headers,
                body=body,
                writing=True,
                timeout_s=None if sha256 is None else _COMPLETE_TIMEOUT_S,
                limits=_PROGRESS,
            )
        except RemoteDataError:
            if isinstance(body, _Source) and body.error is not None:  # not one of the connection
                raise body.error from None
            raise
        with self._client.expecting("etag or upload", path):
            return None if "upload" in response else text(response["etag"])

    def received(self, path: str, upload_id: str) -> list[tuple[int, int]]:
        """Byte ranges (first, last + 1) of an upload that the service has stored, sorted; none of an unknown upload."""
        try:
            target = self._client.file_target(path, upload=upload_id)
            response = self._client.request_json("GET", target, path, limits=_PROGRESS)
        except ObjectNotFoundError:
            return []
        with self._client.expecting("received", path):
            return sorted((byte_count(start), byte_count(end)) for start, end in response["received"])

    def abort_upload(self, path: str, upload_id: str) -> None:
        """Delete the parts of an upload; an unknown upload is no error."""
        with contextlib.suppress(ObjectNotFoundError):
            self._client.request_json("DELETE", self._client.file_target(path, upload=upload_id), path, writing=True)

    def sha256_of(self, path: str) -> str | None:
        """SHA-256 of a file in hex, or ``None`` if it does not exist."""
        try:
            headers = self._client.head(path, {"Want-Repr-Digest": "sha-256=1"})
        except ObjectNotFoundError:
            return None
        with self._client.expecting("Repr-Digest", path):
            digests = [field.strip() for field in headers["Repr-Digest"].split(",")]
            [digest] = [field[len(_SHA256) : -1] for field in digests if field.startswith(_SHA256)]
            return base64.b64decode(digest, validate=True).hex()


class DatasetsWriter(MultipartWriter[None]):
    """A file that is being written. A missing dataset is created when the first bytes are sent.

    Args:
        uploads: of the host.
        path: ``NAME/PATH``.
        url: of the file, for errors.
        create_dataset: creates the dataset of a name.
        overwrite: whether an existing file is replaced.
    """

    def __init__(
        self,
        uploads: UploadRequests,
        path: str,
        url: str,
        create_dataset: Callable[[str], None],
        *,
        overwrite: bool,
    ) -> None:
        super().__init__(url)
        self._uploads, self._path, self._overwrite = uploads, path, overwrite
        self._create_dataset = create_dataset
        self._sha256 = hashlib.sha256()

    def _take_buffer(self) -> bytearray:
        data = super()._take_buffer()
        self._sha256.update(data)
        return data

    def _put(self, data: bytearray) -> None:
        def put() -> str:
            return self._uploads.put(self._path, data, sha256=self._sha256.hexdigest(), overwrite=self._overwrite)

        self._make_visible(lambda: self._in_dataset(put), len(data))

    def _start_upload(self) -> str:
        return secrets.token_urlsafe(16)

    def _send_part(self, upload_id: str, number: int, start: int, data: bytearray) -> None:
        def put_part() -> str | None:
            return self._uploads.put_part(self._path, upload_id, start, data, None, sha256=None)

        self._repeat(lambda: self._in_dataset(put_part), len(data))

    def _complete(self, upload_id: str) -> None:
        start, data = self._sent_bytes, self._take_buffer()
        self._wait_for_parts()

        def put_last_part() -> str | None:
            return self._uploads.put_part(
                self._path,
                upload_id,
                start,
                data,
                self._sent_bytes,
                sha256=self._sha256.hexdigest(),
                overwrite=self._overwrite,
            )

        def complete() -> None:
            if self._in_dataset(put_last_part) is None:
                raise StorageError(
                    f"{self._url}: the service has lost parts of the upload, or it was ended by another client. Write "
                    "the file again.",
                    url=self._url,
                )

        self._make_visible(complete, len(data))

    def _discard(self, upload_id: str) -> None:
        self._repeat(lambda: self._uploads.abort_upload(self._path, upload_id))

    def _in_dataset(self, send: Callable[[], T]) -> T:
        """Call ``send``; if the dataset does not exist, create it and call again."""
        try:
            return send()
        except ObjectNotFoundError:
            self._create_dataset(self._path.partition("/")[0])
            return send()

    def _make_visible(self, send: Callable[[], object], num_bytes: int) -> None:
        """Send the request that makes the file visible, and retry it.

        If the response to an earlier attempt was lost, the file may be visible already: a retry then succeeds, rather
        than to start a new upload, or to report that the file exists.
        """
        attempts = itertools.count()

        def is_visible() -> bool:
            return self._uploads.sha256_of(self._path) == self._sha256.hexdigest()

        def attempt() -> None:
            is_first = next(attempts) == 0
            if not is_first and is_visible():
                return
            try:
                send()
            except (ObjectExistsError, ObjectNotFoundError):
                if is_first or not is_visible():
                    raise

        self._repeat(attempt, num_bytes)
