"""Convert error responses of a dataset service to this package's errors, with the service's own message."""

from __future__ import annotations

import json
import re

from ...core.urls import redact
from ...errors import AccessDeniedError
from ..errors import from_obstore, from_status, status_and_code
from .token import token_advice

_MESSAGE = re.compile(r'\{"error":\s*"((?:[^"\\]|\\.)*)"')
_MAX_MESSAGE = 500


def message_of(text: str) -> str:
    """Return the value of ``{"error": "..."}`` somewhere in a text; empty if there is none."""
    found = _MESSAGE.search(text)
    if found is None:
        return ""
    try:
        message = json.loads(f'"{found[1]}"')
    except ValueError:
        return ""
    return "".join(character if character.isprintable() else " " for character in message)[:_MAX_MESSAGE]


def from_service(
    status: int, service_message: str, url: str, *, writing: bool = False, retry_after: str | None = None
) -> Exception:
    """Make the error for a response of a dataset service.

    Args:
        status: of the response.
        service_message: the service's own message, or empty.
        url: of the request.
        writing: whether the request would have written an object.
        retry_after: the header, if the transport shows it.
    """
    if status == 409 and writing:
        status = 412
    error = from_status(status, "", url, writing=writing, retry_after=retry_after)
    message = str(error)
    if isinstance(error, AccessDeniedError):
        host = url.removeprefix("datasets://").partition("/")[0]
        message = f"{redact(url)}: the service answered {status}. {token_advice(host)}"
    error.args = (f"{message} The service says: {service_message}" if service_message else message,)
    return error


def from_obstore_at_service(error: Exception, url: str) -> Exception:
    """Convert an error of obstore from a request to a dataset service."""
    text = str(error)
    status, _ = status_and_code(text)
    return from_obstore(error, url) if status is None else from_service(status, message_of(text), url)
