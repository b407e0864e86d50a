"""Refuse texts that no header of a request can hold, such as a key with the line break of the file it was read from."""

from __future__ import annotations

import re
from typing import Any

from ..errors import UrlError

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def require_plain_text(where: str, shown: str, value: Any) -> None:
    """Refuse a line break or another control character in a text. Other kinds of values are accepted.

    Libraries show such a value in their errors, or abort.

    Raises:
        UrlError: names the option. Its value is not shown.
    """
    found = _CONTROL.search(value) if isinstance(value, str) else None
    if found is not None:
        place = "at its end" if not value[found.start() :].strip() else f"at position {found.start()}"
        raise UrlError(
            f"{where}: {shown} has a line break or another control character {place}. Remove it: value.strip().",
            url=where,
        )
