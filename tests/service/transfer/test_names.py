"""Paths in a dataset."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote.service.transfer.names import (
    LOCK_NAME,
    STATE_NAME,
    folders_of,
    is_partial,
    is_reserved,
    partial_name,
    ranges_name,
    upload_id,
)


@given(path=st.text(st.characters(codec="utf-8"), max_size=300), sha256=st.text("0123456789abcdef"))
def test_reserved_names_fit_file_systems_and_services(path: str, sha256: str) -> None:
    """They are recognised, and never valid in a dataset."""
    for name in (partial_name(path, sha256), ranges_name(path, sha256)):
        assert is_partial(name)
        assert is_reserved(name)
        assert len(name) < 100
    assert partial_name(path, sha256) != partial_name(path + "x", sha256)
    assert 8 <= len(upload_id(path, sha256, 1)) <= 64
    assert upload_id(path, sha256, 1) != upload_id(path, sha256, 2)


def test_state_and_lock_are_reserved() -> None:
    """And no name that a user would choose."""
    assert is_reserved(STATE_NAME)
    assert is_reserved(LOCK_NAME)
    assert not is_reserved("a.jpg")
    assert folders_of("a.jpg") == []
