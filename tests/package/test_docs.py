"""The manual and the README: shell commands run and print what is shown, links resolve.

All blocks ```` ```sh ```` of a page are one script; a block ```` ```text title="Shell output" ```` behind one holds
what it prints, ``...`` stands for any text. Blocks ```` ```bash ```` are not run.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # it carries no types

import torchdata_remote as tdr
from tests.support.paths import ROOT
from tests.support.ports import free_port

from .manual import DOCS, END_OF_BLOCK, FENCE, PAGES, as_pattern

LINK = re.compile(r"(?<!\\)\]\((?P<target>[^)\s]+)(?: \"[^\"]*\")?\)")
ERRORS = [
    kind.__name__
    for kind in vars(tdr.errors).values()
    if isinstance(kind, type) and issubclass(kind, tdr.errors.RemoteDataError)
]


def anchors(page: str) -> set[str]:
    """The anchors of the page's headings, as Python-Markdown's ``toc`` makes them."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page), re.MULTILINE)
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


def pages_in_nav(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    return [page for entry in (nav.values() if isinstance(nav, dict) else nav) for page in pages_in_nav(entry)]


def test_navigation_lists_each_page_once() -> None:
    nav = pages_in_nav(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    assert sorted(nav) == sorted(PAGES)


@pytest.mark.parametrize("name", PAGES)
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
    modules = {name for name in tdr.__all__ if isinstance(getattr(tdr, name), ModuleType)}
    assert (set(tdr.__all__) - modules) | {f"errors.{name}" for name in ERRORS} <= entries
    assert modules <= {name for entry in entries for name in entry.split(".")[:-1]}


@pytest.mark.parametrize("name", ERRORS)
def test_each_public_error_has_a_page_with_a_message_and_a_remedy(name: str) -> None:
    page = PAGES[f"errors/{name}.md"]
    assert page.startswith(f"# {name}\n")
    assert "\n## `" in page
    assert "**What to do.**" in page
    assert f"({name}.md)" in PAGES["errors/index.md"]


SHELL_OUTPUT = r'```text title="Shell output"\n(?P<output>.*?)^```$'
SHELL = re.compile(rf"^```sh\n(?P<commands>.*?)^```$(?:\n\n{SHELL_OUTPUT})?", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", [name for name, page in PAGES.items() if "```sh\n" in page])
def test_shell_blocks_of_a_page_run_and_print_the_shown_output(name: str, tmp_path: Path) -> None:
    """Pasted into one shell, in order; the first command that fails ends it."""
    blocks = list(SHELL.finditer(PAGES[name]))
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    programs = tmp_path / "bin"
    programs.mkdir()
    for program, module in [("python", ""), ("torchdata-remote", " -m torchdata_remote.cli")]:
        (programs / program).write_text(f'#!/bin/sh\nexec "{sys.executable}"{module} "$@"\n')
        (programs / program).chmod(0o755)
    commands = f"\necho '{END_OF_BLOCK}'\n".join(block["commands"] for block in blocks)
    commands = commands.replace("8080", str(free_port())).replace("curl ", "curl --fail-with-body ")
    done = subprocess.run(
        ["bash", "-e", "-c", f"trap 'kill $(jobs -p) 2>/dev/null || :' EXIT\n{commands}"],
        cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False,
        env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    for block, printed in zip(blocks, done.stdout.split(END_OF_BLOCK), strict=True):
        if block["output"] is not None:
            shown = as_pattern(block["output"])
            assert re.fullmatch(shown, printed.strip(), re.DOTALL), f"shown:\n{block['output']}\nprinted:\n{printed}"


README = (ROOT / "README.md").read_text()


def test_the_readme_is_short_names_the_commands_of_ci_and_has_no_broken_link() -> None:
    assert len(README.splitlines()) <= 120
    commands = [
        line for block in FENCE.finditer(README) if block["info"] == "bash" for line in block["body"].split("\n")
    ]
    commands = [command for command in commands if command]
    assert len(commands) == 2
    assert [command for command in commands if command not in (ROOT / ".ci" / "run").read_text()] == []
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", README)
    assert [link for link in links if not re.match(r"https?:", link) and not (ROOT / link).exists()] == []
