"""Examples in docstrings."""

from __future__ import annotations

import doctest
import importlib
import re

import pytest
from torch.utils.data.datapipes.iter import IterableWrapper

from tests.support.paths import ROOT
from torchdata_remote import World

MODULES = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted((ROOT / "torchdata_remote").rglob("*.py"))
    if re.search(r"^ +>>> .*(?<!SKIP)$", path.read_text(), re.MULTILINE)
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_do_what_they_show(name: str) -> None:
    names = {"IterableWrapper": IterableWrapper, "World": World}
    report: list[str] = []
    runner = doctest.DocTestRunner()
    for example in doctest.DocTestFinder().find(importlib.import_module(name), extraglobs=names):
        runner.run(example, out=report.append)
    assert not report, "".join(report)
    assert runner.summarize(verbose=False).attempted
