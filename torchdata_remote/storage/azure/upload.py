"""Write to Azure: one request for a small object, blocks and a list of them for a large one.

Blocks are invisible until the list is committed; Azure deletes those that are not committed within a week. An object
carries the id of its upload as metadata, by which a writer recognises its own object after a response was lost.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Mapping
from typing import Protocol

from ...core.retry import call_with_retries
from ...errors import ObjectNotFoundError
from ..multipart import SLOW_BYTES_PER_S, MultipartWriter, content_md5, make_visible

UPLOAD_ID = "x-ms-meta-torchdata_remote_upload"


class Container(Protocol):
    """What an upload needs of its store."""

    def url(self, path: str) -> str:
        """URL of an object, for errors."""

    def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: bytes | bytearray | None = None,
    ) -> tuple[Mapping[str, str], bytes]:
        """Send one request."""


class AzureWriter(MultipartWriter[str]):
    """An object that is being written.

    Args:
        store: sends the requests.
        path: of the object.
        overwrite: whether an existing object is replaced.
    """

    def __init__(self, store: Container, path: str, *, overwrite: bool) -> None:
        super().__init__()
        self._store, self._path = store, path
        self._id = uuid.uuid4().hex
        self._publishing = {UPLOAD_ID: self._id} | ({} if overwrite else {"If-None-Match": "*"})

    def _put(self, data: bytearray) -> None:
        headers = {**self._publishing, "x-ms-blob-type": "BlockBlob", "Content-MD5": content_md5(data)}
        self._make_visible({}, headers, data)

    def _start_upload(self) -> str:
        return self._id  # blocks need no request before them

    def _send_part(self, upload_id: str, number: int, start: int, data: bytearray) -> str:
        # All names of an object's blocks must have one length
        block = base64.b64encode(f"{upload_id}{number:06d}".encode()).decode()
        headers = {"Content-MD5": content_md5(data)}
        call_with_retries(
            lambda: self._store.request(
                "PUT", self._path, query={"comp": "block", "blockid": block}, headers=headers, body=data
            ),
            self._retry,
            url=self._store.url(self._path),
            expected_s=len(data) / SLOW_BYTES_PER_S,
        )
        return block

    def _complete(self, upload_id: str) -> None:
        if self._buffer:
            self._submit_part()
        blocks = "".join(f"<Latest>{block}</Latest>" for block in self._wait_for_parts())
        body = f'<?xml version="1.0" encoding="utf-8"?><BlockList>{blocks}</BlockList>'.encode()
        self._make_visible({"comp": "blocklist"}, self._publishing, body)

    def _discard(self, upload_id: str) -> None:
        """Do nothing: blocks that are not committed cannot be deleted, and expire."""

    def _make_visible(self, query: dict[str, str], headers: dict[str, str], body: bytes | bytearray) -> None:
        make_visible(
            lambda: self._store.request("PUT", self._path, query=query, headers=headers, body=body),
            self._is_visible,
            self._retry,
            url=self._store.url(self._path),
            num_bytes=len(body),
        )

    def _is_visible(self) -> bool:
        """Whether the object of this name is the one of this writer."""
        try:
            headers, _ = self._store.request("HEAD", self._path)
        except ObjectNotFoundError:
            return False
        return headers.get(UPLOAD_ID) == self._id
