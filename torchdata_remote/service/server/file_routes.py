"""Requests for single files: /datasets/{name}/files/{path}."""

from __future__ import annotations

import contextlib
import re
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ...errors import ObjectChangedError, ObjectNotFoundError
from ...storage.dataset_service.protocol import digest_field
from ...storage.registry import Entry
from .context import ServiceContext
from .digests import one_at_a_time, publish
from .file_metadata import etag_of, file_info, location
from .file_response import send_file
from .names import require_beginning, require_path, require_text, require_upload_id
from .preconditions import content_range, may_replace, require_match
from .problems import Problem
from .request_body import in_thread, receive_file, require_file_body
from .upload_parts import Part, Progress, Upload

_FLAG = {"0": False, "1": True}
MAX_PAGE = 10_000
_MAX_REPLACED = 10  # times, while a digest is computed
_DIGESTED_BYTES = 256 << 20  # of files whose digests are not known yet, in a page


async def list_files(request: Request) -> Response:
    """GET /datasets/{name}/files."""
    hosting, name = ServiceContext.of(request), request.path_params["name"]
    query = request.query_params
    recursive, digests = flag(request, "recursive", True), flag(request, "digests", False)
    prefix, after, limit = query.get("prefix", ""), query.get("after", ""), _limit(query.get("limit", "1000"))
    require_beginning(prefix)
    require_text(after)
    files, folders, then = await in_thread(
        lambda: _page(hosting, name, prefix, after, limit, recursive=recursive, digests=digests)
    )
    return JSONResponse({"files": files, "folders": folders, "next": then})


def _page(
    hosting: ServiceContext, name: str, prefix: str, after: str, limit: int, *, recursive: bool, digests: bool
) -> tuple[list[dict[str, Any]], list[str], str | None]:
    folder = hosting.shelf.folder(name)
    page = hosting.shelf.page(folder, prefix, recursive=recursive, after=after, limit=limit)
    if not digests:
        return [file_info(entry, entry.path) for entry in page.entries], list(page.folders), page.next_token
    files: list[dict[str, Any]] = []
    num_bytes = 0
    last = ""
    for entry in page.entries:
        full = entry._replace(path=folder + entry.path)
        sha256 = hosting.digests.known(full)
        if sha256 is None:
            if num_bytes > _DIGESTED_BYTES:  # the client would have to wait for too long: the rest is another page
                return files, [path for path in page.folders if path < last], last
            found = _digested(hosting, folder, entry.path, full)
            if found is None:  # it was there when the listing was made
                last = entry.path
                continue
            full, sha256 = found
            num_bytes += full.size or 0
        files.append({**file_info(full, entry.path), "sha256": sha256})
        last = entry.path
    return files, list(page.folders), page.next_token


def _digested(hosting: ServiceContext, folder: str, path: str, entry: Entry) -> tuple[Entry, str] | None:
    """A file and its digest, also if it is replaced while it is read; ``None`` if it is gone."""
    for _ in range(_MAX_REPLACED):
        with contextlib.suppress(ObjectNotFoundError, ObjectChangedError):
            return entry, hosting.digests.of(entry)
        found = hosting.shelf.find(folder, path)
        if found is None:
            return None
        entry = found
    raise Problem(503, f"{path!r} is replaced all the time. Ask again.", {"Retry-After": "1"})


def flag(request: Request, name: str, default: bool) -> bool:
    """A parameter that is 0 or 1.

    Raises:
        Problem: 400, if it is something else.
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


async def get_file(request: Request) -> Response:
    """GET and HEAD /datasets/{name}/files/{path}; with ?upload=ID, what is there of an upload."""
    hosting, name, path = (
        ServiceContext.of(request),
        request.path_params["name"],
        require_path(request.path_params["path"]),
    )
    if "upload" in request.query_params:
        upload = await _upload(request, hosting, name, path)
        progress = await in_thread(lambda: hosting.uploads.progress(upload))
        return JSONResponse(_told(request, progress))
    return await send_file(request, hosting, name, path)


async def put_file(request: Request) -> Response:
    """PUT /datasets/{name}/files/{path}: a file, or with ?upload=ID a part of one."""
    hosting, name, path = (
        ServiceContext.of(request),
        request.path_params["name"],
        require_path(request.path_params["path"]),
    )
    require_file_body(request)
    if "upload" in request.query_params:
        return await _put_part(request, hosting, name, path)
    if "content-range" in request.headers:
        raise Problem(400, "Content-Range is for parts of an upload: add ?upload=ID, a name for it of your choice.")
    return await store_file(request, hosting, name, path)


async def store_file(request: Request, hosting: ServiceContext, name: str, path: str) -> Response:
    """Take a body for a file that appears when it is there."""
    folder = await in_thread(lambda: hosting.shelf.folder(name))
    found = await in_thread(lambda: hosting.shelf.find(folder, path))
    require_match(request.headers, None if found is None else etag_of(found))
    overwrite = may_replace(request.headers)
    pending = await in_thread(lambda: hosting.shelf.begin(folder, path, overwrite=overwrite))
    received = await receive_file(request, pending, hosting.shelf, hosting.limits, whole=True)
    shelf, digests, sha256 = hosting.shelf, hosting.digests, received.sha256
    entry = await in_thread(lambda: publish(shelf, digests, pending, folder, path, sha256, request.headers))
    return stored(name, path, entry, received.sha256)


def stored(name: str, path: str, entry: Entry, sha256: str | None) -> Response:
    """The answer that a file is there, and stays."""
    told = {**file_info(entry, path), "location": location(name, path)}
    headers = {"ETag": etag_of(entry)}
    if sha256 is not None:
        told["sha256"] = sha256
        headers["Repr-Digest"] = digest_field(sha256)
    return JSONResponse(told, headers=headers)


async def _upload(request: Request, hosting: ServiceContext, name: str, path: str) -> Upload:
    upload_id = require_upload_id(request.query_params["upload"])
    folder = await in_thread(lambda: hosting.shelf.folder(name))
    return hosting.uploads.upload(name, folder, path, upload_id)


def _told(request: Request, progress: Progress) -> dict[str, Any]:
    return {"upload": request.query_params["upload"], "received": progress.received, "total": progress.total}


async def _put_part(request: Request, hosting: ServiceContext, name: str, path: str) -> Response:
    upload = await _upload(request, hosting, name, path)
    asked = Part(*content_range(request.headers.get("content-range")))
    part, pending = await in_thread(lambda: hosting.uploads.begin(upload, asked))
    num_bytes = part.end - part.start
    received = await receive_file(request, pending, hosting.shelf, hosting.limits, num_bytes=num_bytes)
    result = await in_thread(lambda: hosting.uploads.finish(upload, part, pending, received.sha256, request.headers))
    if isinstance(result, Progress):
        return JSONResponse(_told(request, result), status_code=202)
    return stored(name, path, result.entry, result.sha256)


async def delete_file(request: Request) -> Response:
    """DELETE /datasets/{name}/files/{path}: a file, or with ?upload=ID an upload."""
    hosting, name, path = (
        ServiceContext.of(request),
        request.path_params["name"],
        require_path(request.path_params["path"]),
    )
    if "upload" in request.query_params:
        upload = await _upload(request, hosting, name, path)
        await in_thread(lambda: hosting.uploads.drop(upload))
        return Response(status_code=204)

    def delete() -> None:
        folder = hosting.shelf.folder(name)
        with one_at_a_time(folder, path):
            found = hosting.shelf.find(folder, path)
            if found is None:
                raise Problem(404, f"There is no file {path!r} in the dataset {name!r}.")
            require_match(request.headers, etag_of(found))
            hosting.shelf.delete(folder, path)

    await in_thread(delete)
    return Response(status_code=204)
