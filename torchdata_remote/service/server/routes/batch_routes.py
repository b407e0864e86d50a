"""Handlers for batches: many small files of a dataset in one request."""

from __future__ import annotations

from functools import partial

import anyio
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from ....storage.dataset_service.protocol import MAX_BATCH_BYTES, MAX_BATCH_FILES, MAX_PATH_BYTES
from ..blocking import run_blocking
from ..context import ServiceContext
from ..http.json_response import JSONResponse
from ..problems import Problem
from ..uploads.batches import BatchWriter, batch_of
from ..uploads.request_body import Body, content_length, require_file_body, require_json_body
from .file_response import replaced_is_503, started

_OF_ONE_FILE = ("If-Match", "If-None-Match", "Content-Range", "Content-Digest", "Repr-Digest")
_MAX_JSON_BYTES = MAX_BATCH_FILES * (3 * MAX_PATH_BYTES + 16)  # JSON may write two bytes of UTF-8 as \u00e9


async def get_batch(request: Request) -> Response:
    """POST /datasets/{name}/files: the files of a list of paths, as a tar."""
    context, name = ServiceContext.of(request), request.path_params["name"]
    paths = _paths_of(await require_json_body(request, context.limits, _MAX_JSON_BYTES))

    batch = await run_blocking(lambda: batch_of(context.root, name, paths))
    with replaced_is_503():
        chunks = await started(batch.chunks)
    headers = {"Content-Length": str(batch.num_bytes), "X-Content-Type-Options": "nosniff"}
    return StreamingResponse(chunks, headers=headers, media_type="application/x-tar")


def _paths_of(document: object) -> list[str]:
    paths = document.get("paths") if isinstance(document, dict) and set(document) == {"paths"} else None
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise Problem(400, 'Expected the JSON object {"paths": ["cat/1.jpg", "cat/2.jpg"]}.')
    if len(paths) > MAX_BATCH_FILES:
        raise Problem(413, f"{len(paths):,} paths: a batch may have {MAX_BATCH_FILES:,} files at most.")
    return paths


async def put_batch(request: Request) -> Response:
    """PUT /datasets/{name}/files: store the files of a tar one by one while it is received."""
    context, name = ServiceContext.of(request), request.path_params["name"]
    require_file_body(request)
    for header in _OF_ONE_FILE:
        if header in request.headers:
            raise Problem(400, f"{header} is for one file; a batch has many. Send the files that need it one by one.")
    if content_length(request) > MAX_BATCH_BYTES:
        raise Problem(413, f"A batch may have {MAX_BATCH_BYTES:,} bytes at most.", {"Connection": "close"})
    lane = context.lanes.batching
    writer = await run_blocking(lambda: BatchWriter(context.root, context.digests, context.limits, name))
    try:
        body = Body(request, context.limits, MAX_BATCH_BYTES)
        while pieces := await body.next_chunk():
            await run_blocking(partial(writer.feed, b"".join(pieces)), lane)
    except ClientDisconnect:
        with anyio.CancelScope(shield=True):
            await run_blocking(writer.result, lane)
        raise

    def finish() -> Response:
        writer.feed(b"", is_last=True)
        return JSONResponse(writer.result())

    return await run_blocking(finish, lane)
