"""Write ``docs/internals/promises.md``: each promise, and the test that shows it.

Usage: python .ci/make_promises.py

A promise is the name of a test: ``test_a_shard_that_ends_early_is_an_error``. Its subject is the first sentence of
the module's docstring, its chapter the folder.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "internals" / "promises.md"
CHAPTERS = (
    "resume", "ranks", "loaders", "trainers", "pipes", "selections", "reading", "stores", "archives", "samples",
    "datasets", "writing", "service", "commands", "inspection", "mistakes", "processes", "testing", "package",
)  # fmt: skip
INTRODUCTION = """\
# Promises

Each line is a promise of the documentation, in the words of the test that shows it. The tests use the public API alone: whoever rebuilds a
room keeps these. Examples in docstrings and in these pages are run as well. `python .ci/make_promises.py` writes this page.
"""
FETCH, PIPES, REST = (
    "the rebuilding of `fetch` and `storage`",
    "the rebuilding of `pipes`, `loaders` and `datasets`",
    "the rebuilding of the other rooms",
)
# What is given up: it has no test here, still works, and ends as the second column says
ENDING = (
    ("`Retry-After` of stores other than the Hub", FETCH),
    ("a second transport for each store; odd keys and client certificates at full speed", FETCH),
    ("listing of one flat prefix at several guessed places at once", FETCH),
    ("packs, SQLite and users in the disk cache", FETCH),
    ("`Backend.BOTOCORE`; access points at full speed", FETCH),
    ("exact resume under Lightning, Accelerate, transformers, Fabric and DCP without a line of code", PIPES),
    ("own copies of `IterDataPipe`", PIPES),
    ("errors about types of columns in tables in our own words", REST),
    ("ambiguous zip archives told apart in detail", REST),
    ("`TypeError` in our own words", REST),
    ("leases of writers with heartbeats", REST),
)


def main() -> None:
    """Write the page."""
    PAGE.write_text(page())


def page() -> str:
    """Return the page as the tests are now."""
    text = INTRODUCTION
    for chapter in CHAPTERS:
        text += f"\n## {chapter.capitalize()}\n"
        for path in sorted((ROOT / "tests" / chapter).rglob("test_*.py")):
            text += "".join(_subject(path))
    text += "\n## Ending\n\nThis works, has no promise any more, and ends:\n\n| what | with |\n|---|---|\n"
    return text + "".join(f"| {what} | {ends} |\n" for what, ends in ENDING)


def _subject(path: Path) -> Iterator[str]:
    module = ast.parse(path.read_text())
    tests = [
        node
        for node in ast.walk(module)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_")
    ]
    if tests:
        yield f"\n`{path.relative_to(ROOT)}`: {' '.join((ast.get_docstring(module) or '').split(chr(10) * 2)[0].split())}\n\n"
    for test in tests:
        yield f"- {test.name.removeprefix('test_').replace('_', ' ')}\n"


if __name__ == "__main__":
    main()
