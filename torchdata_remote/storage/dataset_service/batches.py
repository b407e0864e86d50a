"""Batches: many small files of a dataset in one request, as a tar."""

from __future__ import annotations

import json
from collections.abc import Generator

from ...errors import StorageError
from ..http import stream_body
from .client import ServiceRequests
from .json_body import page_limits
from .protocol import MAX_BATCH_FILES

_ANSWER = page_limits(MAX_BATCH_FILES)


class BatchRequests(ServiceRequests):
    """The requests for many files of one dataset. None is retried. An older service answers 405."""

    def get_batch(self, name: str, paths: list[str], max_bytes: int) -> Generator[memoryview, None, None]:
        """Read files as a tar, as it arrives. Paths without a file are not in it.

        Args:
            name: of the dataset.
            paths: below it.
            max_bytes: of the tar; a longer one is an error.
        """
        client = self._client
        response = client.send(
            "POST",
            client.target(name, "files"),
            name,
            headers={"Content-Type": "application/json"},
            body=json.dumps({"paths": paths}).encode(),
        )
        num_bytes = 0
        try:
            with client.translating_errors(client.url(name)):
                for chunk in stream_body(response):
                    num_bytes += len(chunk)
                    if num_bytes > max_bytes:
                        raise StorageError(
                            f"{client.url(name)}: the service sends more than the {max_bytes:,} bytes of the files.",
                            url=client.url(name),
                        )
                    yield chunk
                response.release_conn()
        finally:
            response.close()

    def put_batch(self, name: str, tar: bytes) -> dict[str, str]:
        """Store the files of a tar, each with its SHA-256 as a pax record; return that of those that are stored.

        Args:
            name: of the dataset, which must exist.
            tar: all of it.
        """
        response = self._client.request_json(
            "PUT",
            self._client.target(name, "files"),
            name,
            headers={"Content-Type": "application/x-tar"},
            body=tar,
            writing=True,
            limits=_ANSWER,
        )
        with self._client.expecting("files", name):
            return {str(one["path"]): str(one["sha256"]) for one in response["files"]}
