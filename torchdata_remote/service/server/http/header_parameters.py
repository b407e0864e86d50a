"""Parse the parameters of a header such as Content-Disposition (RFC 6266, RFC 8187) in linear time."""

from __future__ import annotations

import re
from urllib.parse import unquote

_TYPE = re.compile(r"[^;\"]*")
# Each attempt starts where the last match ended, and what an alternative matches ends before the next one's beginning
_PARAMETER = re.compile(
    r"""
    ;[ \t]*
    (?: ([^\x00-\x20\x7f()<>@,;:\\"/[\]?={}]+) [ \t]* = [ \t]*  # the name, a token
        (?: "([^"\\]*(?:\\.[^"\\]*)*)" [ \t]* | ([^";]*) )
    )? (?= ; | \Z)
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_CHARSETS = {"utf-8": "utf-8", "iso-8859-1": "latin-1"}


def header_parameters(header: str) -> dict[str, str]:
    r"""Return the parameters after a header's first word: name in lower case -> value.

    Where a parameter has an extended form (``name*``) too, that one has precedence.

    Raises:
        ValueError: if the header cannot be parsed, repeats a parameter, or has a character set other than UTF-8 and
            ISO-8859-1.

    >>> header_parameters(r'attachment; filename="a \"b\".csv"; size=3')
    {'filename': 'a "b".csv', 'size': '3'}
    >>> header_parameters("attachment; filename*=UTF-8''%c3%a9.csv; filename=e.csv")
    {'filename': 'é.csv'}
    """
    plain: dict[str, str] = {}
    extended: dict[str, str] = {}
    first = _TYPE.match(header)
    position = first.end() if first else 0
    while position < len(header):
        match = _PARAMETER.match(header, position)
        if match is None:
            raise ValueError(f"the text at character {position + 1} is no parameter")
        position = match.end()
        name, quoted, token = match.groups()
        if name is None:  # a semicolon at the end
            continue
        value = _ESCAPED.sub(r"\1", quoted) if quoted is not None else token.strip(" \t")
        name = name.lower()
        found = extended if name.endswith("*") else plain
        if name in found:
            raise ValueError(f"the parameter {name!r:.100} is there twice")
        found[name] = _decoded(value) if name.endswith("*") else value
    return plain | {name[:-1]: value for name, value in extended.items()}


def _decoded(value: str) -> str:
    """Decode ``charset'language'value`` (RFC 8187)."""
    charset, first, rest = value.partition("'")
    _, second, encoded = rest.partition("'")
    codec = _CHARSETS.get(charset.strip().lower())
    if not first or not second or codec is None:
        raise ValueError(f"{value!r:.100} is not of the form UTF-8''value")
    return unquote(encoded, codec, errors="strict")
