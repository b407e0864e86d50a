"""Signatures in URLs that are signed, such as Azure's (SAS): without them the rest of the query gives no access."""

from __future__ import annotations

import logging
import re

_HEADER_VALUE = re.compile(r"(Invalid header value )b?(['\"]).*?(?<!\\)\2", re.DOTALL)
_SIGNATURE = re.compile(r"(?<![A-Za-z0-9])((?:sig|signature|security-token)=)[^&\s\"'<>()]+", re.IGNORECASE)


def hide_signatures(text: str) -> str:
    """Replace each signature in a text by dots, and each value of a header that Python cannot send.

    >>> hide_signatures("GET /box/a?se=2026-01-01&sig=SECRET%3D&sp=r failed")
    'GET /box/a?se=2026-01-01&sig=...&sp=r failed'
    """
    return _SIGNATURE.sub(r"\1...", _HEADER_VALUE.sub(r"\1...", text))


class _WithoutSignatures(logging.Filter):
    """Hides the signatures in the URLs that a library logs at level DEBUG."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(hide_signatures(one) if isinstance(one, str) else one for one in record.args)
        return True


_FILTER = _WithoutSignatures()


def hide_signatures_in_log(name: str) -> None:
    """Hide signatures in what a logger logs. Later calls have no effect."""
    logging.getLogger(name).addFilter(_FILTER)


def sas_mistake(rest: str, shown: str) -> str:
    """Say that a URL of Azure has a SAS; ``""`` if it has none.

    Args:
        rest: of the URL, after its scheme.
        shown: the URL without the signature.
    """
    if "?" not in rest or _SIGNATURE.search(rest) is None:
        return ""
    return (
        f"{shown}: a SAS does not belong into a URL, where logs and samples would show it. Pass "
        "storage_options={'sas_token': ...}, or set AZURE_STORAGE_SAS_TOKEN."
    )
