"""URLs of sample ranges: the shard's URL between two marks, which no listing of a store can return.

The first mark is a scheme that no store has, so keys cannot imitate it and other readers refuse it. The second mark is
at the end, so a URL that was rebuilt from its path or its base name is not taken for the whole shard.
"""

from __future__ import annotations

import re

_PART = re.compile(r"samples\+(\d+)-(\d+)\+(.*)", re.DOTALL)


def part_url(url: str, first: int, last: int) -> str:
    """Return the URL of samples ``first`` to ``last`` (exclusive) of a shard.

    >>> part_url("s3://photos/0.tar", 3, 9)
    'samples+3-9+s3://photos/0.tar+samples+3-9'
    """
    return f"samples+{first}-{last}+{url}+samples+{first}-{last}"


def part_within(url: str, first: int, last: int) -> str:
    """Return the URL of samples ``first`` to ``last`` (exclusive) of a shard, or counted from the first one of a part.

    >>> part_within("samples+3-9+s3://photos/0.tar+samples+3-9", 1, 2)
    'samples+4-5+s3://photos/0.tar+samples+4-5'

    Raises:
        ValueError: as :func:`split_part_url`.
    """
    whole, within = split_part_url(url)
    begin = 0 if within is None else within[0]
    return part_url(whole, begin + first, begin + last)


def split_part_url(url: str) -> tuple[str, tuple[int, int] | None]:
    """Split a URL into the shard's URL and the range of samples, which is ``None`` for a whole object.

    Raises:
        ValueError: if only the first of the two marks is left.
    """
    match = _PART.fullmatch(url) if url.startswith("samples+") else None
    if match is None:
        return url, None
    first, last, marked = int(match[1]), int(match[2]), match[3]
    end = f"+samples+{first}-{last}"
    if not marked.endswith(end):
        raise ValueError(
            f"stands for samples {first} to {last} of a shard, so it must end in {end!r}. A pipe between "
            "sharding_filter_rank() and the reader has changed the end of the URL: put it before "
            "sharding_filter_rank()."
        )
    return marked.removesuffix(end), (first, last)
