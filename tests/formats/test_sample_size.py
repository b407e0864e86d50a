"""The size of a sample, by which a buffer is bounded."""

from __future__ import annotations

import io
from array import array
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from torchdata_remote.formats.sample_size import sample_bytes


@dataclass
class Pair:
    """Two values."""

    first: Any
    second: Any


def closed_file() -> io.BytesIO:
    file = io.BytesIO(bytes(1_000))
    file.close()
    return file


@pytest.mark.parametrize(
    ("value", "content"),
    [
        (bytes(1_000), 1_000),
        (bytearray(1_000), 1_000),
        (memoryview(bytes(1_000)), 1_000),
        ("x" * 1_000, 1_000),
        (np.zeros((10, 25), np.float32), 1_000),
        (torch.zeros(10, 25), 1_000),
        (Image.new("RGB", (20, 50)), 3_000),
        (io.BytesIO(bytes(1_000)), 1_000),
        (closed_file(), 0),
        (array("f", range(250)), 1_000),
        (Pair(bytes(600), ["x" * 400]), 1_000 + 3 * 48),
        (Pair, 0),
        (np.zeros(1_000_000, np.uint8)[:1_000], 1_000),  # a view, whose array other samples may share
        (7, 0),
        (None, 0),
        ([bytes(500), bytes(500)], 1_000 + 2 * 48),
        ({"a": bytes(500), "b": (1, "x" * 500)}, 1_000 + 4 * 48),
    ],
)
def test_content_counts_wherever_it_is(value: Any, content: int) -> None:
    """In a member, and as a sample of its own."""
    assert sample_bytes({"__key__": "", "x": value}) == 256 + 2 * 48 + content
    if not isinstance(value, dict):
        assert sample_bytes(value) == 256 + 48 + content
