"""JSON of the service. Each response ends with a line feed, so that a shell's prompt follows on a line of its own."""

from __future__ import annotations

from typing import Any

from starlette.responses import JSONResponse as StarletteJSONResponse


class JSONResponse(StarletteJSONResponse):
    """A response with a JSON document."""

    def render(self, content: Any) -> bytes:
        """Serialize the document."""
        return super().render(content) + b"\n"
