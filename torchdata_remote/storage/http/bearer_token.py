"""Check access tokens before they are sent: libraries show in their errors, or fail without one, what is no header."""

from __future__ import annotations

import re

from ...errors import AccessDeniedError

_TOKEN = re.compile(r"[\x21-\x7e]+")  # RFC 6750, 2.1, and what servers invent beside it


def bearer_token(token: object, url: str, source: str) -> str:
    r"""Return an access token, without the line feed that a file or a command leaves at its end.

    Args:
        token: as given or issued.
        url: for errors.
        source: where it is from, as a sentence.

    Raises:
        AccessDeniedError: if it cannot be a header. The message never shows it.

    >>> bearer_token("ya29.a\n", "gs://bucket", "")
    'ya29.a'
    """
    text = token.decode("latin-1") if isinstance(token, bytes) else token
    text = text.strip() if isinstance(text, str) else ""
    if _TOKEN.fullmatch(text) is None:
        what = "is empty" if not text else "contains a space, a line feed or another character that no token has"
        what = what if isinstance(token, str | bytes) else f"is of the type {type(token).__name__}, not a text"
        raise AccessDeniedError(f"{url}: the access token {what}. {source}", url=url)
    return text
