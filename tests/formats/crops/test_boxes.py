"""Crops: the distribution of torchvision's."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote.formats.crops.boxes import NUM_DRAWS, Box, center_box, random_box, resized_shape

SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
SIDES = st.integers(1, 600)


def draws_of(seed: int) -> list[float]:
    return np.random.default_rng(seed).random(NUM_DRAWS).tolist()  # type: ignore[no-any-return]


def torchvision_box(height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float]) -> Box:
    """``RandomResizedCrop.get_params`` of torchvision 0.28."""
    area, log_ratio = height * width, torch.log(torch.tensor(ratio))
    for _ in range(10):
        target_area = area * torch.empty(1).uniform_(scale[0], scale[1]).item()
        aspect_ratio = torch.exp(torch.empty(1).uniform_(float(log_ratio[0]), float(log_ratio[1]))).item()
        w, h = round(math.sqrt(target_area * aspect_ratio)), round(math.sqrt(target_area / aspect_ratio))
        if 0 < w <= width and 0 < h <= height:
            i, j = torch.randint(0, height - h + 1, size=(1,)).item(), torch.randint(0, width - w + 1, size=(1,)).item()
            return Box(int(i), int(j), h, w)
    in_ratio = width / height
    if in_ratio < min(ratio):
        w, h = width, round(width / min(ratio))
    elif in_ratio > max(ratio):
        h, w = height, round(height * max(ratio))
    else:
        w, h = width, height
    return Box((height - h) // 2, (width - w) // 2, h, w)


@given(
    SIDES, SIDES, st.integers(min_value=0), st.floats(0.01, 1), st.floats(0.01, 1), st.floats(0.1, 9), st.floats(0.1, 9)
)
def test_a_random_crop_is_inside_the_image(
    height: int, width: int, seed: int, small: float, large: float, narrow: float, wide: float
) -> None:
    """Of any image, scale and ratio; and it is not empty."""
    scale, ratio = (min(small, large), max(small, large)), (min(narrow, wide), max(narrow, wide))
    box = random_box(height, width, scale, ratio, draws_of(seed))
    assert box.top >= 0
    assert box.left >= 0
    assert 0 < box.height <= height - box.top
    assert 0 < box.width <= width - box.left


def features(box: Box, height: int, width: int) -> list[float]:
    return [
        box.height * box.width / (height * width),
        math.log(box.width / box.height),
        (box.top + 0.5) / (height - box.height + 1),
        (box.left + 0.5) / (width - box.width + 1),
        box.top / height,
        (box.left + box.width) / width,
    ]


@pytest.mark.parametrize("shape", [(375, 500), (400, 150), (64, 640)], ids=["photo", "tall", "fallback"])
def test_random_crops_have_the_distribution_of_torchvision(shape: tuple[int, int]) -> None:
    """Kolmogorov-Smirnov distance of area, aspect ratio and position below the limit for p = 0.001."""
    count = 2_500
    torch.manual_seed(0)
    ours = np.array([features(random_box(*shape, SCALE, RATIO, draws_of(key)), *shape) for key in range(count)])
    theirs = np.array([features(torchvision_box(*shape, SCALE, RATIO), *shape) for _ in range(count)])
    for column in range(ours.shape[1]):
        one, other = np.sort(ours[:, column]), np.sort(theirs[:, column])
        at = np.concatenate([one, other])
        distance = np.abs(np.searchsorted(one, at, "right") - np.searchsorted(other, at, "right")).max() / count
        assert distance < 1.95 * math.sqrt(2 / count), column


def test_a_crop_that_never_fits_is_torchvisions() -> None:
    """The largest one in the middle."""
    for shape in ((10, 500), (500, 10), (7, 7)):
        box = random_box(*shape, (2.0, 2.0), RATIO, draws_of(0))
        assert box == torchvision_box(*shape, (2.0, 2.0), RATIO)


@given(st.integers(1, 3_000), st.integers(1, 3_000), st.integers(1, 300))
def test_center_crops_are_inside_the_resized_image(height: int, width: int, side: int) -> None:
    """Whose shorter side is at least as long as those of the crop."""
    shape = resized_shape(height, width, side)
    assert min(shape) == side
    box = center_box(*shape, (side, side))
    assert 0 <= box.top <= shape[0] - side
    assert 0 <= box.left <= shape[1] - side
