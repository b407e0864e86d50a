"""Members of a tar one by one, as most tests compare them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import cast

from torchdata_remote.formats.tar import TarOptions, read_member_batches


def read_members(
    parts: Iterable[bytes | memoryview], *, url: str, options: TarOptions | None = None
) -> Iterator[tuple[str, bytes]]:
    """Name and data, copied, of each member of ``read_member_batches``."""
    for names, values in read_member_batches(parts, url=url, options=replace(options or TarOptions(), copy=True)):
        yield from zip(names, cast(list[bytes], values), strict=True)
