"""Requests for datasets: /datasets and /datasets/{name}."""

from __future__ import annotations

import contextlib
import itertools
import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

import anyio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from ...storage.dataset_service.protocol import digest_field
from ...storage.registry import Entry
from .archives import Unpacked, check, commit, tar_of, unpack
from .context import ServiceContext
from .digests import publish
from .file_metadata import location
from .file_response import replaced_is_503, send_file
from .file_routes import flag, store_file, stored
from .names import disposition, name_from_content, name_in_disposition, require_dataset_name
from .problems import Problem
from .request_body import in_thread, pieces_of, receive_file, require_file_body

_MAX_JSON_BYTES = 64 << 10


async def list_datasets(request: Request) -> Response:
    """GET /datasets."""
    hosting = ServiceContext.of(request)
    names = await in_thread(hosting.shelf.datasets)
    return JSONResponse({"datasets": [_told(name) for name in names]})


def _told(name: str) -> dict[str, str]:
    return {"name": name, "location": location(name)}


async def create_dataset(request: Request) -> Response:
    """POST /datasets."""
    hosting = ServiceContext.of(request)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Problem(415, f"The body is {kind or 'of no type'}; expected application/json.")
    body = b""
    async for piece in pieces_of(request, hosting.limits):
        body += piece
        if len(body) > _MAX_JSON_BYTES:
            raise Problem(413, f"More than {_MAX_JSON_BYTES:,} bytes.", {"Connection": "close"})
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        asked = None
    if not isinstance(asked, dict) or set(asked) != {"name"}:
        raise Problem(400, 'Expected the JSON object {"name": "my_dataset"}.')
    name = require_dataset_name(asked["name"])
    await in_thread(lambda: hosting.shelf.create(name))
    return JSONResponse(_told(name), status_code=201, headers={"Location": location(name)})


async def delete_dataset(request: Request) -> Response:
    """DELETE /datasets/{name}."""
    hosting, name = ServiceContext.of(request), request.path_params["name"]
    await in_thread(lambda: hosting.shelf.remove(name))
    return Response(status_code=204)


async def get_dataset(request: Request) -> Response:
    """GET and HEAD /datasets/{name}: its only file, or a tar of all."""
    hosting, name = ServiceContext.of(request), request.path_params["name"]

    def first_two() -> tuple[str, list[Entry]]:
        folder = hosting.shelf.folder(name)
        return folder, list(itertools.islice(hosting.shelf.files(folder, page_files=3), 2))

    folder, entries = await in_thread(first_two)
    if len(entries) == 1:
        return await send_file(request, hosting, name, entries[0].path)
    headers = {"Content-Disposition": disposition(f"{name}.tar"), "X-Content-Type-Options": "nosniff"}
    if request.method == "HEAD":
        return Response(headers=headers, media_type="application/octet-stream")
    chunks = tar_of(hosting.shelf, folder)
    with replaced_is_503():
        first = await in_thread(lambda: next(chunks))

    async def all_chunks() -> AsyncIterator[bytes]:
        chunk: bytes | None = first
        while chunk is not None:
            yield chunk
            chunk = await in_thread(lambda: next(chunks, None))

    return StreamingResponse(all_chunks(), headers=headers, media_type="application/octet-stream")


async def put_dataset(request: Request) -> Response:
    """PUT /datasets/{name}: a file with its name in Content-Disposition or from its content, or an archive."""
    hosting, name = ServiceContext.of(request), request.path_params["name"]
    require_file_body(request)
    path = name_in_disposition(request.headers.get("content-disposition"))
    if flag(request, "unpack", False):
        return await _unpack(request, hosting, name, path or "the archive")
    if path is not None:
        return await store_file(request, hosting, name, path)
    await in_thread(lambda: hosting.shelf.folder(name))
    async with _aside(hosting, "unnamed") as aside:
        pending = await in_thread(lambda: hosting.shelf.begin(aside, "file"))
        received = await receive_file(request, pending, hosting.shelf, hosting.limits, whole=True)
        path = name_from_content(received.head, received.sha256)

        def name_it() -> Entry:
            source = publish(hosting.shelf, hosting.digests, pending, aside, "file", received.sha256)
            folder = hosting.shelf.folder(name)  # unless it is gone by now
            final = hosting.shelf.begin(folder, path)
            try:
                for chunk in hosting.shelf.chunks(source):
                    final.write(bytes(chunk))
            except BaseException:
                final.abort()
                raise
            return publish(hosting.shelf, hosting.digests, final, folder, path, received.sha256, request.headers)

        return stored(name, path, await in_thread(name_it), received.sha256)


@contextlib.asynccontextmanager
async def _aside(hosting: ServiceContext, kind: str) -> AsyncIterator[str]:
    """A folder beside the datasets, which is gone afterwards."""
    folder = hosting.shelf.hidden(f"{kind}/{uuid.uuid4().hex}")
    try:
        yield folder
    finally:
        with anyio.CancelScope(shield=True):
            await in_thread(lambda: hosting.shelf.store.remove_folder(folder))


async def _unpack(request: Request, hosting: ServiceContext, name: str, shown: str) -> Response:
    """The archive is kept until all of its files are there, and checked before the first one is written."""
    await in_thread(lambda: hosting.shelf.folder(name))
    async with _aside(hosting, "unpacking") as aside:
        pending = await in_thread(lambda: hosting.shelf.begin(aside, "archive"))
        received = await receive_file(request, pending, hosting.shelf, hosting.limits, whole=True)

        def work() -> Unpacked:
            archive = publish(hosting.shelf, hosting.digests, pending, aside, "archive", received.sha256)
            folder = hosting.shelf.folder(name)  # unless it is gone by now
            unpacked = check(hosting.shelf, archive, folder, shown, hosting.limits)
            commit(hosting.shelf, hosting.digests, aside, name)
            unpack(hosting.shelf, hosting.digests, archive, folder, shown, hosting.limits)
            return unpacked

        unpacked = await in_thread(work)
    told: dict[str, Any] = {"name": name, **unpacked._asdict()}
    return JSONResponse(told, headers={"Repr-Digest": digest_field(received.sha256)})
