"""Headers of members that no test can write."""

from __future__ import annotations

import io
import tarfile

import pytest

from torchdata_remote.formats.tar import pack_header


@pytest.mark.parametrize("size", [0o77777777777, 0o77777777777 + 1, 1 << 40])
def test_a_size_beyond_the_octal_field_is_told_in_pax(size: int) -> None:
    """tarfile reads the size of a member of 8 GiB, at the limit and above it, from the header alone."""
    with tarfile.open(fileobj=io.BytesIO(pack_header("a.x", size))) as archive:
        info = archive.next()
    assert info is not None
    assert (info.name, info.size) == ("a.x", size)
