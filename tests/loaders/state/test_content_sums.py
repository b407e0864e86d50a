"""Checksums over samples of an object's bytes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote.loaders.state.content_sums import content_sums


@given(size=st.integers(1, 60_000), data=st.data())
def test_a_change_within_the_sampled_bytes_changes_the_sum(size: int, data: st.DataObject) -> None:
    """The first 4 KiB, 4 KiB in the middle, and the last 16 KiB; and another size."""
    whole = random_bytes(size)
    middle = range(size // 2, min(size, size // 2 + 4096))
    sampled = [*range(min(size, 4096)), *middle, *range(max(0, size - 16_384), size)]
    at = data.draw(st.sampled_from(sampled))
    memory = fsspec.filesystem("memory")
    memory.pipe("/content/0", whole)
    [before] = content_sums(["memory://content/0"])
    memory.pipe("/content/0", whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    [after] = content_sums(["memory://content/0"])
    memory.pipe("/content/0", whole + b"\0")
    [longer] = content_sums(["memory://content/0"])
    assert None not in (before, after, longer)
    assert before not in (after, longer)


def random_bytes(size: int) -> bytes:
    return bytes(number * number % 251 for number in range(size))


def test_a_copy_has_the_same_sum(tmp_path: Path) -> None:
    """With another inode and time; also by a path or a ``pathlib.Path``."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "0").write_bytes(os.urandom(100_000))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    os.utime(tmp_path / "b" / "0", (1, 1))
    sums = content_sums([f"file://{tmp_path}/a/0", f"file://{tmp_path}/b/0", f"{tmp_path}/b/0", tmp_path / "b" / "0"])
    assert len(set(sums)) == 1
    assert None not in sums


def test_of_many_objects_only_some_are_summed(tmp_path: Path) -> None:
    """Always the same ones, evenly distributed."""
    (tmp_path / "0").write_bytes(b"0")
    sums = content_sums([f"file://{tmp_path}/0"] * 10_000)
    assert sum(sum_ != 0 for sum_ in sums) == 1_024
    assert all(any(sums[start : start + 10]) for start in range(0, 10_000, 10))


@pytest.mark.parametrize("url", ["s3://b/0.tar", "https://host/0", "file:///no/such/file", "word", "", "a::b", 7, None])
def test_remote_and_unreadable_objects_have_no_sum(url: object, tmp_path: Path) -> None:
    """Nor have folders and named pipes: no store is contacted, and nothing blocks."""
    os.mkfifo(tmp_path / "pipe")
    assert content_sums([url, f"file://{tmp_path}", f"file://{tmp_path}/pipe"]) == [None] * 3
