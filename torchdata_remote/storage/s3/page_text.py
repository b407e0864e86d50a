"""Take the objects out of the text of a page of S3's listing, by regular expressions.

An XML parser makes a node for each field of each object. Here the objects of a page are matched at once, by an
expression made from the tags of one of them. This is not a parser of XML: a page is left to one if it has anything that
these expressions do not match, such as comments, other tags between the objects, or invalid characters.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from ..protocol import normalized_etag

_FIELDS = ("Key", "Size", "ETag", "LastModified")
_MAX_SHAPES = 8  # of objects in one page: objects with and without an owner, with and without checksums
_START, _END = "<Contents>", "</Contents>"
_TAG = re.compile(r"</?[A-Za-z][\w.-]*>|<[A-Za-z][\w.-]*/>")
_TEXT = re.compile(r">[^<]+<")
_ENCODING = re.compile(r"""<\?xml[^>]*\sencoding\s*=\s*["']([^"']*)["']""")
_ENTITY = re.compile(r"&(?:(amp|lt|gt|quot|apos)|#([0-9]{1,7})|#x([0-9A-Fa-f]{1,6}));|&")
_ENTITIES = {"amp": "&", "lt": "<", "gt": ">", "quot": '"', "apos": "'"}
_PLAIN_ETAG = re.compile(r"&quot;[^&\"]+&quot;")
_INVALID = re.compile("[\x00-\x1f\ufffe\uffff]")  # in XML, or changed by its parsers


class Objects(NamedTuple):
    """The objects of a page, one column for each field, with XML's entities replaced.

    Keys are percent-encoded if the rest of the page says so. ``modified`` is what the store sent.
    """

    keys: list[str]
    sizes: list[int]
    etags: list[str | None]
    modified: list[str]


class _Shape(NamedTuple):
    """How objects are written.

    Args:
        pattern: matches one; a group for each of Key, Size, ETag, LastModified that it has.
        fields: those fields, in the order of the groups.
        num_tags: in one object.
    """

    pattern: re.Pattern[str]
    fields: tuple[str, ...]
    num_tags: int


def take_objects(body: bytes) -> tuple[Objects, bytes] | None:
    """Split a page into its objects, and the page without them, which remains to be parsed.

    Returns:
        ``None`` if the page has no objects, or has to be parsed by other means.
    """
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    start, end = text.find(_START), text.rfind(_END) + len(_END)
    if not 0 <= start < end or "<!" in text or "<?" in text[2:]:
        return None
    declared = _ENCODING.match(text)
    if declared is not None and declared[1].lower() not in ("utf-8", "us-ascii"):
        return None
    columns = _columns(text[start:end])
    objects = None if columns is None else _objects(*columns)
    return None if objects is None else (objects, (text[:start] + text[end:]).encode())


def _columns(run: str) -> tuple[list[str], ...] | None:
    """Return keys, sizes, etags and times of consecutive objects, as they are written."""
    num_objects, num_tags = run.count(_START), run.count("<")
    rows: dict[int, tuple[str, ...]] = {}  # by their place
    at = 0
    for _ in range(_MAX_SHAPES):
        shape = _shape(_TEXT.sub("><", run[at : run.find(_END, at) + len(_END)]))
        if shape is None:
            return None
        if shape.num_tags * num_objects == num_tags and not rows:
            alike = shape.pattern.findall(run)
            if len(alike) == num_objects:  # all tags of the run are in these objects
                return _ordered(shape.fields, alike)
        found = {match.start(): _row(shape.fields, match.groups()) for match in shape.pattern.finditer(run)}
        num_tags -= shape.num_tags * len(found)
        rows |= found
        if len(rows) == num_objects:
            return _ordered(_FIELDS, [rows[start] for start in sorted(rows)]) if num_tags == 0 else None
        if at not in found:
            return None
        while at in rows:
            at = run.find(_START, at + 1)
    return None


def _row(fields: tuple[str, ...], groups: tuple[str, ...]) -> tuple[str, ...]:
    values = dict(zip(fields, groups, strict=True))
    return tuple(values.get(name, "") for name in _FIELDS)


def _ordered(fields: tuple[str, ...], rows: list[tuple[str, ...]]) -> tuple[list[str], ...]:
    columns = dict(zip(fields, map(list, zip(*rows, strict=True)), strict=True))
    return tuple(columns[name] if name in columns else [""] * len(rows) for name in _FIELDS)


@lru_cache(maxsize=64)
def _shape(tags: str) -> _Shape | None:
    """Return how the object with these tags is written, texts left out; ``None`` without one Key and one Size."""
    names, fields, above = _TAG.findall(tags), list[str](), list[str]()
    if "".join(names) != tags:
        return None
    pattern = ""
    for tag, following in zip(names, [*names[1:], ""], strict=True):
        pattern += re.escape(tag)
        if tag.startswith("</"):
            if not above or above.pop() != tag[2:-1]:
                return None
        elif not tag.endswith("/>"):
            above.append(tag[1:-1])
        if following == f"</{tag[1:]}" and len(above) == 2 and tag[1:-1] in _FIELDS:
            fields.append(tag[1:-1])
            pattern += "([0-9]+)" if tag == "<Size>" else "([^<]+)" if tag == "<Key>" else "([^<]*)"
        else:
            pattern += "[^<]*"
    if names[0] != _START or above or len(set(fields)) != len(fields) or not {"Key", "Size"} <= set(fields):
        return None
    return _Shape(re.compile(pattern), tuple(fields), len(names))


def _objects(keys: list[str], sizes: list[str], etags: list[str], modified: list[str]) -> Objects | None:
    text = "".join(keys)
    if not text.isprintable() and _INVALID.search(text):
        return None
    try:
        if "&" in text:
            keys = list(map(_without_entities, keys))
        if all(map(_PLAIN_ETAG.fullmatch, etags)):
            normalized: list[str | None] = [f'"{etag[6:-6]}"' for etag in etags]
        else:
            normalized = [normalized_etag(_without_entities(etag)) for etag in etags]
    except ValueError:
        return None
    return Objects(keys, list(map(int, sizes)), normalized, modified)


def _without_entities(text: str) -> str:
    """Replace XML's entities.

    Raises:
        ValueError: for others.

    >>> _without_entities("a&amp;b&#x2f;c")
    'a&b/c'
    """
    return _ENTITY.sub(_character, text) if "&" in text else text


def _character(match: re.Match[str]) -> str:
    name, decimal, hexadecimal = match.groups()
    if name:
        return _ENTITIES[name]
    if not decimal and not hexadecimal:
        raise ValueError("an unknown entity")
    code = int(decimal) if decimal else int(hexadecimal, 16)
    if code < 0x20 or 0xD800 <= code < 0xE000 or code in (0xFFFE, 0xFFFF):
        raise ValueError(f"no character of XML: {code}")
    return chr(code)
