"""The pages of the manual, and the programs in them."""

from __future__ import annotations

import re

from tests.support.paths import ROOT

DOCS = ROOT / "docs"
PAGES = {str(path.relative_to(DOCS)): path.read_text("utf-8") for path in sorted(DOCS.rglob("*.md"))}
FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^\n]*)\n(?P<body>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
END_OF_BLOCK = "--- end of block ---"


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
