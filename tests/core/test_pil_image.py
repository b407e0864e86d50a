"""PIL images are recognised without PIL, and while another thread imports it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest
from PIL import Image
from torch.utils.data.datapipes.iter import IterableWrapper

import torchdata_remote as tdr
from torchdata_remote.core.pil_image import is_pil_image


def test_an_image_is_one() -> None:
    assert is_pil_image(Image.new("RGB", (1, 1)))
    assert not is_pil_image(b"P")
    assert not is_pil_image(Image)


def test_no_value_is_an_image_before_pil_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "PIL.Image")
    assert not is_pil_image(b"P")


def test_samples_are_checked_and_written_while_another_thread_imports_pil(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", ModuleType("PIL.Image"))  # as its first line leaves it
    samples = [{"__key__": f"{number}", "txt": b"a"} for number in range(3)]
    assert list(IterableWrapper(samples).shuffle_samples(buffer_size=1, seed=0)) == samples
    with tdr.ShardWriter(f"{tmp_path}/{{shard}}.tar") as writer:
        for sample in samples:
            writer.write({**sample, "ppm": b"P"})
