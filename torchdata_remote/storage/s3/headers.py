"""Malformed headers of S3 responses that botocore cannot parse, although they are redundant."""

from __future__ import annotations

import email.utils
from typing import Any

from ..http import parse_content_length


def tolerate_malformed_headers(client: Any) -> None:
    """Let a botocore client accept a repeated Content-Length, and a Last-Modified that is no date."""
    for operation in ("GetObject", "HeadObject"):
        client.meta.events.register(f"before-parse.s3.{operation}", _repair)


def _repair(response_dict: dict[str, Any], **_: Any) -> None:
    headers = response_dict["headers"]
    if "content-length" in headers:
        length = parse_content_length(headers["content-length"])
        del headers["content-length"]
        if length is not None:
            headers["content-length"] = str(length)
    if "last-modified" in headers:
        try:
            email.utils.parsedate_to_datetime(headers["last-modified"])
        except ValueError:
            del headers["last-modified"]
