"""Translate this project's docstrings for the API reference.

Docstrings are written for ``help()``: one ``Example:`` section and Sphinx roles. The reference is Markdown, in which an
example has to be an ``Examples:`` section and a role is a link or code.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import griffe

_REFERENCE = Path(__file__).parent.parent / "docs" / "reference"
_ENTRIES = re.findall(r"^::: (\S+)$", "\n".join(page.read_text() for page in _REFERENCE.glob("*.md")), re.MULTILINE)
_LINKS = {entry.rpartition(".")[2]: entry for entry in _ENTRIES}
_BARE_EXAMPLE = re.compile(r"^(>>> .*(?:\n.+)*)", re.MULTILINE)
_ROLE = re.compile(r":(?:func|class|meth|mod|attr|data|exc):`~?([\w.]+)`")


def _link(role: re.Match[str]) -> str:
    name = role[1]
    return f"[`{name}`][{_LINKS[name]}]" if name in _LINKS else f"`{name}`"


class TranslateDocstrings(griffe.Extension):
    """Rewrite each docstring before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Replace roles by links, and mark examples as griffe's ``Examples:`` section."""
        if obj.docstring is not None:
            text = _ROLE.sub(_link, obj.docstring.value)
            text = re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)
            text = _BARE_EXAMPLE.sub(lambda found: "Examples:\n" + textwrap.indent(found[1], "    "), text)
            obj.docstring.value = text.replace("``", "`")

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Let a public function win over the module of the same name that defines it."""
        for name, member in list(pkg.members.items()):
            own = member.is_alias and member.target_path.startswith(f"{pkg.name}.")  # others are not loaded
            if own and member.is_module and name in member.members:
                pkg.members[name] = griffe.Alias(name, member.members[name], parent=pkg)
