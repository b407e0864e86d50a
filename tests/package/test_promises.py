"""The page of promises."""

from __future__ import annotations

import runpy

from tests.support.paths import ROOT


def test_the_page_of_promises_lists_the_tests_as_they_are() -> None:
    """If not: python .ci/make_promises.py"""
    made: str = runpy.run_path(str(ROOT / ".ci" / "make_promises.py"))["page"]()
    assert (ROOT / "docs" / "internals" / "promises.md").read_text() == made


def test_each_folder_of_public_tests_is_a_chapter() -> None:
    folders = {path.parent.relative_to(ROOT / "tests").parts[0] for path in (ROOT / "tests").rglob("test_*.py")}
    chapters = runpy.run_path(str(ROOT / ".ci" / "make_promises.py"))["CHAPTERS"]
    assert folders == {*chapters, "internal"}
