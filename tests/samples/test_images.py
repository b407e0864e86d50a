"""Images: every format becomes 8-bit RGB, damage is an error, and simplejpeg and Pillow give the same pixels."""

from __future__ import annotations

import io
import math
import pickle
import struct
import subprocess
import sys
import threading
import warnings
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

import torchdata_remote as tdr
from tests.support.photographs import encoded, photograph
from torchdata_remote.errors import DecodeError, EncodeError

simplejpeg = pytest.importorskip("simplejpeg", reason="extra [turbo]")
MAX_PIXELS, rgb, encode_member = tdr.decoders.MAX_PIXELS, tdr.decoders.rgb, tdr.encoders.encode_member
Pixels = npt.NDArray[Any]


def pixels(data: bytes) -> Pixels:
    image = rgb(data)
    assert (type(image), image.mode, image.info) == (Image.Image, "RGB", {})
    return np.asarray(image)


def noise(*shape: int) -> Pixels:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def palette() -> Image.Image:
    image = Image.new("P", (3, 1))
    image.putdata([0, 1, 2])
    image.putpalette([250, 10, 20, 30, 240, 50, 60, 70, 230])
    return image


GRAY = noise(5, 7)
COLOURS = [[[250, 10, 20], [30, 240, 50], [60, 70, 230]]]
BITS = Image.fromarray(np.array([[0, 255], [255, 0]], dtype=np.uint8)).convert("1")
STORED: dict[str, tuple[bytes, Any]] = {
    "gray": (encoded(Image.fromarray(GRAY), "PNG"), np.stack([GRAY] * 3, axis=-1)),
    "bits": (encoded(BITS, "PNG"), [[[0] * 3, [255] * 3], [[255] * 3, [0] * 3]]),
    **{f"palette in {name}": (encoded(palette(), name), COLOURS) for name in ("PNG", "GIF", "BMP", "TIFF")},
    "palette, one transparent": (encoded(palette(), "PNG", transparency=1), COLOURS),
    "palette with alpha": (encoded(palette(), "PNG", transparency=bytes([255, 0, 128])), COLOURS),
    "alpha is dropped": (encoded(Image.new("RGBA", (1, 1), (200, 100, 50, 7)), "PNG"), [[[200, 100, 50]]]),
    "gray alpha is dropped": (encoded(Image.new("LA", (1, 1), (200, 7)), "PNG"), [[[200] * 3]]),
}


@pytest.mark.parametrize("case", STORED)
def test_the_colours_of_a_file_are_kept(case: str) -> None:
    """Also those under transparent pixels; nothing warns."""
    data, expected = STORED[case]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.array_equal(pixels(data), expected)


@pytest.mark.parametrize("image_format", ["PNG", "TIFF", "PPM"])
def test_16_bits_of_gray_are_scaled(image_format: str) -> None:
    """0 to 65,535 becomes 0 to 255, with a warning; Pillow alone would clip all to white."""
    data = encoded(Image.fromarray(np.array([[0, 255, 256, 32768, 65535]], dtype=np.uint16)), image_format)
    with pytest.warns(RuntimeWarning, match=r"8 bits.*decoders\.pixels"):
        assert pixels(data)[0].tolist() == [[value] * 3 for value in (0, 0, 1, 128, 255)]


def test_a_cmyk_jpeg_has_the_colours_that_it_was_made_from() -> None:
    for colour in ((255, 0, 0), (0, 0, 255), (255, 255, 255), (0, 0, 0)):
        data = encoded(Image.new("RGB", (16, 16), colour).convert("CMYK"), "JPEG", quality=95)
        assert np.abs(pixels(data)[8, 8].astype(int) - colour).max() <= 4


@pytest.mark.parametrize("image_format", ["JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM"])
def test_an_image_that_was_cut_at_any_byte_is_an_error(image_format: str) -> None:
    """Never a picture with a grey lower half: less than all pixels is an error."""
    data = encoded(Image.fromarray(noise(12, 12, 3)), image_format)
    whole, refused = pixels(data), 0
    for end in range(len(data)):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of Pillow, about the damage
                found = pixels(data[:end])
        except (OSError, ValueError):
            refused += 1
        else:
            assert np.array_equal(found, whole), f"cut at byte {end}"
    assert refused > len(data) * 0.9


@pytest.mark.parametrize("data", [b"", b"not an image", b"<svg/>", b"%PDF-1.4", b"%!PS-Adobe-3.0 EPSF-3.0\n"])
def test_what_is_no_image_is_an_error(data: bytes) -> None:
    """Including formats that Pillow would try by itself. The message has no address of an object."""
    with pytest.raises(OSError, match="not an image of a known format") as caught:
        rgb(data)
    assert "0x" not in str(caught.value)


def png_that_claims(width: int, height: int) -> bytes:
    data = encoded(Image.new("L", (1, 1)), "PNG")
    header = b"IHDR" + struct.pack(">II", width, height) + data[24:29]
    return data[:12] + header + struct.pack(">I", zlib.crc32(header)) + data[33:]


def jpeg_that_claims(width: int, height: int) -> bytes:
    data = bytearray(encoded(Image.new("RGB", (8, 8)), "JPEG"))
    at = data.index(b"\xff\xc0") + 5
    data[at : at + 4] = struct.pack(">HH", height, width)
    return bytes(data)


SIDE = math.isqrt(MAX_PIXELS)
TOO_MANY = [png_that_claims(20_000, 20_000), png_that_claims(MAX_PIXELS + 1, 1), png_that_claims(2**31 - 1, 2**31 - 1)]
TOO_MANY += [jpeg_that_claims(9_000, 9_000), jpeg_that_claims(60_000, 60_000)]


@pytest.mark.parametrize("data", TOO_MANY, ids=range(len(TOO_MANY)))
def test_too_many_pixels_are_refused_before_memory_is_taken(data: bytes) -> None:
    """Also where the image would be reduced or cropped. The limit is ours, and in the message."""
    for decode in (rgb, rgb(min_size=8), tdr.decoders.pixels):
        with pytest.raises(ValueError, match=f"{MAX_PIXELS:,}"):
            decode(data)
    with pytest.raises(DecodeError, match=f"{MAX_PIXELS:,}"):
        list(tdr.IterableWrapper([{"__key__": "a", "jpg": data}]).decode_image(8))


def test_pixels_within_the_limit_are_not_refused() -> None:
    """Pillow's own lower limit neither refuses nor warns: these files only lack their pixels."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for data in (png_that_claims(SIDE, SIDE), png_that_claims(MAX_PIXELS, 1)):
            with pytest.raises(OSError, match="truncated"):
                rgb(data)


@pytest.mark.parametrize(("mode", "kind"), [("F", np.float32), ("I", np.int32)])
def test_pixels_without_a_known_range_are_refused(mode: str, kind: Any) -> None:
    """A float or 32-bit TIFF would become black or white; the message says what to do."""
    with pytest.raises(ValueError, match=rf"mode {mode}.*decoders\.pixels"):
        rgb(encoded(Image.fromarray(np.array([[0, 100], [200, 255]], dtype=kind)), "TIFF"))


# With simplejpeg and without


def smooth(width: int, height: int, channels: int, seed: int) -> Pixels:
    """Spots of colour with some noise on them, as photographs have."""
    random = np.random.default_rng(seed)
    few = random.integers(0, 256, (height // 8 + 1, width // 8 + 1, channels), dtype=np.uint8)
    layers = [np.asarray(Image.fromarray(few[..., c]).resize((width, height))) for c in range(channels)]
    spots = np.stack(layers, axis=-1)
    return (spots + random.normal(0, 9, spots.shape)).clip(0, 255).astype(np.uint8)


TURNED = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"  # orientation 6: by 90 degrees
JPEGS = ["gray", "4:4:4", "4:2:2", "4:2:0", "4:4:0", "4:1:1", "rgb", "cmyk"]


def some_jpeg(number: int) -> bytes:
    """JPEG of the usual kinds: gray, colour with any subsampling, stored as RGB, CMYK; progressive; EXIF; restarts."""
    random, kind = np.random.default_rng(number), JPEGS[number % len(JPEGS)]
    width, height, quality = (int(value) for value in random.integers((1, 1, 30), (120, 120, 98)))
    colours = smooth(width, height, {"gray": 1, "cmyk": 4}.get(kind, 3), number)
    if kind in ("4:4:0", "4:1:1"):  # which Pillow cannot write
        return bytes(simplejpeg.encode_jpeg(colours, quality, colorsubsampling=kind.replace(":", "")))
    options: dict[str, Any] = {"quality": quality, "exif": (b"", TURNED)[number // 8 % 2]}
    options |= {"progressive": bool(number // 16 % 2), "restart_marker_rows": int(random.integers(2))}
    options |= {"keep_rgb": True} if kind == "rgb" else {"subsampling": kind} if kind[0] == "4" else {}
    image = Image.fromarray(colours[..., 0] if kind == "gray" else colours[..., :3])
    return encoded(image.convert("CMYK") if kind == "cmyk" else image, "JPEG", **options)


def damaged(data: bytes, number: int) -> bytes:
    random = np.random.default_rng(number)
    if number % 2:
        return data[: int(random.integers(len(data)))]
    for _ in range(int(random.integers(1, 4))):
        at, junk = 3 + int(random.integers(len(data) - 3)), random.bytes(int(random.integers(1, 9)))
        data = data[:at] + junk + data[at + len(junk) :]
    return data


WITHOUT = """
import pickle, sys
sys.modules["simplejpeg"] = None
import numpy as np, torch, warnings
import torchdata_remote as tdr
warnings.simplefilter("ignore")
found = []
for kind, data in pickle.load(sys.stdin.buffer):
    try:
        if isinstance(kind, dict):
            (sample,) = tdr.IterableWrapper([{"__key__": "a", "jpg": data}]).decode_image(dtype=torch.uint8, **kind)
            found.append(sample["jpg"].numpy())
        else:
            found.append(np.asarray(tdr.decoders.rgb(data, min_size=kind)))
    except Exception as error:
        found.append((type(error).__name__, str(error)))
pickle.dump(found, sys.stdout.buffer)
"""
NUM_JPEGS = 96  # of each kind three, with and without each option
CROPS: list[Any] = [{"size": (20, 30), "crop": "center", "resize": 40}, {"size": 24, "crop": "random"}]


def outcome(kind: Any, data: bytes) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if not isinstance(kind, dict):
                return np.asarray(rgb(data, min_size=kind))
            (sample,) = tdr.IterableWrapper([{"__key__": "a", "jpg": data}]).decode_image(dtype=torch.uint8, **kind)
            return sample["jpg"].numpy()
        except (OSError, ValueError, DecodeError) as error:
            return type(error).__name__, str(error)


def test_pillow_and_simplejpeg_decode_the_same_image_and_refuse_the_same_files() -> None:
    """Whole, reduced or a part: size and pixels do not depend on what is installed; nor what is damage."""
    files = [some_jpeg(number) for number in range(NUM_JPEGS)]
    files += [damaged(file, number) for number, file in enumerate(files)]
    kinds: list[Any] = [None, 10, 40, *CROPS]
    tasks = [(kinds[number % 5], file) for number, file in enumerate(files)]
    done = subprocess.run([sys.executable, "-c", WITHOUT], input=pickle.dumps(tasks), capture_output=True, timeout=200)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    num_refused = 0
    for number, ((kind, file), one) in enumerate(zip(tasks, pickle.loads(done.stdout), strict=True)):
        other = outcome(kind, file)
        if isinstance(one, tuple) or isinstance(other, tuple):
            assert one == other, number
            num_refused += 1
        else:
            difference = np.abs(one.astype(int) - other)
            assert one.shape == other.shape, number
            assert (difference.max(), difference.mean()) <= (8, 0.5), f"file {number}, {kind}"
        assert number >= NUM_JPEGS or not isinstance(one, tuple)
    assert num_refused > NUM_JPEGS / 2


@pytest.mark.parametrize("min_size", [1, 7, 30, 60, 130])
def test_images_decoded_at_reduced_size_keep_min_size(min_size: int) -> None:
    """By 1, 2, 4 or 8, the most that leaves both sides ``min_size`` pixels; one that has fewer keeps its size."""
    for file in map(some_jpeg, range(40)):
        whole, reduced = rgb(file), rgb(min_size=min_size)(file)
        by = max(each for each in (1, 2, 4, 8) if each == 1 or min(whole.size) // each >= min_size)
        assert reduced.size == tuple(math.ceil(side / by) for side in whole.size)


@pytest.mark.parametrize("by", [2, 4, 8])
def test_an_image_decoded_at_reduced_size_is_similar(by: int) -> None:
    """Each pixel is the mean of those that it stands for."""
    colours = smooth(64, 48, 3, seed=1)
    data = encoded(Image.fromarray(colours), "JPEG", quality=97, subsampling=0)
    expected = colours.reshape(48 // by, by, 64 // by, by, 3).mean(axis=(1, 3))
    found = np.asarray(rgb(data, min_size=48 // by))
    assert found.shape == expected.shape
    assert np.abs(found - expected).mean() < 3


@pytest.mark.parametrize("image_format", ["PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM"])
def test_min_size_does_not_change_other_formats(image_format: str) -> None:
    data = encoded(Image.fromarray(noise(40, 50, 3)), image_format)
    assert np.array_equal(np.asarray(rgb(min_size=10)(data)), pixels(data))


def test_a_decoder_with_options_is_a_value() -> None:
    """It can be pickled and compared, and shows what it does; what makes no sense is refused when it is made."""
    decoder = rgb(min_size=224)
    assert pickle.loads(pickle.dumps(decoder)) == decoder == rgb(min_size=224) != rgb(min_size=225)
    assert "min_size=224" in repr(decoder)
    for wrong in (0, -1, 1.5, "224"):
        with pytest.raises((TypeError, ValueError), match=f"min_size must be .*{wrong}"):
            rgb(min_size=wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"rgb\(data\).*rgb\(min_size=224\)"):
        rgb()


def test_jpeg_is_decoded_by_simplejpeg_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(Image.fromarray(noise(20, 30, 3)))
    monkeypatch.setattr(Image, "open", None)
    (sample,) = tdr.IterableWrapper([{"__key__": "a", "jpg": data}]).decode_sample()
    assert sample["jpg"].size == (30, 20)


# Parts of images


@given(
    shape=st.tuples(st.integers(8, 120), st.integers(8, 90)),
    options=st.sampled_from([{}, {"progressive": True}, {"restart_marker_rows": 1}, {"optimize": True}]),
    subsampling=st.sampled_from([0, 1, 2, None]),
    image_format=st.sampled_from(["JPEG", "JPEG", "JPEG", "PNG"]),
    data=st.data(),
)
def test_a_part_of_an_image_has_the_pixels_of_the_whole(
    shape: tuple[int, int], options: dict[str, Any], subsampling: int | None, image_format: str, data: st.DataObject
) -> None:
    """In the middle, with any subsampling of the chroma or in gray, in one pass over the image or several."""
    width, height = shape
    image = photograph().crop((0, 0, width, height)).convert("L" if subsampling is None else "RGB")
    if image_format == "JPEG":
        options = {"quality": 90, **options, **({} if subsampling is None else {"subsampling": subsampling})}
    file, side = encoded(image, image_format, **(options if image_format == "JPEG" else {})), min(shape)
    size = data.draw(st.integers(side // 2 + 1, side)), data.draw(st.integers(side // 2 + 1, side))
    pipe = tdr.IterableWrapper([{"__key__": "a", "jpg": memoryview(file)}], deepcopy=False)
    (sample,) = pipe.decode_image(size, crop="center", resize=side, dtype=torch.uint8, layout="HWC")
    top, left = (round((whole - part) / 2) for whole, part in zip((height, width), size, strict=True))
    assert np.array_equal(sample["jpg"].numpy(), pixels(file)[top : top + size[0], left : left + size[1]])


@pytest.mark.parametrize("kept", [0.1, 0.3, 0.6, 0.95])
def test_a_part_above_the_cut_of_a_jpeg_is_an_error_too(kept: float) -> None:
    file = encoded(photograph(), quality=90)
    pipe = tdr.IterableWrapper([{"__key__": "a", "jpg": file[: int(kept * len(file))]}])
    with pytest.raises(DecodeError, match="truncated"):
        list(pipe.decode_image((10, 100), crop="center", resize=188))


Box = tuple[int, int, int, int]


def boxes_of(image: Image.Image, keys: Iterable[int], **options: Any) -> Iterator[Box]:
    """Top, left, height and width of random crops of at least 8 pixels, of an image whose colours are places."""
    data = encoded(image, "PPM")
    pipe = tdr.IterableWrapper([{"__key__": str(key), "png": data} for key in keys])
    for sample in pipe.decode_image(8, flip=0, dtype=torch.uint8, seed=1, **options):
        found = []
        for second, seventh in (sample["png"][0, [1, 6], 0], sample["png"][1, 0, [1, 6]]):
            length = round((int(seventh) - int(second)) / 4 * 8 / 5)
            found.append((round(int(second) / 4 - 1.5 * length / 8 + 0.5), length))
        yield found[0][0], found[1][0], found[0][1], found[1][1]


def places(height: int, width: int) -> Image.Image:
    down, right = np.mgrid[:height, :width].astype(np.uint8) * 4
    return Image.fromarray(np.stack([down, right, right], axis=-1))


def box_of_torchvision(height: int, width: int) -> Box:
    """``RandomResizedCrop.get_params`` of torchvision 0.28 with its usual scale and ratio."""
    area, log_ratio = height * width, torch.log(torch.tensor((3 / 4, 4 / 3)))
    for _ in range(10):
        target_area = area * torch.empty(1).uniform_(0.08, 1.0).item()
        aspect_ratio = torch.exp(torch.empty(1).uniform_(float(log_ratio[0]), float(log_ratio[1]))).item()
        w, h = round(math.sqrt(target_area * aspect_ratio)), round(math.sqrt(target_area / aspect_ratio))
        if 0 < w <= width and 0 < h <= height:
            top, left = (int(torch.randint(0, most + 1, size=(1,)).item()) for most in (height - h, width - w))
            return top, left, h, w
    w, h = width, height
    if width / height < 3 / 4:
        h = round(width / (3 / 4))
    elif width / height > 4 / 3:
        w = round(height * 4 / 3)
    return (height - h) // 2, (width - w) // 2, h, w


def features(boxes: Pixels) -> list[Pixels]:
    """Area, aspect ratio, and place of boxes, each sorted."""
    top, left, height, width = boxes.T
    found = [height * width, np.log(width / height), top, top + height / 2, left, left + width]
    return [np.sort(feature) for feature in found]


@pytest.mark.parametrize("shape", [(48, 63), (63, 25), (16, 63)], ids=["photo", "tall", "fallback"])
def test_random_crops_have_the_distribution_of_torchvision(shape: tuple[int, int]) -> None:
    """Kolmogorov-Smirnov distance of area, aspect ratio and position below the limit for p = 0.001, of fixed seeds."""
    count, image = 1_500, places(*shape)
    torch.manual_seed(0)
    ours = np.array(list(boxes_of(image, range(count))))
    theirs = np.array([box_of_torchvision(*shape) for _ in range(count)])
    for column, (one, other) in enumerate(zip(features(ours), features(theirs), strict=True)):
        at = np.concatenate([one, other])
        distance = np.abs(np.searchsorted(one, at, "right") - np.searchsorted(other, at, "right")).max() / count
        assert distance < 1.95 * math.sqrt(2 / count), column


@given(
    shape=st.tuples(st.integers(16, 63), st.integers(16, 63)),
    scale=st.tuples(st.floats(0.5, 1), st.floats(0.5, 1)).map(sorted),
    ratio=st.tuples(st.floats(0.5, 2), st.floats(0.5, 2)).map(sorted),
    key=st.integers(0, 1 << 40),
)
def test_a_random_crop_is_inside_the_image(shape: tuple[int, int], scale: Any, ratio: Any, key: int) -> None:
    """Of any image, scale and ratio."""
    ((top, left, height, width),) = boxes_of(places(*shape), [key], scale=scale, ratio=ratio)
    assert 0 <= top <= top + height <= shape[0]
    assert 0 <= left <= left + width <= shape[1]
    few = shape[0] % 9 + 1, shape[1] % 9 + 1  # pixels have crops, too
    (sample,) = tdr.IterableWrapper([{"__key__": str(key), "png": encoded(places(*few), "PPM")}]).decode_image(4)
    assert sample["png"].shape == (3, 4, 4)


# Encoders

EXTENSIONS = {
    "jpg": "JPEG",
    "jpeg": "JPEG",
    "png": "PNG",
    "webp": "WEBP",
    "bmp": "BMP",
    "gif": "GIF",
    "tif": "TIFF",
    "tiff": "TIFF",
    "ppm": "PPM",
    "pgm": "PPM",
    "avif": "AVIF",
    "mask.png": "PNG",
}


@pytest.mark.parametrize("extension", EXTENSIONS)
def test_the_extension_names_the_format_of_an_image(extension: str, tmp_path: Path) -> None:
    """The last part of it does; the same image gives the same bytes; decoders know what was written."""
    image = Image.fromarray(np.tile(np.linspace(0, 255, 32, dtype=np.uint8), (32, 1)))
    data = encode_member(extension, image)
    assert Image.open(io.BytesIO(data)).format == EXTENSIONS[extension]
    assert encode_member(extension, image.copy()) == data
    with tdr.ShardWriter(f"{tmp_path}/{{shard}}.tar") as writer:
        writer.write({"__key__": "a", extension: image})
    (sample,) = tdr.stream_shards(str(tmp_path)).decode_sample()
    difference = np.abs(np.asarray(sample[extension])[..., 0].astype(int) - np.asarray(image)).max()
    assert difference <= (4 if EXTENSIONS[extension] in ("JPEG", "AVIF") else 0)


@given(
    hnp.arrays(np.uint8, st.tuples(st.integers(1, 8), st.integers(1, 8), st.just(3))),
    st.sampled_from(["png", "webp", "bmp", "tif", "tiff", "ppm", "seg.png"]),
)
def test_an_image_is_read_back_equal(colours: Pixels, extension: str) -> None:
    """Every pixel, in every format that promises it."""
    assert np.array_equal(pixels(encode_member(extension, Image.fromarray(colours))), colours)


@pytest.mark.parametrize("extension", ["png", "webp", "tif"])
def test_the_colour_of_a_transparent_pixel_is_written(extension: str) -> None:
    """Decoding drops alpha, so that this colour is what training sees: no encoder may blacken it."""
    image = Image.new("RGBA", (4, 4), (200, 100, 50, 0))
    assert pixels(encode_member(extension, image))[0, 0].tolist() == [200, 100, 50]


def test_the_cause_of_a_failed_encoding_is_kept() -> None:
    with pytest.raises(EncodeError, match="RGBA") as caught:
        encode_member("jpg", Image.new("RGBA", (1, 1)))
    assert isinstance(caught.value.__cause__, OSError)


def test_samples_are_written_and_shuffled_while_another_thread_imports_pil(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A value is no image before Pillow is imported, nor while it is."""
    monkeypatch.setitem(sys.modules, "PIL.Image", type(threading)("PIL.Image"))  # as its first line leaves it
    samples = [{"__key__": f"{number}", "txt": b"a"} for number in range(3)]
    assert list(tdr.IterableWrapper(samples).shuffle_samples(buffer_size=1, seed=0)) == samples
    with tdr.ShardWriter(f"{tmp_path}/{{shard}}.tar") as writer:
        for sample in samples:
            writer.write({**sample, "ppm": b"P"})
