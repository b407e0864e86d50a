"""Handlers for datasets: /datasets and /datasets/{name}."""

from __future__ import annotations

import contextlib
import itertools
import uuid
from collections.abc import AsyncIterator
from typing import Any

import anyio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from ...storage import Entry
from ...storage.dataset_service.protocol import digest_field
from .archives import Unpacked, check, commit, tar_stream, unpack
from .context import ServiceContext
from .digests import publish
from .file_metadata import location
from .file_response import FileResponse, replaced_is_503, started
from .file_routes import bool_parameter, store_file, stored_response
from .names import disposition, name_from_content, name_in_disposition, require_dataset_name
from .problems import Problem
from .request_body import receive_file, require_file_body, require_json_body, run_blocking

_MAX_JSON_BYTES = 64 << 10


async def list_datasets(request: Request) -> Response:
    """GET /datasets."""
    context = ServiceContext.of(request)
    names = await run_blocking(context.root.names)
    return JSONResponse({"datasets": [_dataset_json(name) for name in names]})


def _dataset_json(name: str) -> dict[str, str]:
    return {"name": name, "location": location(name)}


async def create_dataset(request: Request) -> Response:
    """POST /datasets."""
    context = ServiceContext.of(request)
    requested = await require_json_body(request, context.limits, _MAX_JSON_BYTES)
    if not isinstance(requested, dict) or set(requested) != {"name"}:
        raise Problem(400, 'Expected the JSON object {"name": "my_dataset"}.')
    name = require_dataset_name(requested["name"])
    await run_blocking(lambda: context.root.create_dataset(name))
    return JSONResponse(_dataset_json(name), status_code=201, headers={"Location": location(name)})


async def delete_dataset(request: Request) -> Response:
    """DELETE /datasets/{name}."""
    context, name = ServiceContext.of(request), request.path_params["name"]
    await run_blocking(lambda: context.root.remove_dataset(name))
    return Response(status_code=204)


async def get_dataset(request: Request) -> Response:
    """GET and HEAD /datasets/{name}: its only file, or a tar of all files."""
    context, name = ServiceContext.of(request), request.path_params["name"]

    def first_two() -> tuple[str, list[Entry]]:
        folder = context.root.folder(name)
        return folder, list(itertools.islice(context.root.files(folder, page_files=3), 2))

    folder, entries = await run_blocking(first_two)
    if len(entries) == 1:
        return FileResponse(context, name, entries[0].path)
    headers = {"Content-Disposition": disposition(f"{name}.tar"), "X-Content-Type-Options": "nosniff"}
    if request.method == "HEAD":
        return Response(headers=headers, media_type="application/octet-stream")
    with replaced_is_503():
        chunks = await started(tar_stream(context.root, folder))
    return StreamingResponse(chunks, headers=headers, media_type="application/octet-stream")


async def put_dataset(request: Request) -> Response:
    """PUT /datasets/{name}: a file, named by Content-Disposition or its content, or with ?unpack=1 an archive."""
    context, name = ServiceContext.of(request), request.path_params["name"]
    require_file_body(request)
    path = name_in_disposition(request.headers.get("content-disposition"))
    if bool_parameter(request, "unpack", False):
        return await _unpack(request, context, name, path or "the archive")
    if path is not None:
        return await store_file(request, context, name, path)
    await run_blocking(lambda: context.root.folder(name))
    async with _temporary_folder(context, "unnamed") as temporary:
        pending = await run_blocking(lambda: context.root.create_file(temporary, "file"))
        received = await receive_file(request, pending, context.root, context.limits, whole=True)
        path = name_from_content(received.head, received.sha256)

        def copy_to_dataset() -> Entry:
            source = publish(context.root, context.digests, pending, temporary, "file", received.sha256)
            folder = context.root.folder(name)  # fails if the dataset was removed meanwhile
            final = context.root.create_file(folder, path)
            try:
                for chunk in context.root.chunks(source):
                    final.write(bytes(chunk))
            except BaseException:
                final.abort()
                raise
            return publish(context.root, context.digests, final, folder, path, received.sha256, request.headers)

        return stored_response(name, path, await run_blocking(copy_to_dataset), received.sha256)


@contextlib.asynccontextmanager
async def _temporary_folder(context: ServiceContext, kind: str) -> AsyncIterator[str]:
    """Create a temporary folder beside the datasets."""
    folder = context.root.work_folder(f"{kind}/{uuid.uuid4().hex}")
    try:
        yield folder
    finally:
        with anyio.CancelScope(shield=True):
            await run_blocking(lambda: context.root.store.remove_folder(folder))


async def _unpack(request: Request, context: ServiceContext, name: str, shown_name: str) -> Response:
    """Unpack an archive. It is stored and checked before its first file is written, and removed after the last one."""
    await run_blocking(lambda: context.root.folder(name))
    async with _temporary_folder(context, "unpacking") as temporary:
        pending = await run_blocking(lambda: context.root.create_file(temporary, "archive"))
        received = await receive_file(request, pending, context.root, context.limits, whole=True)

        def work() -> Unpacked:
            archive = publish(context.root, context.digests, pending, temporary, "archive", received.sha256)
            folder = context.root.folder(name)  # fails if the dataset was removed meanwhile
            unpacked = check(context.root, archive, folder, shown_name, context.limits)
            commit(context.root, context.digests, temporary, name)
            unpack(context.root, context.digests, archive, folder, shown_name, context.limits)
            return unpacked

        unpacked = await run_blocking(work)
    document: dict[str, Any] = {"name": name, **unpacked._asdict()}
    return JSONResponse(document, headers={"Repr-Digest": digest_field(received.sha256)})
