"""JSON schemas of the OpenAPI document."""

from __future__ import annotations

from typing import Any

from ....storage.dataset_service.protocol import DATASET_NAME, MAX_BATCH_FILES
from ..datasets.names import PATH

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
