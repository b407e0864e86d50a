"""Handlers for datasets: /datasets and /datasets/{name}."""

from __future__ import annotations

import contextlib
import itertools
import uuid
from collections.abc import AsyncIterator, Iterable
from typing import Any

import anyio
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from ....storage import Entry, ObjectWriter
from ....storage.dataset_service.protocol import digest_field
from ..blocking import run_blocking
from ..context import ServiceContext
from ..datasets.archives import COMMITTED, Data, Unpacked, check, commit, tar_stream, unpack, write_file
from ..datasets.digests import filled_file, publish, publish_in_turn
from ..datasets.file_metadata import location
from ..datasets.lifetimes import LiveFolder
from ..datasets.names import disposition, name_from_content, name_in_disposition, require_dataset_name
from ..datasets.touched_paths import TouchedPaths
from ..http.json_response import JSONResponse
from ..problems import Problem
from ..stopping import ServiceStoppedError
from ..uploads.request_body import receive_file, require_file_body, require_json_body
from .file_response import FileResponse, replaced_is_503, started
from .file_routes import bool_parameter, store_file, stored_response

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
    await run_blocking(lambda: context.root.remove_dataset(name), context.lanes.removing)
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
    unpacks = bool_parameter(request, "unpack", False)
    for header in ("Content-Range", *(("If-Match", "If-None-Match") if unpacks else ())):
        if header in request.headers:
            raise Problem(400, f"{header} is for one file with a path: PUT /datasets/{name}/files/PATH.")
    if unpacks:
        return await _unpack(request, context, name, path or "the archive")
    if path is not None:
        return await store_file(request, context, name, path)
    async with _temporary_folder(context, name, "unnamed") as (folder, temporary):
        pending = await run_blocking(lambda: context.root.create_file(temporary, "file"))
        received = await receive_file(request, pending, context.root, context.limits, whole=True)
        path, root, lanes = name_from_content(received.head, received.sha256), context.root, context.lanes

        def copied() -> tuple[ObjectWriter, str]:
            source = publish(root, context.digests, pending, temporary, "file", received.sha256)
            return filled_file(root, folder, path, root.chunks(source))

        final, sha256 = await run_blocking(copied, lanes.joining)
        entry = await publish_in_turn(
            root, context.digests, final, folder, path, sha256, lanes.writing, request.headers
        )
        return stored_response(name, path, entry, sha256)


@contextlib.asynccontextmanager
async def _temporary_folder(
    context: ServiceContext, name: str, kind: str
) -> AsyncIterator[tuple[LiveFolder, LiveFolder]]:
    """Create a temporary folder of a dataset beside the datasets; yields the dataset's folder and this one.

    It is kept if the service stops while it unpacks an archive, which the next one finishes.
    """
    folder = await run_blocking(lambda: context.root.folder(name))
    temporary = LiveFolder(context.root.work_folder(f"{kind}/{name}/{uuid.uuid4().hex}"), folder.life)
    try:
        yield folder, temporary
    except BaseException as error:
        is_stopped = isinstance(error, ServiceStoppedError) or not isinstance(error, Exception)  # or it is cancelled
        with anyio.CancelScope(shield=True):
            found = await run_blocking(lambda: context.root.find(temporary, COMMITTED)) if is_stopped else None
            if found is None:
                await run_blocking(lambda: context.root.store.remove_folder(temporary))
        raise
    await run_blocking(lambda: context.root.store.remove_folder(temporary))


async def _unpack(request: Request, context: ServiceContext, name: str, shown_name: str) -> Response:
    """Unpack an archive. It is stored and checked before its first file is written, and removed after the last one."""
    async with _temporary_folder(context, name, "unpacking") as (folder, temporary):
        root, digests = context.root, context.digests
        pending = await run_blocking(lambda: root.create_file(temporary, "archive"))
        received = await receive_file(request, pending, root, context.limits, whole=True)

        def work() -> Unpacked:
            archive = publish(root, digests, pending, temporary, "archive", received.sha256)
            unpacked = check(root, archive, folder, shown_name, context.limits)
            touched = TouchedPaths(root, folder, temporary)

            def write(path: str, size: int, pieces: Iterable[Data]) -> None:
                context.stopping.check()
                write_file(root, digests, folder, path, context.stopping.during(pieces), touched.add)

            try:
                commit(root, digests, temporary, name)
                unpack(root, archive, shown_name, context.limits, write)
            finally:
                touched.end()
            return unpacked

        unpacked = await run_blocking(work, context.lanes.unpacking)
    document: dict[str, Any] = {"name": name, **unpacked._asdict()}
    return JSONResponse(document, headers={"Repr-Digest": digest_field(received.sha256)})
