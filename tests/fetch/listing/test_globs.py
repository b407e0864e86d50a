"""Globs over paths."""

from __future__ import annotations

import fnmatch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from torchdata_remote.fetch.listing.globs import glob_regex, glob_start

GLOB_PIECES = st.sampled_from(["a", "b", ".", "*", "?", "[", "]", "!", "[a-b]", "[!a-b]", "\\", "{", "("])


@given(pattern=st.lists(GLOB_PIECES, max_size=8).map("".join), name=st.text("ab.-^[]\\!\n{(", max_size=6))
@example("[!]", "a")
@example("[!]a]", "b")
@example("[]a]", "]")
@example("t-[0-9].tar", "t-5.tar")
def test_a_glob_without_slash_matches_like_fnmatch(pattern: str, name: str) -> None:
    """Any pattern without a slash matches the same base names as Python's ``fnmatch``."""
    assert bool(glob_regex(pattern).fullmatch(name)) == fnmatch.fnmatchcase(name, pattern)


def test_a_glob_that_can_match_nothing_matches_nothing() -> None:
    """A range that runs backwards is no error of Python's ``re`` that the user never called."""
    assert glob_regex("[b-a]").fullmatch("a") is None


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("*.tar", "a/b.tar", False),
        ("?.tar", "/.tar", False),
        ("a/*.tar", "a/b.tar", True),
        ("a/*.tar", "a/b/c.tar", False),
        ("**", "a/b/c.tar", True),
        ("**/c.tar", "c.tar", True),
        ("**/c.tar", "a/b/c.tar", True),
        ("**/c.tar", "a/bc.tar", False),
        ("a/**", "a/b/c.tar", True),
        ("a/**", "b/a/c.tar", False),
        ("a/**/c.tar", "a/c.tar", True),
        ("a+(b).tar", "a+(b).tar", True),
        ("a.tar", "axtar", False),
    ],
)
def test_a_star_stays_in_its_folder_and_two_do_not(pattern: str, path: str, matches: bool) -> None:
    """``*`` and ``?`` never match a slash, ``**`` does, ``**/`` also matches no folder."""
    assert bool(glob_regex(pattern).fullmatch(path)) is matches


def test_glob_start_finds_the_first_glob_character() -> None:
    """Everything before it is a plain prefix."""
    assert glob_start("a/b.tar") is None
    assert [glob_start(path) for path in ("*", "a?", "a/[0]*")] == [0, 1, 2]
