"""torch's DataPipes are imported without the warnings of their deprecation."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.paths import ROOT

_DEPRECATED = """
import sys
import warnings
import torch.utils.data as data
from torch.utils.data.datapipes.datapipe import IterDataPipe

def deprecated(name):  # reported for the first caller outside torch
    caller = sys._getframe(2)
    while caller.f_globals["__name__"].startswith(("torch.", "importlib.", "abc")):
        caller = caller.f_back
    place = caller.f_code.co_filename, caller.f_lineno, caller.f_globals["__name__"]
    warnings.warn_explicit(f"DataPipes are deprecated: {name}", CATEGORY, *place)

names = {name: vars(data).pop(name) for name in ("IterDataPipe", "functional_datapipe")}
data.__getattr__ = lambda name: deprecated(name) or names[name]
IterDataPipe.__init_subclass__ = classmethod(lambda cls: deprecated(cls))
warnings.filterwarnings("error", "DataPipes are deprecated")

import torchdata_remote as tdr
from torchdata_remote.core.iter_datapipe import IterDataPipe as base
assert base is IterDataPipe
assert list(tdr.IterableWrapper(["memory://a/{0..2}.tar"]).list_remote().sharding_filter_rank().map(len).batch(2))

class OfModule(IterDataPipe):
    pass
"""


@pytest.mark.parametrize("category", ["DeprecationWarning", "FutureWarning"])
def test_a_deprecation_in_torch_is_not_reported_for_this_package(category: str) -> None:
    """torch may warn of imports and subclasses, even by errors: only a user's own subclass is reported."""
    process = subprocess.run(
        [sys.executable, "-c", _DEPRECATED.replace("CATEGORY", category)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert process.returncode == 1
    assert process.stderr.splitlines()[-1] == f"{category}: DataPipes are deprecated: <class '__main__.OfModule'>"
