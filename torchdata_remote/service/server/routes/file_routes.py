"""Handlers for files: /datasets/{name}/files and /datasets/{name}/files/{path}."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ....errors import ObjectChangedError, ObjectNotFoundError
from ....storage import Entry, ObjectWriter, Page
from ....storage.dataset_service.protocol import digest_field
from ..blocking import run_blocking
from ..context import ServiceContext
from ..datasets.digests import publish_in_turn
from ..datasets.file_metadata import etag_of, file_info, location
from ..datasets.lifetimes import LiveFolder
from ..datasets.names import require_path, require_prefix, require_text, require_upload_id
from ..http.json_response import JSONResponse
from ..http.preconditions import allows_overwrite, content_range, require_match
from ..problems import Problem
from ..uploads.request_body import receive_file, require_file_body
from ..uploads.upload_parts import Part, Progress, Upload
from .file_response import FileResponse

_FLAG = {"0": False, "1": True}
MAX_PAGE = 10_000
_MAX_ATTEMPTS = 10  # at computing a digest, while the file is replaced
_DIGESTED_BYTES = 256 << 20  # read in one page, of files whose digests are not stored


async def list_files(request: Request) -> Response:
    """GET /datasets/{name}/files."""
    context, name = ServiceContext.of(request), request.path_params["name"]
    query = request.query_params
    recursive, digests = bool_parameter(request, "recursive", True), bool_parameter(request, "digests", False)
    prefix, after, limit = query.get("prefix", ""), query.get("after", ""), _limit(query.get("limit", "1000"))
    require_prefix(prefix)
    require_text(after)

    def listed() -> tuple[LiveFolder, Page]:
        folder = context.root.folder(name)
        return folder, context.root.page(folder, prefix, recursive=recursive, after=after, limit=limit)

    listing = context.lanes.listing
    folder, page = await run_blocking(listed, listing)
    if not digests:
        return await run_blocking(lambda: _listing(_infos(page), page.folders, page.next_token), listing)
    missing = await run_blocking(lambda: not _are_hashed(context, folder, page), listing)
    async with context.in_turn.held_in_loop(("digests", name, prefix, after)):  # the first stores them for others
        lane = context.lanes.hashing if missing else listing
        return await run_blocking(lambda: _listing(*_with_digests(context, folder, page)), lane)


def _infos(page: Page) -> list[dict[str, Any]]:
    return [file_info(entry, entry.path) for entry in page.entries]


def _listing(files: list[dict[str, Any]], folders: Sequence[str], then: str | None) -> Response:
    """Make the response with a page. Called in a thread: ten thousand files take a tenth of a second."""
    return JSONResponse({"files": files, "folders": list(folders), "next": then})


def _are_hashed(context: ServiceContext, folder: str, page: Page) -> bool:
    entries = (entry._replace(path=folder + entry.path) for entry in page.entries)
    return all(context.digests.cached(entry) is not None for entry in entries)


def _with_digests(
    context: ServiceContext, folder: LiveFolder, page: Page
) -> tuple[list[dict[str, Any]], Sequence[str], str | None]:
    files: list[dict[str, Any]] = []
    num_bytes = 0
    last = ""
    for entry in page.entries:
        full = entry._replace(path=folder + entry.path)
        sha256 = context.digests.cached(full)
        if sha256 is None:
            if num_bytes > _DIGESTED_BYTES:  # end the page early, before the client times out
                return files, [path for path in page.folders if path < last], last
            found = _with_digest(context, folder, entry.path, full)
            if found is None:  # removed since it was listed
                last = entry.path
                continue
            full, sha256 = found
            num_bytes += full.size or 0
        files.append({**file_info(full, entry.path), "sha256": sha256})
        last = entry.path
    return files, page.folders, page.next_token


def _with_digest(context: ServiceContext, folder: str, path: str, entry: Entry) -> tuple[Entry, str] | None:
    """Compute the digest of a file, again if it is replaced meanwhile; ``None`` if it is removed."""
    for _ in range(_MAX_ATTEMPTS):
        with contextlib.suppress(ObjectNotFoundError, ObjectChangedError):
            return entry, context.digests.sha256(entry)
        found = context.root.find(folder, path)
        if found is None:
            return None
        entry = found
    raise Problem(503, f"{path!r} is replaced continuously. Send the request again.", {"Retry-After": "1"})


def bool_parameter(request: Request, name: str, default: bool) -> bool:
    """Return a query parameter that is 0 or 1.

    Raises:
        Problem: 400, for another value.
    """
    text = request.query_params.get(name)
    if text is None:
        return default
    if text not in _FLAG:
        raise Problem(400, f"{name}={text!r:.100}: expected 0 or 1.")
    return _FLAG[text]


def _limit(text: str) -> int:
    if re.fullmatch(r"[1-9]\d{0,4}", text, re.ASCII) is None or int(text) > MAX_PAGE:
        raise Problem(400, f"limit={text!r:.100}: expected a number from 1 to {MAX_PAGE}.")
    return int(text)


def _target(request: Request) -> tuple[ServiceContext, str, str]:
    """Return the context, the name of the dataset, and the path of the file that a request is about."""
    return ServiceContext.of(request), request.path_params["name"], require_path(request.path_params["path"])


async def get_file(request: Request) -> Response:
    """GET and HEAD /datasets/{name}/files/{path}; with ?upload=ID, the progress of an upload."""
    context, name, path = _target(request)
    if "upload" in request.query_params:
        upload = await _upload(request, context, name, path)
        progress = await run_blocking(lambda: context.uploads.progress(upload))
        return JSONResponse(_progress_json(request, progress))
    return FileResponse(context, name, path)


async def put_file(request: Request) -> Response:
    """PUT /datasets/{name}/files/{path}: a file, or with ?upload=ID a part of one."""
    context, name, path = _target(request)
    require_file_body(request)
    if "upload" in request.query_params:
        return await _put_part(request, context, name, path)
    if "content-range" in request.headers:
        raise Problem(400, "Content-Range is for parts of an upload: add ?upload=ID, with an ID of your choice.")
    return await store_file(request, context, name, path)


async def store_file(request: Request, context: ServiceContext, name: str, path: str) -> Response:
    """Store the body as a file, which becomes visible when it is complete."""

    def start() -> tuple[LiveFolder, ObjectWriter]:  # in one call, since each switch of threads costs time
        folder = context.root.folder(name)
        found = context.root.find(folder, path)
        require_match(request.headers, None if found is None else etag_of(found))
        return folder, context.root.create_file(folder, path, overwrite=allows_overwrite(request.headers))

    folder, pending = await run_blocking(start)
    received = await receive_file(request, pending, context.root, context.limits, whole=True)
    root, digests, sha256, lane = context.root, context.digests, received.sha256, context.lanes.writing
    entry = await publish_in_turn(root, digests, pending, folder, path, sha256, lane, request.headers)
    return stored_response(name, path, entry, sha256)


def stored_response(name: str, path: str, entry: Entry, sha256: str | None) -> Response:
    """Report a stored file."""
    document = {**file_info(entry, path), "location": location(name, path)}
    headers = {"ETag": etag_of(entry)}
    if sha256 is not None:
        document["sha256"] = sha256
        headers["Repr-Digest"] = digest_field(sha256)
    return JSONResponse(document, headers=headers)


async def _upload(request: Request, context: ServiceContext, name: str, path: str) -> Upload:
    upload_id = require_upload_id(request.query_params["upload"])
    folder = await run_blocking(lambda: context.root.folder(name))
    return context.uploads.upload(name, folder, path, upload_id)


def _progress_json(request: Request, progress: Progress) -> dict[str, Any]:
    return {"upload": request.query_params["upload"], "received": progress.received, "total": progress.total}


async def _put_part(request: Request, context: ServiceContext, name: str, path: str) -> Response:
    upload = await _upload(request, context, name, path)
    requested = Part(*content_range(request.headers.get("content-range")))
    part, pending = await run_blocking(lambda: context.uploads.start_part(upload, requested))
    received = await receive_file(
        request,
        pending,
        context.root,
        context.limits,
        num_bytes=part.end - part.start,
        on_cut=lambda num_bytes: context.uploads.keep_cut_part(upload, part, pending, num_bytes),
    )
    result = await context.uploads.finish_part(upload, part, pending, received.sha256, request.headers)
    if isinstance(result, Progress):
        return JSONResponse(_progress_json(request, result), status_code=202)
    return stored_response(name, path, result.entry, result.sha256)


async def delete_file(request: Request) -> Response:
    """DELETE /datasets/{name}/files/{path}: a file, or with ?upload=ID the parts of an upload."""
    context, name, path = _target(request)
    if "upload" in request.query_params:
        upload = await _upload(request, context, name, path)
        await context.uploads.discard(upload)
        return Response(status_code=204)

    folder = await run_blocking(lambda: context.root.folder(name))

    def delete() -> None:
        found = context.root.find(folder, path)
        if found is None:
            raise Problem(404, f"There is no file {path!r} in the dataset {name!r}.")
        require_match(request.headers, etag_of(found))
        with folder.life.used():
            context.root.delete(folder, path)
        folder.life.changed(path)

    async with context.root.publishing.held_in_loop((folder, path)):
        await run_blocking(delete, context.lanes.writing)
    return Response(status_code=204)
