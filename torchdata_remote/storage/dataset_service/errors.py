"""What a dataset service answers, as this package's errors, with the service's own words."""

from __future__ import annotations

import json
import re

from ...core.urls import redact
from ...errors import AccessDeniedError
from ..error_tables import STATUS, from_obstore
from ..errors import from_status

_SENTENCE = re.compile(r'\{"error":\s*"((?:[^"\\]|\\.)*)"')
_MAX_SENTENCE = 500


def message_of(text: str) -> str:
    """What a dataset service says in ``{"error": "..."}``, somewhere in a text; empty if it says nothing."""
    found = _SENTENCE.search(text)
    if found is None:
        return ""
    try:
        said = json.loads(f'"{found[1]}"')
    except ValueError:
        return ""
    return "".join(character if character.isprintable() else " " for character in said)[:_MAX_SENTENCE]


def from_service(
    status: int, sentence: str, url: str, *, writing: bool = False, retry_after: str | None = None
) -> Exception:
    """The error for what a dataset service answered.

    Args:
        status: of the answer.
        sentence: the service's own words, or empty.
        url: what was asked for.
        writing: whether the request would have made an object.
        retry_after: the header, if the transport shows it.
    """
    if status == 409 and writing:
        status = 412
    error = from_status(status, "", url, writing=writing, retry_after=retry_after)
    said = str(error)
    if isinstance(error, AccessDeniedError):
        said = (
            f"{redact(url)}: the service answered {status}. Pass its token by storage_options={{'token': ...}} or the "
            "environment's TORCHDATA_REMOTE_TOKEN."
        )
    error.args = (f"{said} The service says: {sentence}" if sentence else said,)
    return error


def from_obstore_at_service(error: Exception, url: str) -> Exception:
    """The error for what obstore raised while it spoke to a dataset service."""
    text = str(error)
    status = STATUS.search(text)
    return from_service(int(status[1]), message_of(text), url) if status else from_obstore(error, url)
