"""Translate this project's docstrings for the API reference.

Docstrings are written for ``help()``: one ``Example:`` section and Sphinx roles. The reference is Markdown, in which an
example has to be an ``Examples:`` section and a role is shown as code.
"""

from __future__ import annotations

import re
import textwrap
from typing import Any

import griffe

_BARE_EXAMPLE = re.compile(r"^(>>> .*(?:\n.+)*)", re.MULTILINE)
_ROLE = re.compile(r":(?:func|class|meth|mod|attr|data|exc):`~?([\w.]+)`")


class TranslateDocstrings(griffe.Extension):
    """Rewrite each docstring before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Replace roles by code, and mark examples as griffe's ``Examples:`` section."""
        if obj.docstring is not None:
            text = _ROLE.sub(r"`\1`", obj.docstring.value)
            text = re.sub(r"^Example:$", "Examples:", text, flags=re.MULTILINE)
            text = _BARE_EXAMPLE.sub(lambda found: "Examples:\n" + textwrap.indent(found[1], "    "), text)
            obj.docstring.value = text.replace("``", "`")
