"""Writing to a dataset service: one PUT for a small file, parts for a large one; it appears whole or not at all."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import secrets
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TypeVar

from ...core.options import RetryPolicy
from ...core.retry import call_with_retries
from ...errors import ObjectNotFoundError, StorageError
from .client import ServiceClient
from .protocol import digest_field

T = TypeVar("T")
UPLOAD_PART_BYTES = 16 << 20
_UPLOADS_IN_FLIGHT = 4
_COMPLETE_TIMEOUT_S = 600.0  # the service puts the parts together, and compares the digest, before it answers
_SHA256 = "sha-256=:"


class Uploads:
    """What is sent to one host. One request each.

    Args:
        client: speaks to it.
    """

    def __init__(self, client: ServiceClient) -> None:
        self._client = client

    def url(self, path: str) -> str:
        """For errors."""
        return self._client.url(path)

    def put(self, path: str, data: bytes | bytearray, *, sha256: str, overwrite: bool) -> str:
        """As ``DatasetsStore.put``."""
        headers = {"Repr-Digest": digest_field(sha256), **({} if overwrite else {"If-None-Match": "*"})}
        target = self._client.file_target(path)
        answer = self._client.ask("PUT", target, path, headers=headers, body=data, writing=True)
        with self._client.understood("etag", path):
            return str(answer["etag"])

    def put_part(
        self,
        path: str,
        upload_id: str,
        start: int,
        data: bytes | bytearray,
        total_bytes: int | None,
        *,
        sha256: str | None,
        overwrite: bool,
    ) -> str | None:
        """As ``DatasetsStore.put_part``."""
        if not data:
            raise ValueError(f"{self.url(path)}: a part of an upload has at least one byte.")
        total = "*" if total_bytes is None else total_bytes
        headers = {"Content-Range": f"bytes {start}-{start + len(data) - 1}/{total}"}
        if sha256 is not None:
            headers["Repr-Digest"] = digest_field(sha256)
        if not overwrite:
            headers["If-None-Match"] = "*"
        answer = self._client.ask(
            "PUT",
            self._client.file_target(path, upload=upload_id),
            path,
            headers=headers,
            body=data,
            writing=True,
            timeout_s=None if sha256 is None else _COMPLETE_TIMEOUT_S,
        )
        with self._client.understood("etag or upload", path):
            return None if "upload" in answer else str(answer["etag"])

    def received(self, path: str, upload_id: str) -> list[tuple[int, int]]:
        """As ``DatasetsStore.received``."""
        try:
            answer = self._client.ask("GET", self._client.file_target(path, upload=upload_id), path)
        except ObjectNotFoundError:
            return []
        with self._client.understood("received", path):
            return sorted((int(first), int(after)) for first, after in answer["received"])

    def abandon(self, path: str, upload_id: str) -> None:
        """End an upload without a file; one that is not there is fine."""
        with contextlib.suppress(ObjectNotFoundError):
            self._client.ask("DELETE", self._client.file_target(path, upload=upload_id), path, writing=True)

    def sha256_of(self, path: str) -> str | None:
        """Hex digest of the file that is there, if there is one."""
        try:
            headers = self._client.head(path, {"Want-Repr-Digest": "sha-256=1"})
        except ObjectNotFoundError:
            return None
        with self._client.understood("Repr-Digest", path):
            digests = [part.strip() for part in headers["Repr-Digest"].split(",")]
            [digest] = [part[len(_SHA256) : -1] for part in digests if part.startswith(_SHA256)]
            return base64.b64decode(digest, validate=True).hex()


class DatasetsPending:
    """A file that is being written. A dataset that is not there is made when the first bytes are sent.

    Args:
        uploads: of the host.
        path: ``NAME/PATH``.
        create_dataset: makes a dataset of a name.
        overwrite: whether a file may be there.
    """

    def __init__(self, uploads: Uploads, path: str, create_dataset: Callable[[str], None], *, overwrite: bool) -> None:
        self._uploads, self._path, self._overwrite = uploads, path, overwrite
        self._create_dataset = create_dataset
        self._retry = RetryPolicy()
        self._buffer = bytearray()
        self._num_sent = self._num_parts = 0  # bytes, parts
        self._sha256 = hashlib.sha256()
        self._upload_id: str | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._running: set[Future[str | None]] = set()

    def write(self, data: bytes) -> None:
        view = memoryview(data).cast("B")
        while view:
            # A service takes 10,000 parts: from part 1,400 on they grow, to 224 MiB, so that 1 TiB fits
            part_bytes = UPLOAD_PART_BYTES * max(1, self._num_parts // 700)
            if len(self._buffer) == part_bytes:  # sent when more comes: commit has bytes to send last
                self._submit_part()
                continue
            room = part_bytes - len(self._buffer)
            self._buffer += view[:room]
            view = view[room:]

    def _take_buffer(self) -> bytearray:
        data, self._buffer = self._buffer, bytearray()
        self._sha256.update(data)
        return data

    def _submit_part(self) -> None:
        if self._pool is None:
            self._upload_id = secrets.token_urlsafe(16)
            self._pool = ThreadPoolExecutor(_UPLOADS_IN_FLIGHT, thread_name_prefix="upload")
        if len(self._running) >= _UPLOADS_IN_FLIGHT:
            done, self._running = wait(self._running, return_when=FIRST_COMPLETED)
            for part in done:
                part.result()
        data, start = self._take_buffer(), self._num_sent
        self._num_sent += len(data)
        self._num_parts += 1
        self._running.add(self._pool.submit(call_with_retries, lambda: self._send_part(start, data, None), self._retry))

    def _send_part(self, start: int, data: bytearray, total_bytes: int | None) -> str | None:
        assert self._upload_id is not None
        upload_id = self._upload_id
        is_last = total_bytes is not None
        sha256 = self._sha256.hexdigest() if is_last else None
        overwrite = self._overwrite or not is_last

        def put_part() -> str | None:
            return self._uploads.put_part(
                self._path, upload_id, start, data, total_bytes, sha256=sha256, overwrite=overwrite
            )

        return self._in_its_dataset(put_part)

    def _in_its_dataset(self, send: Callable[[], T]) -> T:
        try:
            return send()
        except ObjectNotFoundError:
            self._create_dataset(self._path.partition("/")[0])
            return send()

    def _make_appear(self, send: Callable[[], str | None]) -> str | None:
        """The request that makes the file appear. If its answer is lost, the next attempt finds its own file."""
        attempts = 0

        def once() -> str | None:
            nonlocal attempts
            attempts += 1
            if attempts > 1 and self._uploads.sha256_of(self._path) == self._sha256.hexdigest():
                return "there"
            return send()

        return call_with_retries(once, self._retry)

    def commit(self) -> None:
        data, path = self._take_buffer(), self._path
        if self._upload_id is None:
            digest = self._sha256.hexdigest()

            def put() -> str:
                return self._uploads.put(path, data, sha256=digest, overwrite=self._overwrite)

            self._make_appear(lambda: self._in_its_dataset(put))
            return
        for part in self._running:
            part.result()
        total_bytes = self._num_sent + len(data)
        if self._make_appear(lambda: self._send_part(self._num_sent, data, total_bytes)) is None:
            url = self._uploads.url(path)
            raise StorageError(
                f"{url}: the service has lost parts of the upload, or somebody ended it. Write the file again.", url=url
            )
        self._upload_id = None
        self._end_pool()

    def abort(self) -> None:
        self._buffer = bytearray()
        self._end_pool()
        if self._upload_id is not None:
            upload_id, self._upload_id = self._upload_id, None
            call_with_retries(lambda: self._uploads.abandon(self._path, upload_id), self._retry)

    def _end_pool(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None
