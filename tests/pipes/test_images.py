"""``decode_image`` and ``decode_sample``: images as Pillow makes them, crops that a sample's key decides, errors."""

from __future__ import annotations

import io
import random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image

from tests.support.photographs import encoded, photograph
from torchdata_remote import IterableWrapper
from torchdata_remote.errors import DecodeError
from torchdata_remote.pipes import DecodeImage, DecodeSample

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
# Largest and mean absolute difference to Pillow's values of 0 to 255; documented in docs/tasks/images.md
MOST, MEAN_DIFFERENCE, SCALED_MEAN_DIFFERENCE = 1, 0.25, 3.0
# Largest error of a normalised value in each type
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
COUNT = 7
FILE = encoded(photograph(60, 40), quality=90)
SAMPLES = [
    {"__key__": f"cat/{at}", "__url__": "s3://b/0.tar", "jpg": FILE, "cls": str(at).encode()} for at in range(COUNT)
]


def source(samples: list[Any] | None = None) -> Any:
    return IterableWrapper(SAMPLES if samples is None else samples, deepcopy=False)


def images(pipe: Any) -> dict[str, bytes]:
    return {sample["__key__"]: sample["jpg"].numpy().tobytes() for sample in pipe}


def pixels_of(file: bytes, size: Any, *, count: int = 1, **options: Any) -> list[npt.NDArray[Any]]:
    """The images of so many keys, as values of 0 to 255, channels last; by Pillow or simplejpeg, whichever decodes."""
    samples = [{"__key__": str(number), "png": file} for number in range(count)]
    pipe = IterableWrapper(samples).decode_image(size, **{"dtype": torch.uint8, "layout": "HWC", **options})
    return [(one["png"] if one["png"].dtype == torch.uint8 else one["png"].float()).numpy() for one in pipe]


def opened(file: bytes) -> Image.Image:
    return Image.open(io.BytesIO(file)).convert("RGB")


def centered(image: Image.Image, size: tuple[int, int], shorter: int) -> Image.Image:
    """Resize the shorter side, and crop the middle, as torchvision does."""
    short, long = sorted(image.size)
    sides = (shorter, int(shorter * long / short))
    image = image.resize(sides if image.width <= image.height else sides[::-1], Image.Resampling.BILINEAR)
    left, top = round((image.width - size[1]) / 2), round((image.height - size[0]) / 2)
    return image.crop((left, top, left + size[1], top + size[0]))


# Pixels


@pytest.mark.parametrize("crop", ["center", None])
@pytest.mark.parametrize("size", [160, (90, 128)])
@pytest.mark.parametrize("form", ["PNG", "JPEG"])
def test_pixels_at_full_scale_are_those_of_pillow(crop: Any, size: Any, form: str) -> None:
    """No value differs by more than one step, and few by that."""
    height, width = size if isinstance(size, tuple) else (size, size)
    for options in ({},) if form == "PNG" else ({"quality": 92, "subsampling": 0}, {"quality": 92, "subsampling": 2}):
        file = encoded(photograph(), form, **options)
        if crop is None:
            expected = opened(file).resize((width, height), Image.Resampling.BILINEAR)
        else:
            expected = centered(opened(file), (height, width), round(max(height, width) * 8 / 7))
        (found,) = pixels_of(file, size, crop=crop)
        difference = np.abs(found.astype(np.int64) - np.asarray(expected).astype(np.int64))
        assert difference.max() <= MOST
        assert difference.mean() < MEAN_DIFFERENCE


@pytest.mark.parametrize("shape", [(1, 700), (700, 1), (9, 500), (3, 31)])
def test_a_center_crop_of_a_narrow_image_has_the_pixels_of_pillow(shape: tuple[int, int]) -> None:
    file = encoded(photograph(*shape), "PNG")
    for size, resize, shorter in (((32, 32), None, 37), ((20, 32), 90, 90)):
        (found,) = pixels_of(file, size, crop="center", resize=resize)
        expected = np.asarray(centered(opened(file), size, shorter)).astype(np.int64)
        assert np.abs(found.astype(np.int64) - expected).max() <= MOST


def test_resizing_that_needs_absurd_memory_is_an_error_before_it_is_allocated() -> None:
    with pytest.raises(DecodeError, match="resizing 400000 rows to 224 x 224 needs 89,600,000 pixels, more than"):
        pixels_of(encoded(Image.new("RGB", (1, 400_000)), "PNG"), 224, crop=None)
    with pytest.raises(DecodeError, match=r"resizing .* to .*16768000.* needs"):
        pixels_of(encoded(Image.new("RGB", (1, 65_500)), "PNG"), 224, crop="center")


@pytest.mark.parametrize("layout", ["CHW", "HWC"])
@pytest.mark.parametrize("flip", [0, 1])
def test_layouts_types_and_flips_hold_the_same_pixels(layout: Any, flip: int) -> None:
    file = encoded(photograph(60, 50), "PNG")

    def made(**options: Any) -> npt.NDArray[Any]:
        (found,) = pixels_of(file, (48, 32), **{"layout": layout, "flip": flip, "seed": 1, **options})
        return found if layout == "HWC" else found.transpose(1, 2, 0)

    (plain,) = pixels_of(file, (48, 32), flip=0, seed=1)
    pixels = plain[:, ::-1] if flip else plain
    assert np.array_equal(made(), pixels)
    for dtype, tolerance in TOLERANCE.items():
        assert np.abs(made(dtype=dtype) - (pixels / 255 - MEAN) / STD).max() < tolerance
    assert np.abs(made(dtype=torch.float32, mean=0, std=1) - pixels / 255).max() < 1e-6
    other = made(dtype=torch.float32, mean=(0.1, 0.2, 0.3), std=np.array([1, 2, 4]))
    assert np.abs(other - (pixels / 255 - (0.1, 0.2, 0.3)) / (1, 2, 4)).max() < 1e-6


# Random crops


def test_half_of_the_random_crops_are_flipped_and_one_of_the_whole_image_is_the_whole_image() -> None:
    ramp = encoded(Image.fromarray(np.tile(np.arange(200, dtype=np.uint8), (200, 1))), "PNG")
    flipped = [made[0, 0, 0] > made[0, -1, 0] for made in pixels_of(ramp, 40, count=300)]
    assert 0.4 < sum(flipped) / len(flipped) < 0.6
    (whole,) = pixels_of(FILE, 40, crop=None)
    assert np.array_equal(pixels_of(FILE, 40, scale=(1, 1), ratio=(1.5, 1.5), flip=0)[0], whole)


@pytest.mark.parametrize("num_threads", [0, 1, 3])
def test_crops_depend_on_seed_and_key_only(num_threads: int) -> None:
    """Not on order, number of threads, other samples or random states."""
    expected = images(DecodeImage(source(), 16, dtype=torch.uint8, seed=1))
    shuffled = random.Random(0).sample(SAMPLES, 5)
    torch.manual_seed(num_threads)
    got = images(DecodeImage(source(shuffled), 16, dtype=torch.uint8, seed=1, num_threads=num_threads))
    assert got == {key: expected[key] for key in got}
    assert len(set(expected.values())) == COUNT
    other = images(DecodeImage(source(), 16, dtype=torch.uint8, seed=2))
    assert all(other[key] != expected[key] for key in other)


# Samples


def test_the_first_member_that_a_sample_has_becomes_a_tensor_and_others_stay() -> None:
    png = encoded(photograph(20, 20), "PNG")
    samples = [{"__key__": "1", "png": png, "seg.png": png}, {"__key__": "2", "JPG": FILE, "gif": png, "cls": b"0"}]
    first, second = DecodeImage(source(samples), (20, 30))
    assert (first["png"].shape, first["png"].dtype, first["seg.png"]) == ((3, 20, 30), torch.float32, png)
    assert second.keys() == samples[1].keys()
    assert isinstance(second["JPG"], torch.Tensor)
    assert (second["gif"], second["cls"], samples[1]["JPG"]) == (png, b"0", FILE)
    (both,) = DecodeImage(source(samples[:1]), 8).decode_image(4, members="seg.png;jpg.none;png", crop=None)
    assert both["seg.png"].shape == (3, 4, 4)


@pytest.mark.parametrize("num_threads", [0, 2])
def test_a_damaged_image_is_named_in_its_place(num_threads: int) -> None:
    damaged = [*SAMPLES[:2], {**SAMPLES[2], "jpg": FILE[: len(FILE) // 2]}, *SAMPLES[3:]]
    found = iter(DecodeImage(source(damaged), 16, num_threads=num_threads))
    assert [next(found)["__key__"], next(found)["__key__"]] == ["cat/0", "cat/1"]
    told = rf"sample 'cat/2' of s3://b/0.tar: the {len(FILE) // 2:,} bytes of 'jpg' cannot be decoded: OSError: .*trunc"
    with pytest.raises(DecodeError, match=told) as caught:
        next(found)
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.url == "s3://b/0.tar"


# decode_sample

HEAD: dict[str, Any] = {"__key__": "train/1", "__url__": "s3://b/t-000.tar"}


def decoded(sample: dict[str, Any], decoders: Any = None) -> dict[str, Any]:
    given = {**HEAD, **sample}
    (got,) = DecodeSample(source([given]), decoders)
    assert given == {**HEAD, **sample}, "the decoded sample is a new dict"
    assert {name: got.pop(name) for name in HEAD} == HEAD
    return got


def test_members_are_decoded_by_their_extension() -> None:
    assert decoded({"cls": b"3\n", "json": b'{"a": [1]}'}) == {"cls": 3, "json": {"a": [1]}}
    unchanged = {"xyz": b"1", "cls": 3, "txt": "a", "json": None, "cls.bin": b"3"}
    assert decoded(unchanged) == unchanged
    assert decoded({"cls": memoryview(b"3"), "a.b.cls": b"4", "JSON": b"[]"}) == {"cls": 3, "a.b.cls": 4, "JSON": []}


def stop(data: bytes) -> None:
    raise StopIteration


@pytest.mark.parametrize(
    ("sample", "decoders"),
    [
        ({"txt": b"\xff"}, None),
        ({"seg.png": b"x"}, None),
        ({"bin": b"1"}, {"bin": stop}),  # does not end the epoch early
        ({"bin": b"1"}, {"bin": lambda data: data["field"]}),
    ],
)
@pytest.mark.parametrize("num_threads", [0, 2])
def test_what_cannot_be_decoded_is_an_error_that_names_member_sample_and_shard(
    sample: dict[str, Any], decoders: Any, num_threads: int
) -> None:
    with pytest.raises(DecodeError) as caught:
        list(DecodeSample(source([{**HEAD, **sample}]), decoders, num_threads=num_threads))
    name, value = next(iter(sample.items()))
    for part in (repr(name), "'train/1'", "s3://b/t-000.tar", f"{len(value):,} byte"):
        assert part in str(caught.value)
    assert caught.value.url == "s3://b/t-000.tar"
    assert caught.value.__cause__ is not None
    assert type(caught.value.__cause__).__name__ in str(caught.value)
