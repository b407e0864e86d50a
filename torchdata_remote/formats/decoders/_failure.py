"""The error of a member that cannot be decoded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import DecodeError
from ..member_file import MemberFile
from ..sample import describe, sample_url


def decode_error(sample: Mapping[str, Any], name: str, error: Exception) -> DecodeError:
    """Return the error to raise from the decoder's own: it names member, sample and shard."""
    value = sample[name]
    what = f"the {len(value):,} bytes of {name!r}" if isinstance(value, bytes | memoryview) else repr(name)
    if isinstance(value, MemberFile):
        what = f"{name!r}, a file of {value.size:,} bytes,"
    return DecodeError(
        f"{describe(sample)}: {what} cannot be decoded: {type(error).__name__}: {error}", url=sample_url(sample)
    )
