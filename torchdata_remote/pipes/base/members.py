"""The member of a sample that an argument of a pipe names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...core.arguments.suggestions import did_you_mean
from ...errors import MissingMemberError, SampleError
from ...formats.sample import describe_item, extensions, require_sample, sample_url


def member_of(item: Any, name: str, *, of: str) -> Any:
    """Return a member of a sample.

    Raises:
        SampleError: if the item is no sample.
        MissingMemberError: if the sample has no such member; names those that it has.
    """
    require_sample(item, of=of)
    if name not in item:
        found = list(extensions(item))
        raise MissingMemberError(
            f"{describe_item(item)} has no {name!r}. It has {found}{did_you_mean(name, found) or '.'}",
            url=url_of_item(item),
        )
    return item[name]


def member_missing(item: Mapping[str, Any], what: str, argument: str) -> SampleError:
    """Return the error of a pipe that was not told which member of samples to use."""
    return SampleError(
        f"{what}, got {describe_item(item)}. Name the member: {argument}= one of {list(extensions(item))}.",
        url=url_of_item(item),
    )


def url_of_item(item: Any) -> str | None:
    """Return the URL of an item that is a sample, for an error."""
    return sample_url(item) or None if isinstance(item, Mapping) else None
