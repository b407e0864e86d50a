"""Readers of bytes that do the same."""

from __future__ import annotations

from torchdata_remote.formats.byte_reader import ByteReader


def assert_same_step(jumping: ByteReader, plain: ByteReader, length: int, *, take: bool) -> None:
    """Take or skip some bytes with both readers, which return the same and are at the same place then."""
    if take:
        assert jumping.take(length) == plain.take(length)
    else:
        assert jumping.skip(length) == plain.skip(length)
    assert jumping.offset == plain.offset
