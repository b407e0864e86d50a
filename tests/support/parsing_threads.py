"""CPython's ``literal_eval`` as it is beside threads that parse Python, before 3.11.8 and 3.12.2."""

from __future__ import annotations

import ast
from typing import Any

import pytest


def fail_literal_eval(patch: pytest.MonkeyPatch) -> list[int]:
    """Let it fail, as by chance where other threads use it; the list has the number of failures left."""
    left, parse = [10**9], ast.literal_eval

    def fails(text: Any) -> Any:
        if left[0] > 0:
            left[0] -= 1
            raise SystemError("AST constructor recursion depth mismatch (before=45, after=43)")
        return parse(text)

    patch.setattr(ast, "literal_eval", fails)
    return left
