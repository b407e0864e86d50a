"""The pages about errors are complete and agree with the code."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.paths import ROOT
from torchdata_remote import errors

PAGES = ROOT / "docs" / "errors"
PUBLIC = [
    kind.__name__
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.RemoteDataError)
]


@pytest.mark.parametrize("name", PUBLIC)
def test_each_public_error_has_a_page_with_a_remedy(name: str) -> None:
    """The page has the class as title, a message as heading, and a paragraph with the remedy."""
    page = (PAGES / f"{name}.md").read_text()
    assert page.startswith(f"# {name}\n")
    assert "\n## `" in page
    assert "**What to do.**" in page
    assert f"({name}.md)" in (PAGES / "index.md").read_text()


def test_pages_show_the_messages_that_the_code_raises() -> None:
    """The generator runs every program on the pages, and finds nothing to change."""
    done = subprocess.run(
        [sys.executable, ".ci/make_errors.py", "--check"],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
