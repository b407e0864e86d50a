from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
import pytest
from PIL import Image
from torch.utils.data.datapipes.iter import IterableWrapper

from torchdata_remote import DecodeSample
from torchdata_remote.errors import DecodeError
from torchdata_remote.formats.encoders import encode_member
from torchdata_remote.testing import assert_resumes_everywhere, write_small_shards

Sample = dict[str, Any]
HEAD: Sample = {"__key__": "train/1", "__url__": "s3://b/t-000.tar"}


def _decode(sample: Sample, decoders: Any = None) -> Sample:
    (got,) = DecodeSample(IterableWrapper([{**HEAD, **sample}], deepcopy=False), decoders)
    assert got["__key__"] == "train/1"
    assert got["__url__"] == "s3://b/t-000.tar"
    return {name: value for name, value in got.items() if name not in HEAD}


def _error(sample: Sample, decoders: Any = None) -> DecodeError:
    with pytest.raises(DecodeError) as caught:
        list(DecodeSample(IterableWrapper([{**HEAD, **sample}]), decoders))
    return caught.value


def _saved(image: Image.Image, image_format: str) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=image_format)
    return buffer.getvalue()


def test_default_decoders_decode_common_extensions() -> None:
    """Integers, JSON, text and arrays by their extension."""
    got = _decode(
        {"cls": b"3\n", "json": b'{"a": [1]}', "txt": "é".encode(), "npy": encode_member("npy", np.arange(3))}
    )
    assert (got["cls"], got["json"], got["txt"]) == (3, {"a": [1]}, "é")
    assert got["npy"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("extension", "mode"),
    [
        ("jpg", "RGB"),
        ("jpeg", "L"),
        ("jpg", "CMYK"),
        ("png", "L"),
        ("png", "1"),
        ("png", "P"),
        ("png", "LA"),
        ("png", "RGBA"),
        ("png", "I;16"),
        ("webp", "RGBA"),
        ("bmp", "P"),
        ("gif", "P"),
        ("tif", "CMYK"),
        ("tiff", "I;16"),
        ("ppm", "RGB"),
        ("pgm", "L"),
    ],
)
def test_every_image_becomes_8_bit_rgb(extension: str, mode: str) -> None:
    """So a batch has one shape."""
    # A palette without colours is written by some versions of Pillow in a way that they cannot read.
    stored = Image.new("RGB", (4, 2), "orange").convert("P") if mode == "P" else Image.new(mode, (4, 2))
    data = encode_member(extension, stored)
    image = _decode({extension: data})[extension]
    assert isinstance(image, Image.Image)
    assert (image.mode, image.size) == ("RGB", (4, 2))
    assert np.asarray(image).shape == (2, 4, 3)


def test_image_format_is_detected_by_content() -> None:
    """ImageNet has a PNG among its JPEGs."""
    assert _decode({"jpg": _saved(Image.new("RGB", (1, 1)), "PNG")})["jpg"].mode == "RGB"


def test_decoder_of_the_complete_extension_takes_precedence() -> None:
    """``seg.png`` is an image, unless it has a decoder of its own."""
    png = encode_member("png", Image.new("L", (1, 1)))
    assert _decode({"seg.png": png})["seg.png"].mode == "RGB"
    assert _decode({"seg.png": png, "png": png}, {"seg.png": len})["seg.png"] == len(png)
    assert _decode({"a.b.cls": b"3", "cls.bin": b"3"}) == {"a.b.cls": 3, "cls.bin": b"3"}


def test_decoders_argument_overrides_the_defaults() -> None:
    """Theirs for the extensions that they name, the defaults for the rest; ``bytes`` leaves a member undecoded."""
    assert _decode({"cls": b"3", "txt": b"a", "bin": b"12"}, {"cls": float, "bin": len, "txt": bytes}) == {
        "cls": 3.0,
        "bin": 2,
        "txt": b"a",
    }


def test_unknown_extensions_and_decoded_values_are_unchanged() -> None:
    """An extension without a decoder, and what was decoded before; a view of bytes is decoded too."""
    assert _decode({"xyz": b"1", "cls": 3, "txt": "a", "json": None}) == {
        "xyz": b"1",
        "cls": 3,
        "txt": "a",
        "json": None,
    }
    assert _decode({"cls": memoryview(b"3")}) == {"cls": 3}


def test_source_sample_is_not_modified() -> None:
    """The decoded sample is a new dict."""
    source = {**HEAD, "cls": b"3"}
    (got,) = IterableWrapper([source], deepcopy=False).decode_sample()
    assert got == {**HEAD, "cls": 3}
    assert source["cls"] == b"3"


@pytest.mark.parametrize(
    "sample",
    [
        {"jpg": b"no image"},
        {"jpg": b""},
        {"png": encode_member("png", Image.effect_noise((20, 20), 9))[:200]},
        {"cls": b"cat"},
        {"json": b"{"},
        {"txt": b"\xff"},
        {"npy": b"x"},
        {"seg.png": b"x"},
    ],
)
def test_decode_error_names_member_sample_and_shard(sample: Sample) -> None:
    """The error of the decoder is its cause."""
    error = _error(sample)
    name, value = next(iter(sample.items()))
    for part in (repr(name), "'train/1'", "s3://b/t-000.tar", f"{len(value)} bytes"):
        assert part in str(error)
    assert error.url == "s3://b/t-000.tar"
    assert error.__cause__ is not None
    assert type(error.__cause__).__name__ in str(error)


class _Trap:
    def __reduce__(self) -> tuple[Any, ...]:
        return pytest.fail, ("unpickled",)


def test_array_that_requires_unpickling_is_an_error() -> None:
    """A shard cannot run code."""
    buffer = io.BytesIO()
    np.save(buffer, np.array([_Trap()], dtype=object), allow_pickle=True)
    assert "allow_pickle" in str(_error({"npy": buffer.getvalue()}))


def _stop(data: bytes) -> None:
    raise StopIteration


def _missing(data: bytes) -> None:
    raise KeyError("field")


@pytest.mark.parametrize("decoder", [_stop, _missing])
def test_an_error_of_the_users_decoder_is_a_decode_error(decoder: Any) -> None:
    """Of any type; a ``StopIteration`` does not end the epoch early."""
    error = _error({"bin": b"1"}, {"bin": decoder})
    assert "'bin'" in str(error)
    assert isinstance(error.__cause__, StopIteration | KeyError)


def test_errors_show_no_url_signature() -> None:
    """The shard is named without the query of its signed URL."""
    error = _error({"__url__": "https://host/0.tar?X-Amz-Signature=SECRET", "cls": b"x"})
    assert "https://host/0.tar" in str(error)
    assert "SECRET" not in f"{error} {error.url}"


def test_pipe_pickles_before_and_after_a_pass() -> None:
    """With the defaults and functions of modules."""
    pipe = DecodeSample(IterableWrapper([{**HEAD, "cls": b"3", "bin": b"12"}]), {"bin": len})
    expected = [{**HEAD, "cls": 3, "bin": 2}]
    assert list(pickle.loads(pickle.dumps(pipe))) == expected
    assert list(pipe) == expected
    assert list(pickle.loads(pickle.dumps(pipe))) == expected


def test_it_resumes_after_any_sample(memory_folder: str) -> None:
    """Its state is that of the reader before it, whether members were copied or not."""
    samples = write_small_shards(memory_folder, num_shards=2, samples_per_shard=4)
    urls = sorted({sample["__url__"] for sample in samples})
    for copy in (True, False):
        assert_resumes_everywhere(
            lambda copy=copy: IterableWrapper(urls).shard_tar_reader(copy=copy).decode_sample()  # type: ignore[misc]
        )
