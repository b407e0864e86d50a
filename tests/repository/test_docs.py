"""The manual in ``docs/``: its code runs, its output is real, its links resolve.

A block ```` ```python ```` is run. All blocks of a page are one program, from top to bottom. A block
```` ```text title="Output" ```` holds what the blocks since the previous one print; ``...`` stands for any text.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # it carries no types

import torchdata_remote
from tests.support.paths import ROOT

DOCS = ROOT / "docs"
PAGES = {str(path.relative_to(DOCS)): path.read_text("utf-8") for path in sorted(DOCS.rglob("*.md"))}
FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^\n]*)\n(?P<body>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!\\)\]\((?P<target>[^)\s]+)(?: \"[^\"]*\")?\)")
END_OF_BLOCK = "--- end of block ---"


def anchors(page: str) -> set[str]:
    """The anchors of the page's headings, as Python-Markdown's ``toc`` makes them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page), re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


def pages_in_nav(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    return [page for entry in (nav.values() if isinstance(nav, dict) else nav) for page in pages_in_nav(entry)]


def as_pattern(output: str) -> str:
    return ".*?".join(map(re.escape, output.strip().split("...")))


def program_of(page: str) -> tuple[str, list[str]]:
    """The page's code, each line where it is in the page, and the outputs that the page shows."""
    lines, outputs = [""] * page.count("\n"), []
    for block in FENCE.finditer(page):
        first = page[: block.start("body")].count("\n")
        if block["info"].split(" ")[0] == "python":
            lines[first : first + block["body"].count("\n")] = block["body"].splitlines()
        elif 'title="Output"' in block["info"]:
            lines[first] = f"print({END_OF_BLOCK!r})"
            outputs.append(block["body"])
    return "\n".join(lines), outputs


@pytest.fixture(scope="module")
def page_runner() -> Iterator[subprocess.Popen[str]]:
    """A process that has imported torch once, for all pages."""
    runner = [sys.executable, "-W", "error", str(ROOT / "tests" / "support" / "page_runner.py")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    with subprocess.Popen(runner, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


@pytest.mark.parametrize("name", [name for name, page in PAGES.items() if "```python" in page])
def test_python_blocks_of_a_page_run_and_print_the_shown_output(
    name: str, tmp_path: Path, page_runner: subprocess.Popen[str]
) -> None:
    """In one fresh process, from top to bottom, with warnings as errors."""
    program, outputs = program_of(PAGES[name])
    assert page_runner.stdin is not None
    assert page_runner.stdout is not None
    page = {"name": str(DOCS / name), "program": program, "folder": str(tmp_path)}
    print(json.dumps(page), file=page_runner.stdin, flush=True)
    done = json.loads(page_runner.stdout.readline())
    assert done["code"] == 0, done["errors"]
    printed = done["output"].split(END_OF_BLOCK)
    for shown, real in zip(outputs, printed[:-1], strict=True):
        assert re.fullmatch(as_pattern(shown), real.strip(), re.DOTALL), f"shown:\n{shown}\nprinted:\n{real}"


def test_navigation_lists_each_page_once() -> None:
    nav = pages_in_nav(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    assert sorted(nav) == sorted(PAGES)


def test_the_changelog_is_included_not_copied() -> None:
    """The page has one line, which the build replaces by the file, or fails (``check_paths``)."""
    assert PAGES["changes.md"] == '--8<-- "CHANGELOG.md"\n'
    assert (ROOT / "CHANGELOG.md").is_file()


@pytest.mark.parametrize("name", list(PAGES))
def test_relative_links_of_a_page_resolve(name: str) -> None:
    """To files below ``docs/`` and to headings of pages; anchors of the API reference are generated."""
    for link in LINK.finditer(FENCE.sub("", PAGES[name])):
        if re.match(r"[a-z]+:", link["target"]):
            continue
        path, _, anchor = link["target"].partition("#")
        target = (DOCS / name).parent / path if path else DOCS / name
        assert target.is_file(), f"{name}: {link['target']}"
        assert DOCS in target.resolve().parents, f"{name}: {link['target']} is outside the site"
        if anchor and not anchor.startswith("torchdata_remote."):
            assert anchor in anchors(target.read_text("utf-8")), f"{name}: {link['target']}"


def test_each_public_name_has_an_entry_in_the_api_reference() -> None:
    reference = "\n".join(page for name, page in PAGES.items() if name.startswith("reference/"))
    entries = set(re.findall(r"^::: torchdata_remote\.([\w.]+)$", reference, re.MULTILINE))
    errors = {f"errors.{name}" for name, value in vars(torchdata_remote.errors).items() if isinstance(value, type)}
    modules = {name for name in torchdata_remote.__all__ if isinstance(getattr(torchdata_remote, name), ModuleType)}
    assert (set(torchdata_remote.__all__) - modules) | errors <= entries
    assert modules <= {name for entry in entries for name in entry.split(".")[:-1]}
