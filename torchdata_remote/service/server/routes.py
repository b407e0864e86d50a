"""Handlers of requests: datasets, their files, batches, archives, uploads in parts, summaries."""

from __future__ import annotations

import contextlib
import itertools
import re
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from ...errors import ObjectChangedError, ObjectNotFoundError
from ...inspection import draw_sheet, summarize
from ...storage.dataset_service.protocol import MAX_BATCH_BYTES, MAX_BATCH_FILES, MAX_PATH_BYTES, digest_field
from .archives import BatchWriter, Unpacked, Unpacking, batch_of, tar_stream
from .context import Context
from .headers import content_range
from .names import (
    disposition,
    name_from_content,
    name_in_disposition,
    require_dataset_name,
    require_path,
    require_prefix,
    require_text,
    require_upload_id,
)
from .problems import JSONResponse, Problem
from .responses import NO_SNIFF, OCTETS, FileResponse, replaced_is_503, started
from .root import Dataset, File, FileWriter, all_files, each, file_urls, location, sha256_of_file
from .threads import run_blocking
from .uploads import Body, Part, PartialUpload, Progress, Receiver, json_body, require_file_body, upload_json

MAX_PAGE = 10_000
_FLAG = {"0": False, "1": True}
_MAX_JSON_BYTES = 64 << 10
_MAX_PATHS_BYTES = MAX_BATCH_FILES * (3 * MAX_PATH_BYTES + 16)  # JSON may write two bytes of UTF-8 as \u00e9
_OF_ONE_FILE = ("If-Match", "If-None-Match", "Content-Range", "Content-Digest", "Repr-Digest")
_MAX_ATTEMPTS = 10  # at computing a digest, while the file is replaced
_DIGESTED_BYTES = 256 << 20  # read in one page, of files whose digests are not stored


def _target(request: Request) -> tuple[Context, Callable[[], Dataset]]:
    """Return the context, and what finds the dataset of a request, in a thread."""
    context, name = Context.of(request), request.path_params["name"]
    return context, lambda: context.root.dataset(name)


def _flag(request: Request, name: str, default: str) -> bool:
    text = request.query_params.get(name, default)
    if text not in _FLAG:
        raise Problem(400, f"{name}={text!r:.100}: expected 0 or 1.")
    return _FLAG[text]


# Datasets


async def list_datasets(request: Request) -> Response:
    """GET /datasets."""
    names = await run_blocking(Context.of(request).root.names, "list")
    return JSONResponse({"datasets": [_dataset_json(name) for name in names]})


def _dataset_json(name: str) -> dict[str, str]:
    return {"name": name, "location": location(name)}


async def create_dataset(request: Request) -> Response:
    """POST /datasets."""
    context = Context.of(request)
    requested = await json_body(request, context.limits, _MAX_JSON_BYTES)
    if not isinstance(requested, dict) or set(requested) != {"name"}:
        raise Problem(400, 'Expected the JSON object {"name": "my_dataset"}.')
    name = require_dataset_name(requested["name"])
    await run_blocking(lambda: context.root.create(name))
    return JSONResponse(_dataset_json(name), 201, {"Location": location(name)})


async def delete_dataset(request: Request) -> Response:
    """DELETE /datasets/{name}."""
    context, name = Context.of(request), request.path_params["name"]
    await run_blocking(lambda: context.root.remove(name), "remove")
    return Response(status_code=204)


async def get_dataset(request: Request) -> Response:
    """GET and HEAD /datasets/{name}: its only file, or a tar of all files."""
    (context, find), name = _target(request), request.path_params["name"]

    def first_two() -> tuple[Dataset, list[File]]:
        dataset = find()
        return dataset, list(itertools.islice(all_files(dataset, page_files=3), 2))

    dataset, files = await run_blocking(first_two)
    if len(files) == 1:
        return FileResponse(context, name, files[0].path)
    headers = {"Content-Disposition": disposition(f"{name}.tar"), **NO_SNIFF}
    if request.method == "HEAD":
        return Response(headers=headers, media_type=OCTETS)
    with replaced_is_503():
        return StreamingResponse(await started(tar_stream(dataset)), headers=headers, media_type=OCTETS)


async def put_dataset(request: Request) -> Response:
    """PUT /datasets/{name}: a file, named by Content-Disposition or its content, or with ?unpack=1 an archive."""
    (context, find), name = _target(request), request.path_params["name"]
    require_file_body(request)
    path = name_in_disposition(request.headers.get("content-disposition"))
    unpacks = _flag(request, "unpack", "0")
    for header in ("Content-Range", *(("If-Match", "If-None-Match") if unpacks else ())):
        if header in request.headers:
            raise Problem(400, f"{header} is for one file with a path: PUT /datasets/{name}/files/PATH.")
    if path is not None and not unpacks:
        return await _store_file(request, path)
    receiver, upload = Receiver(request, context.root, context.limits), uuid.uuid4().hex

    def start() -> tuple[Dataset, FileWriter]:
        dataset = find()
        return dataset, dataset.writer(dataset.part_path(upload, "body"), {})

    dataset, writer = await run_blocking(start)
    received = await receiver.receive(writer)
    root, limits, stopping = context.root, context.limits, context.stopping

    def unpack() -> Unpacked:
        writer.commit(received.sha256)
        with contextlib.closing(dataset.open(dataset.part_path(upload, "body"))) as archive:
            return Unpacking(root, dataset, archive, path or "the archive", limits, stopping).run()

    def store() -> File:
        writer.commit(received.sha256)
        body, final = dataset.part_path(upload, "body"), name_from_content(received.head, received.sha256)
        named = dataset.adopt(body, final, request.headers, "")
        if named is None:
            named = dataset.writer(final, request.headers, sha256=received.sha256)
            with contextlib.closing(dataset.open(body)) as opened:
                for chunk in opened.chunks(0, received.num_bytes, 1 << 20):
                    named.write(chunk)
        return named.commit(received.sha256)

    try:
        if not unpacks:
            return _stored(name, await run_blocking(store, "join"))
        unpacked = await run_blocking(unpack, "look")
    finally:
        with anyio.CancelScope(shield=True):
            await run_blocking(lambda: dataset.remove_parts(upload), "write")
    return JSONResponse({"name": name, **unpacked._asdict()}, headers={"Repr-Digest": digest_field(received.sha256)})


async def summary(request: Request) -> Response:
    """GET /datasets/{name}/summary."""
    (context, find), name, inside = _target(request), request.path_params["name"], _flag(request, "inside", "1")

    def compute() -> Any:
        dataset = find()
        files = file_urls(context.root, dataset)
        return summarize(dataset.url, context.root.options, look_inside=inside, files=files).as_json()

    await run_blocking(find)
    found = await context.summary(name, f"summary {inside}", compute)
    return JSONResponse({**_dataset_json(name), **found})


async def sheet(request: Request) -> Response:
    """GET /datasets/{name}/sheet.png."""
    (context, find), name = _target(request), request.path_params["name"]

    def compute() -> bytes | None:
        dataset = find()
        return draw_sheet(dataset.url, context.root.options, files=file_urls(context.root, dataset))

    await run_blocking(find)
    drawn = await context.summary(name, "sheet", compute)
    if drawn is None:
        raise Problem(404, f"There are no images in {name!r}.")
    return Response(drawn, headers={"Cache-Control": "no-cache", **NO_SNIFF}, media_type="image/png")


# Listings and batches


async def list_files(request: Request) -> Response:
    """GET /datasets/{name}/files."""
    (context, find), query = _target(request), request.query_params
    recursive, digests = _flag(request, "recursive", "1"), _flag(request, "digests", "0")
    prefix, after, limit = query.get("prefix", ""), query.get("after", ""), query.get("limit", "1000")
    require_prefix(prefix)
    require_text(after)
    if re.fullmatch(r"[1-9]\d{0,4}", limit, re.ASCII) is None or int(limit) > MAX_PAGE:
        raise Problem(400, f"limit={limit!r:.100}: expected a number from 1 to {MAX_PAGE}.")

    def listed() -> Response:  # in a thread: the JSON of ten thousand files takes a tenth of a second
        dataset = find()
        page = dataset.page(prefix, recursive=recursive, after=after, limit=int(limit))
        files, folders, following = [file.as_json() for file in page.files], page.folders, page.next
        if digests:
            files, following = _with_digests(context, dataset, page.files, following)
            folders = [path for path in folders if following in (None, page.next) or path < following]
        return JSONResponse({"files": files, "folders": folders, "next": following})

    if not digests:
        return await run_blocking(listed, "list")
    async with context.locks.held_in_loop(("digests", request.path_params["name"], prefix, after)):
        return await run_blocking(listed, "join")  # the first one stores what it reads for others


def _with_digests(
    context: Context, dataset: Dataset, listed: list[File], following: str | None
) -> tuple[list[dict[str, Any]], str | None]:
    """Return files with digests, and where the next page begins: earlier, before the client would time out."""
    files: list[dict[str, Any]] = []
    num_bytes, last = 0, ""
    for file in each(dataset, dataset.about, listed):
        sha256 = file.sha256
        if sha256 is None:
            if num_bytes > _DIGESTED_BYTES:
                return files, last
            found = _digested(context, dataset, file)
            if found is None:  # removed since it was listed
                continue
            file, sha256 = found
            num_bytes += file.size
        files.append(file.as_json(sha256=sha256))
        last = file.path
    return files, following


def _digested(context: Context, dataset: Dataset, file: File | None) -> tuple[File, str] | None:
    """Compute the digest of a file, again if it is replaced meanwhile; ``None`` if it is removed."""
    for _ in range(_MAX_ATTEMPTS):
        if file is None:
            return None
        with contextlib.suppress(ObjectNotFoundError, ObjectChangedError):
            return file, sha256_of_file(dataset, file, context.stopping)
        file = dataset.find(file.path)
    raise Problem(503, "A file is replaced continuously. Send the request again.", {"Retry-After": "1"})


async def get_batch(request: Request) -> Response:
    """POST /datasets/{name}/files: the files of a list of paths, as a tar."""
    context, find = _target(request)
    document = await json_body(request, context.limits, _MAX_PATHS_BYTES)
    paths = document.get("paths") if isinstance(document, dict) and set(document) == {"paths"} else None
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise Problem(400, 'Expected the JSON object {"paths": ["cat/1.jpg", "cat/2.jpg"]}.')
    if len(paths) > MAX_BATCH_FILES:
        raise Problem(413, f"{len(paths):,} paths: a batch may have {MAX_BATCH_FILES:,} files at most.")
    num_bytes, chunks = await run_blocking(lambda: batch_of(find(), paths))
    with replaced_is_503():
        headers = {"Content-Length": str(num_bytes), **NO_SNIFF}
        return StreamingResponse(await started(chunks), headers=headers, media_type="application/x-tar")


async def put_batch(request: Request) -> Response:
    """PUT /datasets/{name}/files: store the files of a tar one by one while it is received."""
    context, find = _target(request)
    require_file_body(request)
    for header in _OF_ONE_FILE:
        if header in request.headers:
            raise Problem(400, f"{header} is for one file; a batch has many. Send the files that need it one by one.")
    body = Body(request, context.limits, MAX_BATCH_BYTES)
    writer = await run_blocking(lambda: BatchWriter(context.root, find(), context.limits))
    try:
        while chunk := await body.next_chunk():
            await run_blocking(partial(writer.feed, chunk), "write")
        await run_blocking(partial(writer.feed, b"", is_last=True), "write")
    except BaseException:
        with anyio.CancelScope(shield=True), contextlib.suppress(Problem):
            await run_blocking(writer.result, "write")
        raise
    return JSONResponse(await run_blocking(writer.result, "write"))


# Files


async def get_file(request: Request) -> Response:
    """GET and HEAD /datasets/{name}/files/{path}; with ?upload=ID, the progress of an upload."""
    path = require_path(request.path_params["path"])
    if "upload" not in request.query_params:
        return FileResponse(Context.of(request), request.path_params["name"], path)
    upload = await _upload(request, path)
    return JSONResponse(upload_json(request.query_params["upload"], await run_blocking(upload.progress)))


async def put_file(request: Request) -> Response:
    """PUT /datasets/{name}/files/{path}: a file, or with ?upload=ID a part of one."""
    path = require_path(request.path_params["path"])
    require_file_body(request)
    if "upload" in request.query_params:
        return await _put_part(request, path)
    if "content-range" in request.headers:
        raise Problem(400, "Content-Range is for parts of an upload: add ?upload=ID, with an ID of your choice.")
    return await _store_file(request, path)


async def delete_file(request: Request) -> Response:
    """DELETE /datasets/{name}/files/{path}: a file, or with ?upload=ID the parts of an upload."""
    (_, find), path = _target(request), require_path(request.path_params["path"])
    if "upload" in request.query_params:
        await run_blocking((await _upload(request, path)).discard, "join")
    else:
        await run_blocking(lambda: find().delete(path, request.headers), "write")
    return Response(status_code=204)


async def _store_file(request: Request, path: str) -> Response:
    """Store the body as a file, which becomes visible when it is complete."""
    context, find = _target(request)
    receiver = Receiver(request, context.root, context.limits)
    promised = receiver.promised_sha256()
    writer = await run_blocking(lambda: find().writer(path, request.headers, sha256=promised))
    received = await receiver.receive(writer)
    return _stored(request.path_params["name"], await run_blocking(lambda: writer.commit(received.sha256), "write"))


def _stored(name: str, file: File) -> Response:
    """Report a stored file."""
    assert file.sha256 is not None
    document = file.as_json(sha256=file.sha256, location=location(name, file.path))
    return JSONResponse(document, headers={"ETag": file.etag, "Repr-Digest": digest_field(file.sha256)})


async def _upload(request: Request, path: str) -> PartialUpload:
    (context, find), upload_id = _target(request), require_upload_id(request.query_params["upload"])
    return PartialUpload(await run_blocking(find), path, upload_id, context.limits, context.uploads)


async def _put_part(request: Request, path: str) -> Response:
    context, upload = Context.of(request), await _upload(request, path)
    requested = Part(*content_range(request.headers.get("content-range")))
    receiver = Receiver(request, context.root, context.limits)
    part, writer = await run_blocking(lambda: upload.start(requested))
    received = await receiver.receive(
        writer,
        part_bytes=part.end - part.start,
        keep_cut=lambda num_bytes, sha256: upload.keep_cut(part, writer, num_bytes, sha256),
    )
    finish = partial(upload.finish, part, writer, received.sha256, request.headers, context.stopping)
    try:
        result = await run_blocking(finish, "join")
    finally:
        with anyio.CancelScope(shield=True):
            await run_blocking(writer.abort)
    if isinstance(result, Progress):
        return JSONResponse(upload_json(request.query_params["upload"], result), 202)
    return _stored(request.path_params["name"], result)
