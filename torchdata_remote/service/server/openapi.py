"""The OpenAPI document of the service."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from typing import Any

from ...storage.dataset_service.protocol import DATASET_NAME, MAX_BATCH_FILES, MAX_PATH_BYTES, MAX_SEGMENT_BYTES
from .archives import Unpacked
from .names import PATH, PREFIX, UPLOAD_ID
from .problems import MEANINGS
from .routes import MAX_PAGE

Json = dict[str, Any]
ETAG: Json = {"type": "string", "pattern": '^"[^"]+"$'}
SHA256: Json = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
COUNT: Json = {"type": "integer", "minimum": 0}
OCTETS: Json = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}


def json_object(required: Json, optional: Json | None = None) -> Json:
    """Describe a JSON object with these fields and no others."""
    return {
        "type": "object",
        "required": sorted(required),
        "properties": {**required, **(optional or {})},
        "additionalProperties": False,
    }


DATASET = json_object({"name": {"type": "string", "pattern": f"^{DATASET_NAME}$"}, "location": {"type": "string"}})
FILE = json_object(
    {
        "path": {"type": "string", "minLength": 1},
        "size": COUNT,
        "etag": ETAG,
        "modified": {"type": ["string", "null"], "format": "date-time"},
    },
    {"sha256": SHA256, "location": {"type": "string"}},
)
PROGRESS = json_object(
    {
        "upload": {"type": "string"},
        "received": {"type": "array", "items": {"type": "array", "items": COUNT, "minItems": 2, "maxItems": 2}},
        "total": {"type": ["integer", "null"]},
    }
)
SUMMARY: Json = {"type": "object", "required": ["name", "location", "num_files", "num_bytes", "kind", "classes"]}
TAR: Json = {"application/x-tar": {"schema": {"type": "string", "format": "binary"}}}
PATHS = json_object(
    {
        "paths": {
            "type": "array",
            "maxItems": MAX_BATCH_FILES,
            "items": {"type": "string", "pattern": PATH, "minLength": 1},
        }
    }
)
FAILED = json_object({"path": {"type": "string"}, "status": COUNT, "error": {"type": "string"}})
STORED = json_object(
    {
        "files": {"type": "array", "items": FILE},
        "failed": {"type": "array", "items": FAILED},
        "num_skipped": COUNT,
    }
)
_ALWAYS = (400, 401, 403, 414, 421, 431, 502, 503)


def _json(schema: Json) -> Json:
    return {"application/json": {"schema": schema}}


def _parameter(where: str, name: str, schema: Json, description: str) -> Json:
    return {"in": where, "name": name, "schema": schema, "description": description, "required": where == "path"}


def _query(name: str, schema: Json, description: str) -> Json:
    return _parameter("query", name, schema, description)


def _header(name: str, description: str) -> Json:
    return _parameter("header", name, {"type": "string"}, description)


def _operation(name: str, summary: str, answers: dict[int, Any], problems: tuple[int, ...] = (), **more: Any) -> Json:
    """Describe an operation; ``responses`` are status -> content, ``None`` for an empty one."""
    responses: Json = {}
    for status, content in answers.items():
        responses[str(status)] = {"description": summary} | ({} if content is None else {"content": content})
    for status in sorted({*_ALWAYS, *problems}):
        responses[str(status)] = {
            "description": MEANINGS[status],
            "content": _json({"$ref": "#/components/schemas/Problem"}),
        }
    return {"operationId": name, "summary": summary, "responses": responses, **more}


_NAME = _parameter("path", "name", {"type": "string", "pattern": f"^{DATASET_NAME}$"}, "of the dataset")
_PATH = _parameter(
    "path",
    "path",
    {"type": "string", "minLength": 1, "maxLength": MAX_PATH_BYTES, "pattern": PATH},
    f"of the file, its slashes as they are; at most {MAX_PATH_BYTES} bytes of UTF-8, and {MAX_SEGMENT_BYTES} between "
    "slashes",
)
_UPLOAD = _query("upload", {"type": "string", "pattern": f"^{UPLOAD_ID}$"}, "the client's name for an upload in parts")
_FLAG: Json = {"type": "string", "enum": ["0", "1"]}
_READING = [
    _header("Range", "bytes=first-last"),
    _header("If-Match", "the version that is wanted"),
    _header("If-None-Match", "the version that the client has"),
    _header("If-Range", "the version that Range is for"),
    _header("Want-Repr-Digest", "sha-256=1 asks for the digest of the whole file"),
]
_WRITING = [
    _header("If-Match", "the version to replace"),
    _header("If-None-Match", "* keeps a file that is there"),
    _header("Repr-Digest", "sha-256=:BASE64: of the whole file"),
    _header("Content-Digest", "sha-256=:BASE64: of this body"),
]
_PAGING = [
    _query("prefix", {"type": "string", "maxLength": MAX_PATH_BYTES, "pattern": PREFIX}, "what paths begin with"),
    _query(
        "after", {"type": "string", "maxLength": MAX_PATH_BYTES, "pattern": r"^[^\x00]*$"}, "next of the page before"
    ),
    _query("limit", {"type": "integer", "minimum": 1, "maximum": MAX_PAGE, "default": 1000}, "files at most"),
    _query("recursive", {**_FLAG, "default": "1"}, "0: files in the prefix' folder, and the folders in it"),
    _query("digests", {**_FLAG, "default": "0"}, "1: with the SHA-256 of each file, by which pages may become short"),
]


@cache
def describe() -> Json:
    """The OpenAPI 3.1 document."""
    body = {"required": False, "content": OCTETS}  # without one, the file is empty
    sending = {200: OCTETS, 206: OCTETS, 304: None}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "torchdata_remote dataset service",
            "version": version("torchdata_remote"),
            "description": "Hosts datasets for a cluster. /dataset is the same as /datasets.",
        },
        "security": [{}, {"token": []}],
        "paths": {
            "/datasets": {
                "get": _operation(
                    "listDatasets",
                    "The datasets",
                    {200: _json(json_object({"datasets": {"type": "array", "items": DATASET}}))},
                ),
                "post": _operation(
                    "createDataset",
                    "Make an empty dataset",
                    {201: _json(DATASET)},
                    (409, 413, 415),
                    requestBody={"required": True, "content": _json(json_object({"name": _NAME["schema"]}))},
                ),
            },
            "/datasets/{name}": {
                "parameters": [_NAME],
                "get": _operation(
                    "getDataset", "Its only file, or a tar of all", sending, (404, 412, 416), parameters=_READING
                ),
                "put": _operation(
                    "putIntoDataset",
                    "Add a file, or the files of an archive",
                    {
                        200: _json(
                            {
                                "anyOf": [
                                    FILE,
                                    json_object({"name": {"type": "string"}} | dict.fromkeys(Unpacked._fields, COUNT)),
                                ]
                            }
                        )
                    },
                    (404, 408, 409, 411, 412, 413, 415, 507),
                    parameters=[
                        _query("unpack", {**_FLAG, "default": "0"}, "1: a tar or zip becomes files"),
                        _header("Content-Disposition", 'attachment; filename="my_file.csv"'),
                        *_WRITING,
                    ],
                    requestBody=body,
                ),
                "delete": _operation("deleteDataset", "Remove it with all of its files", {204: None}, (404,)),
            },
            "/datasets/{name}/files": {
                "parameters": [_NAME],
                "get": _operation(
                    "listFiles",
                    "Files, sorted by path, a page at a time",
                    {
                        200: _json(
                            json_object(
                                {
                                    "files": {"type": "array", "items": FILE},
                                    "folders": {"type": "array", "items": {"type": "string"}},
                                    "next": {"type": ["string", "null"]},
                                }
                            )
                        )
                    },
                    (404,),
                    parameters=_PAGING,
                ),
                "post": _operation(
                    "getFiles",
                    "A tar of files of a list of paths; those without a file are left out",
                    {200: TAR},
                    (404, 408, 413, 415),
                    requestBody={"required": True, "content": _json(PATHS)},
                ),
                "put": _operation(
                    "putFiles",
                    "Store the small files of a tar, one by one while it is received; failed ones are reported",
                    {200: _json(STORED)},
                    (404, 408, 413, 415, 507),
                    requestBody={"required": True, "content": OCTETS},
                ),
            },
            "/datasets/{name}/files/{path}": {
                "parameters": [_NAME, _PATH],
                "get": _operation(
                    "getFile",
                    "A file, a range of it, or what is there of an upload",
                    {**sending, 200: {**OCTETS, **_json(PROGRESS)}},
                    (404, 412, 416),
                    parameters=[_UPLOAD, *_READING],
                ),
                "put": _operation(
                    "putFile",
                    "Store a file, or with upload a part of one",
                    {200: _json(FILE), 202: _json(PROGRESS)},
                    (404, 408, 409, 411, 412, 413, 415, 507),
                    parameters=[_UPLOAD, _header("Content-Range", "bytes first-last/total, of a part"), *_WRITING],
                    requestBody=body,
                ),
                "delete": _operation(
                    "deleteFile",
                    "Remove a file, or with upload what is there of an upload",
                    {204: None},
                    (404, 412),
                    parameters=[_UPLOAD, _header("If-Match", "the version to remove")],
                ),
            },
            "/datasets/{name}/summary": {
                "parameters": [_NAME],
                "get": _operation(
                    "summarize", "Files, sizes, labels, and the code to train", {200: _json(SUMMARY)}, (404,)
                ),
            },
            "/datasets/{name}/sheet.png": {
                "parameters": [_NAME],
                "get": _operation(
                    "drawSheet",
                    "A contact sheet of its images",
                    {200: {"image/png": {"schema": {"type": "string", "format": "binary"}}}},
                    (404,),
                ),
            },
            "/healthz": {
                "get": _operation(
                    "health", "Whether the service lives", {200: _json(json_object({"status": {"const": "ok"}}))}
                )
            },
            "/metrics": {
                "get": _operation("metrics", "For Prometheus", {200: {"text/plain": {"schema": {"type": "string"}}}})
            },
        },
        "components": {
            "schemas": {"Problem": json_object({"error": {"type": "string"}})},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }
