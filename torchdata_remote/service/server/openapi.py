"""The OpenAPI document of the service."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from typing import Any

from ...storage.dataset_service.protocol import DATASET_NAME, MAX_BATCH_FILES, MAX_PATH_BYTES, MAX_SEGMENT_BYTES
from .archives import Unpacked
from .names import PATH, PREFIX, UPLOAD_ID
from .routes import MAX_PAGE

Json = dict[str, Any]


def _text(**more: Any) -> Json:
    return {"type": "string", **more}


def _list(items: Json, **more: Any) -> Json:
    return {"type": "array", "items": items, **more}


def _object(required: Json, optional: Json | None = None) -> Json:
    """Describe a JSON object with these fields and no others."""
    properties = {**required, **(optional or {})}
    return {"type": "object", "required": sorted(required), "properties": properties, "additionalProperties": False}


def _json(schema: Json) -> Json:
    return {"application/json": {"schema": schema}}


def _binary(kind: str) -> Json:
    return {kind: {"schema": _text(format="binary")}}


def _in(where: str, name: str, schema: Json, description: str) -> Json:
    return {"in": where, "name": name, "schema": schema, "description": description, "required": where == "path"}


def _query(name: str, schema: Json, description: str) -> Json:
    return _in("query", name, schema, description)


def _headers(**descriptions: str) -> list[Json]:
    return [_in("header", name.replace("_", "-"), _text(), text) for name, text in descriptions.items()]


def _flag(name: str, default: str, description: str) -> Json:
    return _query(name, _text(enum=["0", "1"], default=default), description)


def _answers(name: str, summary: str, answers: Mapping[int, Json | None], **more: Any) -> Json:
    """Describe an operation; ``answers`` are status -> content, ``None`` for an empty one. All others are problems."""
    responses: Json = {"default": {"description": "what is wrong", "content": _json(_object({"error": _text()}))}}
    for status, content in answers.items():
        responses[str(status)] = {"description": summary} | ({} if content is None else {"content": content})
    return {"operationId": name, "summary": summary, "responses": responses, **more}


def _body(content: Json, *, required: bool = True) -> Json:
    return {"required": required, "content": content}


_COUNT: Json = {"type": "integer", "minimum": 0}
_SHA256, _OCTETS, _NAME = (
    _text(pattern="^[0-9a-f]{64}$"),
    _binary("application/octet-stream"),
    _text(pattern=f"^{DATASET_NAME}$"),
)
_DATASET = _object({"name": _NAME, "location": _text()})
_FILE = _object(
    {
        "path": _text(minLength=1),
        "size": _COUNT,
        "etag": _text(pattern='^"[^"]+"$'),
        "modified": {"type": ["string", "null"], "format": "date-time"},
    },
    {"sha256": _SHA256, "location": _text()},
)
_FILES = _list(_FILE)
_PROGRESS = _object(
    {
        "upload": _text(),
        "received": _list(_list(_COUNT, minItems=2, maxItems=2)),
        "total": {"type": ["integer", "null"]},
    }
)
_FAILED = _list(_object({"path": _text(), "status": _COUNT, "error": _text()}))
_SUMMARY: Json = {"type": "object", "required": ["name", "location", "num_files", "num_bytes", "kind", "classes"]}
_PATHS = _object({"paths": _list(_text(pattern=PATH, minLength=1), maxItems=MAX_BATCH_FILES)})
_UNPACKED = _object({"name": _text()} | dict.fromkeys(Unpacked._fields, _COUNT))
_UPLOAD = _query("upload", _text(pattern=f"^{UPLOAD_ID}$"), "the client's name for an upload in parts")
_READING = _headers(
    Range="bytes=first-last",
    If_Match="the version that is wanted",
    If_None_Match="the version that the client has",
    If_Range="the version that Range is for",
    Want_Repr_Digest="sha-256=1 asks for the digest of the whole file",
)
_WRITING = _headers(
    If_Match="the version to replace",
    If_None_Match="* keeps a file that is there",
    Repr_Digest="sha-256=:BASE64: of the whole file",
    Content_Digest="sha-256=:BASE64: of this body",
)
_PAGING = [
    _query("prefix", _text(maxLength=MAX_PATH_BYTES, pattern=PREFIX), "what paths begin with"),
    _query("after", _text(maxLength=MAX_PATH_BYTES, pattern=r"^[^\x00]*$"), "next of the page before"),
    _query("limit", {"type": "integer", "minimum": 1, "maximum": MAX_PAGE, "default": 1000}, "files at most"),
    _flag("recursive", "1", "0: files in the prefix' folder, and the folders in it"),
    _flag("digests", "0", "1: with the SHA-256 of each file, by which pages may become short"),
]


@cache
def describe() -> Json:
    """The OpenAPI 3.1 document."""
    path = _text(minLength=1, maxLength=MAX_PATH_BYTES, pattern=PATH)
    about = f"slashes as they are; {MAX_PATH_BYTES} bytes of UTF-8, {MAX_SEGMENT_BYTES} between slashes at most"
    sending = {200: _OCTETS, 206: _OCTETS, 304: None, 307: None}
    optional = _body(_OCTETS, required=False)  # without one, the file is empty
    page = _object({"files": _FILES, "folders": _list(_text()), "next": {"type": ["string", "null"]}})
    stored = _object({"files": _FILES, "failed": _FAILED, "num_skipped": _COUNT})
    naming = [
        _flag("unpack", "0", "1: a tar or zip becomes files"),
        *_headers(Content_Disposition='attachment; filename="my_file.csv"'),
    ]
    part = _headers(Content_Range="bytes first-last/total, of a part")
    removing = _headers(If_Match="the version to remove")
    health = _object({"status": {"const": "ok"}})
    all_names = {200: _json(_object({"datasets": _list(_DATASET)}))}
    naming_one = _body(_json(_object({"name": _NAME})))
    added = {200: _json({"anyOf": [_FILE, _UNPACKED]})}
    file_or_progress = {200: _json(_FILE), 202: _json(_PROGRESS)}
    reading, batch = {**sending, 200: {**_OCTETS, **_json(_PROGRESS)}}, _body(_json(_PATHS))
    tar, picture, text = _binary("application/x-tar"), _binary("image/png"), {"text/plain": {"schema": _text()}}
    operations: dict[str, Json] = {
        "/datasets": {
            "get": _answers("listDatasets", "The datasets", all_names),
            "post": _answers("createDataset", "Make an empty one", {201: _json(_DATASET)}, requestBody=naming_one),
        },
        "/datasets/{name}": {
            "get": _answers("getDataset", "Its only file, or a tar of all", sending, parameters=_READING),
            "put": _answers(
                "putIntoDataset", "Add a file or an archive", added, parameters=naming + _WRITING, requestBody=optional
            ),
            "delete": _answers("deleteDataset", "Remove it with all of its files", {204: None}),
        },
        "/datasets/{name}/files": {
            "get": _answers("listFiles", "Files, sorted by path, in pages", {200: _json(page)}, parameters=_PAGING),
            "post": _answers("getFiles", "A tar of those files of a list that exist", {200: tar}, requestBody=batch),
            "put": _answers(
                "putFiles",
                "Store the small files of a tar one by one",
                {200: _json(stored)},
                requestBody=_body(_OCTETS),
            ),
        },
        "/datasets/{name}/files/{path}": {
            "get": _answers(
                "getFile", "A file, or what is there of an upload", reading, parameters=[_UPLOAD, *_READING]
            ),
            "put": _answers(
                *("putFile", "Store a file, or with upload a part of one", file_or_progress),
                parameters=[_UPLOAD, *part, *_WRITING],
                requestBody=optional,
            ),
            "delete": _answers("deleteFile", "Remove it, or an upload", {204: None}, parameters=[_UPLOAD, *removing]),
        },
        "/datasets/{name}/summary": {
            "get": _answers("summarize", "Files, sizes, labels, and the code to train", {200: _json(_SUMMARY)})
        },
        "/datasets/{name}/sheet.png": {"get": _answers("drawSheet", "A contact sheet of its images", {200: picture})},
        "/healthz": {"get": _answers("health", "Whether the service lives", {200: _json(health)})},
        "/metrics": {"get": _answers("metrics", "For Prometheus", {200: text})},
    }
    ours = {"name": _in("path", "name", _NAME, "of the dataset"), "path": _in("path", "path", path, about)}
    for target, operation in operations.items():
        operation["parameters"] = [one for name, one in ours.items() if f"{{{name}}}" in target]
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "torchdata_remote dataset service",
            "version": version("torchdata_remote"),
            "description": "Hosts datasets for a cluster. /dataset is the same as /datasets.",
        },
        "security": [{}, {"token": []}],
        "paths": operations,
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }
