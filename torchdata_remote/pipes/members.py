"""The members of a sample that an argument of a pipe names, in any case."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..core import arguments as check
from ..core.arguments import did_you_mean
from ..errors import MissingMemberError, SampleError
from ..formats.sample import describe, describe_item, extensions, require_sample, sample_url


def member_named(sample: Mapping[str, Any], names: Sequence[str]) -> str | None:
    """Return the first of these names that a sample has, as the sample writes it, in any case; ``None`` for none.

    Raises:
        SampleError: if a name is that of two members in another case.

    >>> member_named({"__key__": "1", "left.jpg": b""}, ["Left.PNG", "Left.JPG"])
    'left.jpg'
    """
    for name in names:
        if name in sample:
            return name
    for name in names:
        found = [one for one in sample if str(one).lower() == name.lower()]
        if len(found) > 1:
            raise SampleError(
                f"{describe(sample)} has {' and '.join(map(repr, found))}, which differ in case only: {name!r} may be "
                "each of them. Write the name exactly, or rename one of them.",
                url=sample_url(sample),
            )
        if found:
            return found[0]
    return None


def alternatives(names: str) -> tuple[str, ...]:
    """Split names separated by ``;``, of which the first that a sample has is meant.

    >>> alternatives("jpg; png;")
    ('jpg', 'png')
    """
    return tuple(name.strip() for name in names.split(";") if name.strip())


def member_of(item: Any, name: str, *, of: str) -> Any:
    """Return a member of a sample.

    Raises:
        SampleError: if the item is no sample.
        MissingMemberError: if the sample has no such member; names those that it has.
    """
    require_sample(item, of=of)
    written = member_named(item, (name,))
    if written is None:
        raise no_member(item, (name,))
    return item[written]


def no_member(sample: Mapping[str, Any], names: Sequence[str], advice: str = "") -> MissingMemberError:
    """Return the error of a sample without any of these members."""
    found = list(extensions(sample))
    return MissingMemberError(
        f"{describe(sample)} has no {' or '.join(map(repr, names))}. It has {found}"
        f"{did_you_mean(names[0], found) or '.'}{advice}",
        url=sample_url(sample),
    )


def member_missing(item: Mapping[str, Any], what: str, argument: str) -> SampleError:
    """Return the error of a pipe that was not told which member of samples to use."""
    return SampleError(
        f"{what}, got {describe_item(item)}. Name the member: {argument}= one of {list(extensions(item))}.",
        url=url_of_item(item),
    )


def url_of_item(item: Any) -> str | None:
    """Return the URL of an item that is a sample, for an error."""
    return sample_url(item) or None if isinstance(item, Mapping) else None


def listed(name: str, value: Any, *, example: str) -> list[Any]:
    """Return the items of an argument that is a list, or another iterable.

    Raises:
        TypeError: for a text, a dict, and what is none.
    """
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        raise check.marked(TypeError(f"{name} must be a list such as {example}, got {check.shown(value)}."))
    return list(value)
