"""Key prefixes of archives inside an archive."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote.errors import ShardReadError
from torchdata_remote.formats.nested import NestedPrefixes, is_archive_name, without_ending

ENDINGS = [".tar", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst", ".tgz", ".tbz2", ".txz", ".tzst", ".TAR", ".Tar.GZ"]
URL = "s3://b/outer.tar"


@pytest.mark.parametrize("ending", ENDINGS)
def test_extensions_of_archives_are_recognised_and_removed(ending: str) -> None:
    """Of a tar, compressed or not, in any case; the ending alone is no name."""
    assert is_archive_name(f"d/n01440764{ending}")
    assert without_ending(f"d/n01440764{ending}") == "d/n01440764"
    assert not is_archive_name(ending)


@pytest.mark.parametrize("name", ["a.tar.idx", "a.tar.json", "a.zip", "a.gz", "tar", "a.tar/b.jpg", "a.star", ""])
def test_other_names_are_not_archives(name: str) -> None:
    """They are left as they are."""
    assert not is_archive_name(name)
    assert without_ending(name) == name


@given(st.lists(st.text("ab-/", min_size=1, max_size=6), max_size=8))
def test_no_two_prefixes_share_a_key(stems: list[str]) -> None:
    """A name is refused exactly if its prefix begins with one that was given, or one that was given with it."""
    prefixes = NestedPrefixes(URL)
    given_out: list[str] = []
    for stem in stems:
        wanted = stem + "/"
        clashes = any(wanted.startswith(other) or other.startswith(wanted) for other in given_out)
        if clashes or stem.startswith("/") or stem.endswith("/"):
            with pytest.raises(ShardReadError, match=URL):
                prefixes.of(f"{stem}.tar")
        else:
            assert prefixes.of(f"{stem}.tar") == wanted
            given_out.append(wanted)


def test_the_same_folder_by_another_ending() -> None:
    """``a.tar`` and ``./a.tgz`` would both be ``a/``; the error names the one and the prefix."""
    prefixes = NestedPrefixes(URL)
    assert prefixes.of("./a.tar") == "a/"
    with pytest.raises(ShardReadError, match=r"'a\.tgz' would begin with 'a/'.*Rename"):
        prefixes.of("a.tgz")


@pytest.mark.parametrize("name", ["../a.tar", "/a.tar", "a/../b.tar", "a\0.tar"])
def test_names_that_are_no_folders(name: str) -> None:
    """They would lead out of the place where keys belong."""
    with pytest.raises(ShardReadError, match="cannot be read"):
        NestedPrefixes(URL).of(name)
