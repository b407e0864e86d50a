"""Images as tensors, compared with Pillow's pixels: decoded, cropped, resized, flipped and normalised one by one."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image

from torchdata_remote.formats.crops.boxes import NUM_DRAWS, random_box
from torchdata_remote.formats.decoders import _turbojpeg as turbojpeg
from torchdata_remote.pipes.base import image_tensors as module
from torchdata_remote.pipes.base.image_options import image_tensors
from torchdata_remote.pipes.base.image_tensors import ImageTensors

from ...support.photographs import encoded, photograph

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# Largest and mean absolute difference to Pillow's values of 0 to 255; documented in docs/tasks/images.md
MOST, MEAN_DIFFERENCE = 1, 0.25
SCALED_MEAN_DIFFERENCE = 3.0
# Largest error of a normalised value in each type
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def tensors(size: Any, **options: Any) -> ImageTensors:
    defaults: dict[str, Any] = {
        "crop": "random",
        "resize": None,
        "scale": (0.08, 1),
        "ratio": (3 / 4, 4 / 3),
        "flip": None,
        "dtype": torch.uint8,
        "mean": None,
        "std": None,
        "layout": "HWC",
        "exif_orientation": False,
    }
    return image_tensors(size, **{**defaults, **options})


def draws_of(key: object) -> list[float]:
    return np.random.default_rng(list(str(key).encode())).random(NUM_DRAWS).tolist()  # type: ignore[no-any-return]


def written(made: ImageTensors, file: bytes, key: object = "a") -> npt.NDArray[Any]:
    row = torch.full(made.shape, 77, dtype=made.dtype)
    made.write(file, row, draws_of(key))
    return (row if row.dtype == torch.uint8 else row.float()).numpy()


def by_pillow(made: ImageTensors, file: bytes, key: object = "a") -> npt.NDArray[np.int64]:
    image: Image.Image = Image.open(io.BytesIO(file)).convert("RGB")
    height, width = made.size
    draws = draws_of(key)
    if made.crop == "random":
        box = random_box(image.height, image.width, made.scale, made.ratio, draws)
        image = image.crop((box.left, box.top, box.left + box.width, box.top + box.height))
    elif made.crop == "center":
        short, long = sorted(image.size)
        sides = (made.shorter, int(made.shorter * long / short))
        image = image.resize(sides if image.width <= image.height else sides[::-1], Image.Resampling.BILINEAR)
        left, top = round((image.width - width) / 2), round((image.height - height) / 2)
        image = image.crop((left, top, left + width, top + height))
    image = image.resize((width, height), Image.Resampling.BILINEAR)
    if draws[0] < made.flip:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.asarray(image).astype(np.int64)


def differences(made: ImageTensors, file: bytes, key: object = "a") -> npt.NDArray[np.int64]:
    difference: npt.NDArray[np.int64] = np.abs(written(made, file, key).astype(np.int64) - by_pillow(made, file, key))
    return difference


@pytest.mark.parametrize("library", ["simplejpeg", "pillow"])
@pytest.mark.parametrize("crop", ["random", "center", None])
@pytest.mark.parametrize("size", [160, (90, 128)])
def test_pixels_are_those_of_pillow(crop: Any, size: Any, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At full scale: no value differs by more than one step, and few by that."""
    if library == "pillow":
        monkeypatch.setattr(turbojpeg, "simplejpeg", None)
    made = tensors(size, crop=crop, flip=0.5)
    for subsampling in (0, 2):
        file = encoded(photograph(), quality=92, subsampling=subsampling)
        different = [differences(made, file, key) for key in range(8)]
        assert max(one.max() for one in different) <= MOST
        assert np.mean(different) < MEAN_DIFFERENCE


@pytest.mark.parametrize("side", [60, 24])
@pytest.mark.parametrize("crop", ["random", None])
def test_pixels_at_a_lower_scale_are_close_to_those_of_pillow(crop: Any, side: int) -> None:
    """Where the image is decoded at a half to an eighth of its size."""
    made = tensors(side, crop=crop, **({"scale": (0.4, 1)} if crop else {}))
    file = encoded(photograph(500, 375), quality=92)
    assert np.mean([differences(made, file, key) for key in range(12)]) < SCALED_MEAN_DIFFERENCE


def test_an_image_that_has_the_size_is_not_resized() -> None:
    """Its pixels are those of the file, larger and smaller ones are made as large."""
    image = photograph(40, 30)
    made = tensors((30, 40), crop=None)
    assert np.array_equal(written(made, encoded(image, "PNG")), np.asarray(image))
    assert written(made, encoded(photograph(20, 9), "PNG")).shape == (30, 40, 3)


@pytest.mark.parametrize("layout", ["CHW", "HWC"])
@pytest.mark.parametrize("flip", [0, 1])
def test_layouts_hold_the_same_pixels(layout: Any, flip: int) -> None:
    """Flipped or not, channels first or last, normalised or not."""
    file = encoded(photograph(60, 50), "PNG")
    pixels = written(tensors((48, 32), flip=0), file)[:, :: -1 if flip else 1]
    got = written(tensors((48, 32), flip=flip, layout=layout), file)
    assert np.array_equal(got if layout == "HWC" else got.transpose(1, 2, 0), pixels)
    for dtype, tolerance in TOLERANCE.items():
        floats = written(tensors((48, 32), flip=flip, layout=layout, dtype=dtype), file)
        expected = (pixels / 255 - MEAN) / STD
        assert np.abs((floats if layout == "HWC" else floats.transpose(1, 2, 0)) - expected).max() < tolerance


def test_mean_and_std_are_those_given() -> None:
    """For each channel, or one number for all; 0 and 1 leave values from 0 to 1."""
    file = encoded(photograph(30, 30), "PNG")
    pixels = written(tensors(20), file)
    plain = written(tensors(20, dtype=torch.float32, mean=0, std=1), file)
    assert np.abs(plain - pixels / 255).max() < 1e-6
    other = written(tensors(20, dtype=torch.float32, mean=(0.1, 0.2, 0.3), std=np.array([1, 2, 4])), file)
    assert np.abs(other - (pixels / 255 - (0.1, 0.2, 0.3)) / (1, 2, 4)).max() < 1e-6


def test_a_center_crop_keeps_the_usual_part_of_the_image() -> None:
    """256 pixels for a crop of 224, unless ``resize`` says otherwise."""
    assert tensors(224, crop="center").shorter == 256
    assert tensors((96, 224), crop="center").shorter == 256
    assert tensors(224, crop="center", resize=224).shorter == 224


@pytest.mark.parametrize("shape", [(1, 700), (700, 1), (9, 500), (3, 31)])
def test_a_center_crop_of_a_narrow_image_has_the_pixels_of_pillow(shape: tuple[int, int]) -> None:
    """Which resizes the whole image; here only the part that is shown is made."""
    file = encoded(photograph(*shape), "PNG")
    for made in (tensors(32, crop="center"), tensors((20, 32), crop="center", resize=90)):
        assert differences(made, file).max() <= MOST


def test_a_center_crop_makes_no_more_than_it_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shorter side of one pixel would make the other one 17 million pixels."""
    sizes: list[tuple[int, int]] = []
    resized = module.resized

    def noted(pixels: Any, size: tuple[int, int]) -> Any:
        sizes.append(size)
        return resized(pixels, size)

    monkeypatch.setattr(module, "resized", noted)
    assert written(tensors(224, crop="center"), encoded(Image.new("RGB", (1, 65_500)), "PNG")).shape == (224, 224, 3)
    assert sizes == []
    written(tensors(24, crop="center"), encoded(photograph(60, 40)))
    assert sizes == [(27, 40)]


def test_resizing_that_needs_absurd_memory_is_an_error_before_it_is_allocated() -> None:
    """Rows are made as wide as the result first."""
    file = encoded(Image.new("RGB", (1, 400_000)), "PNG")
    with pytest.raises(ValueError, match="resizing 400000 rows to 224 x 224 needs 89,600,000 pixels, more than"):
        written(tensors(224, crop=None), file)


def test_options_of_other_libraries_are_accepted() -> None:
    """Arrays and tensors, also those without dimensions."""
    of_torch = (torch.tensor(32), torch.tensor([32, 32]), torch.Size([32, 32]))
    for size in (32, np.int64(32), np.array(32), [32, 32], *of_torch):
        assert tensors(size).size == (32, 32)
    for mean in (0.5, np.array(0.5), torch.tensor(0.5), [0.5] * 3, np.full(3, 0.5), torch.full((3,), 0.5)):
        assert tensors(8, mean=mean, dtype=torch.float32).mean == (0.5, 0.5, 0.5)


def threads_started(function: Callable[[], object]) -> int:
    """Return how many threads of the system a function starts, called in a new thread."""
    counts: list[int] = []

    def count() -> None:
        before = os.listdir("/proc/self/task")
        function()
        counts.append(len({*os.listdir("/proc/self/task")} - {*before}))

    thread = threading.Thread(target=count)
    thread.start()
    thread.join()
    return counts[0]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="only Linux lists a process's threads")
def test_no_other_thread_works_for_an_image() -> None:
    """torch divides a copy of so many values among threads, which would compete with those that decode."""
    file, kept = encoded(photograph(), quality=92), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        source = torch.zeros(3 * 200 * 200)
        assert threads_started(lambda: torch.empty(3 * 200 * 200).copy_(source.to(torch.uint8))) > 0
        for dtype in (torch.uint8, *TOLERANCE):
            for layout in ("CHW", "HWC"):
                made = tensors(200, dtype=dtype, layout=layout)
                row = torch.empty(made.shape, dtype=dtype)
                assert threads_started(partial(made.write, file, row, draws_of("a"))) == 0
    finally:
        torch.set_num_threads(kept)


def test_large_images_leave_no_memory_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a thread keeps for its next image is bounded."""
    monkeypatch.setattr(module, "_MAX_SCRATCH_BYTES", 10)
    monkeypatch.setattr(module, "_of_thread", type("Local", (), {})())
    written(tensors(20, dtype=torch.float32), encoded(photograph(30, 30), "PNG"))
    assert not vars(module._of_thread)
