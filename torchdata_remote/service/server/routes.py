"""Handlers of requests: datasets, their files, batches, archives, summaries."""

from __future__ import annotations

import itertools
import re
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from ...core.urls import RemoteUrl
from ...inspection.dataset_page import draw_sheet, summarize
from ...storage.dataset_service.protocol import MAX_BATCH_FILES, MAX_PATH_BYTES, digest_field
from .archives import tar_stream, unpack
from .bodies import aborted_unless_committed, json_body, receive, require_file_body
from .context import Context, Dataset, all_files, delete, each, page_of, sha256_of_file
from .folder import FolderDataset
from .problems import JSONResponse, Problem
from .requests import (
    disposition,
    name_in_disposition,
    require_dataset_name,
    require_path,
    require_prefix,
    require_text,
)
from .responses import NO_SNIFF, OCTETS, FileResponse, replaced_is_503, started
from .root import File, location
from .threads import run_blocking

MAX_PAGE = 10_000
_FLAG = {"0": False, "1": True}
_MAX_JSON_BYTES = 64 << 10
_MAX_PATHS_BYTES = MAX_BATCH_FILES * (3 * MAX_PATH_BYTES + 16)  # JSON may write two bytes of UTF-8 as \u00e9
_DIGESTED_BYTES = 256 << 20  # read in one page, of files whose digests are not stored


def _target(request: Request) -> tuple[Context, str, Callable[[], Dataset]]:
    """Return the context, the name of the dataset of a request, and what finds it, in a thread."""
    context, name = Context.of(request), request.path_params["name"]
    return context, name, lambda: context.root.dataset(name)


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
    requested = await json_body(request, _MAX_JSON_BYTES)
    if not isinstance(requested, dict) or set(requested) != {"name"}:
        raise Problem(400, 'Expected the JSON object {"name": "my_dataset"}.')
    name = require_dataset_name(requested["name"])
    await run_blocking(lambda: Context.of(request).root.create(name))
    return JSONResponse(_dataset_json(name), 201, {"Location": location(name)})


async def delete_dataset(request: Request) -> Response:
    """DELETE /datasets/{name}."""
    context, name, _ = _target(request)
    await run_blocking(lambda: context.root.remove(name), "remove")
    return Response(status_code=204)


async def get_dataset(request: Request) -> Response:
    """GET and HEAD /datasets/{name}: its only file, or a tar of all files."""
    context, name, find = _target(request)

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
    """PUT /datasets/{name}: a file that Content-Disposition names, or with ?unpack=1 the files of an archive."""
    context, name, find = _target(request)
    require_file_body(request)
    unpacks = _flag(request, "unpack", "0")
    if not unpacks:
        return await _store_file(request, name_in_disposition(request.headers.get("content-disposition")))
    for header in ("Content-Range", "If-Match", "If-None-Match"):
        if header in request.headers:
            raise Problem(400, f"{header} is for one file with a path: PUT /datasets/{name}/files/PATH.")
    dataset = await run_blocking(find)
    with tempfile.TemporaryFile(dir=context.root.scratch()) as archive:
        sha256 = await receive(request, archive)
        unpacked = await run_blocking(lambda: unpack(context, dataset, archive, "the archive"), "unpack")
    return JSONResponse({"name": name, **unpacked}, headers={"Repr-Digest": digest_field(sha256)})


async def summary(request: Request) -> Response:
    """GET /datasets/{name}/summary."""
    (context, name, find), inside = _target(request), _flag(request, "inside", "1")

    def compute() -> Any:
        dataset = find()
        files = _file_urls(dataset)
        return summarize(dataset.url, context.root.options, look_inside=inside, files=files).as_json()

    await run_blocking(find)
    found = await context.summary(name, f"summary {inside}", compute)
    return JSONResponse({**_dataset_json(name), **found})


async def sheet(request: Request) -> Response:
    """GET /datasets/{name}/sheet.png."""
    context, name, find = _target(request)

    def compute() -> bytes | None:
        dataset = find()
        return draw_sheet(dataset.url, context.root.options, files=_file_urls(dataset))

    await run_blocking(find)
    drawn = await context.summary(name, "sheet", compute)
    if drawn is None:
        raise Problem(404, f"There are no images in {name!r}.")
    return Response(drawn, headers={"Cache-Control": "no-cache", **NO_SNIFF}, media_type="image/png")


def _file_urls(dataset: Dataset) -> Iterator[RemoteUrl]:
    """Iterate over the URLs of all files, sorted, with an error at a link."""
    quotes = '"' if isinstance(dataset, FolderDataset) else ""  # which versions of local files lack
    return (RemoteUrl(dataset.url + one.path, one.size, one.etag.strip(quotes)) for one in all_files(dataset))


# Listings and batches


async def list_files(request: Request) -> Response:
    """GET /datasets/{name}/files."""
    (context, name, find), query = _target(request), request.query_params
    recursive, digests = _flag(request, "recursive", "1"), _flag(request, "digests", "0")
    prefix, after, limit = query.get("prefix", ""), query.get("after", ""), query.get("limit", "1000")
    require_prefix(prefix)
    require_text(after)
    if re.fullmatch(r"[1-9]\d{0,4}", limit, re.ASCII) is None or int(limit) > MAX_PAGE:
        raise Problem(400, f"limit={limit!r:.100}: expected a number from 1 to {MAX_PAGE}.")

    def listed() -> Response:  # in a thread: the JSON of ten thousand files takes a tenth of a second
        dataset = find()
        page = page_of(dataset, prefix, recursive=recursive, after=after, limit=int(limit))
        files, folders, following = [file.as_json() for file in page.files], page.folders, page.next
        if digests:
            files, following = _with_digests(context, dataset, page.files, following)
            folders = [path for path in folders if following in (None, page.next) or path < following]
        return JSONResponse({"files": files, "folders": folders, "next": following})

    if not digests:
        return await run_blocking(listed, "list")
    async with context.locks.held_in_loop(("digests", name, prefix, after)):
        return await run_blocking(listed, "hash")  # the first one stores what it reads for others


def _with_digests(
    context: Context, dataset: Dataset, listed: list[File], following: str | None
) -> tuple[list[dict[str, Any]], str | None]:
    """Return files with digests, and where the next page begins: earlier, before the client would time out."""
    files: list[dict[str, Any]] = []
    num_bytes = 0
    for file in each(dataset, dataset.about, listed):
        if file.sha256 is None and num_bytes > _DIGESTED_BYTES:
            return files, files[-1]["path"]
        num_bytes += file.size if file.sha256 is None else 0
        with replaced_is_503():
            files.append(file.as_json(sha256=sha256_of_file(dataset, file, context.stopping)))
    return files, following


async def get_batch(request: Request) -> Response:
    """POST /datasets/{name}/files: the files of a list of paths, as a tar."""
    _, _, find = _target(request)
    document = await json_body(request, _MAX_PATHS_BYTES)
    paths = document.get("paths") if isinstance(document, dict) and set(document) == {"paths"} else None
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise Problem(400, 'Expected the JSON object {"paths": ["cat/1.jpg", "cat/2.jpg"]}.')
    if len(paths) > MAX_BATCH_FILES:
        raise Problem(413, f"{len(paths):,} paths: a batch may have {MAX_BATCH_FILES:,} files at most.")
    paths, dataset = [require_path(path) for path in paths], await run_blocking(find)
    with replaced_is_503():
        return StreamingResponse(await started(tar_stream(dataset, paths)), media_type="application/x-tar")


# Files


async def get_file(request: Request) -> Response:
    """GET and HEAD /datasets/{name}/files/{path}."""
    return FileResponse(Context.of(request), request.path_params["name"], require_path(request.path_params["path"]))


async def put_file(request: Request) -> Response:
    """PUT /datasets/{name}/files/{path}."""
    require_file_body(request)
    return await _store_file(request, require_path(request.path_params["path"]))


async def delete_file(request: Request) -> Response:
    """DELETE /datasets/{name}/files/{path}."""
    (_, _, find), path = _target(request), require_path(request.path_params["path"])
    if "upload" in request.query_params:
        raise Problem(400, "There are no uploads in parts.")
    await run_blocking(lambda: delete(find(), path, request.headers), "write")
    return Response(status_code=204)


async def _store_file(request: Request, path: str) -> Response:
    """Store the body as a file, which becomes visible when it is complete."""
    (_, name, find), headers = _target(request), request.headers
    if "content-range" in headers:
        raise Problem(400, "A file is stored as a whole: send it without Content-Range.")
    writer = await run_blocking(lambda: find().writer(path, headers))
    async with aborted_unless_committed(writer):
        sha256 = await receive(request, writer)
        return _stored(name, await run_blocking(lambda: writer.commit(sha256), "write"))


def _stored(name: str, file: File) -> Response:
    """Report a stored file."""
    assert file.sha256 is not None
    document = file.as_json(sha256=file.sha256, location=location(name, file.path))
    return JSONResponse(document, headers={"ETag": file.etag, "Repr-Digest": digest_field(file.sha256)})
