"""Samples of which torch's default ``collate_fn`` makes no batch are named by our loaders."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any

import fsspec
import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torch.utils.data._utils.collate import default_collate_fn_map
from torch.utils.data.datapipes.iter import IterableWrapper

import torchdata_remote as tdr
from torchdata_remote.errors import CollateError

IMAGE = Image.new("RGB", (2, 2))
PNG = io.BytesIO()
IMAGE.save(PNG, "png")
SAMPLE = {"__key__": "cat/0", "__url__": "s3://b/0.tar", "png": PNG.getvalue(), "cls": b"3"}

LOADERS: dict[str, Callable[..., Any]] = {
    "stateful_loader": lambda pipe: tdr.stateful_loader(pipe, batch_size=2),
    "thread_loader": lambda pipe: tdr.thread_loader(pipe, batch_size=2),
}


def samples() -> Any:
    return IterableWrapper([SAMPLE] * 4).sharding_filter_rank()


def in_json(data: bytes) -> Any:
    return {"image": IMAGE}


def nested(sample: Any) -> Any:
    return {"a": {"im": sample["png"]}, "cls": sample["cls"]}


def listed(sample: Any) -> Any:
    return [sample["cls"], [sample["png"]]]


NAMED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "sample": (
        lambda pipe: pipe.decode_sample(),
        r"sample 'cat/0' of s3://b/0.tar: 'png' is an Image.*\.map\(function\).*collate_fn",
    ),
    "tuple": (
        lambda pipe: pipe.decode_sample().to_tuple("png", "cls"),
        r"a sample \(to_tuple\(\.\.\., '__key__', '__url__'\) would name it\): element 0 is an Image",
    ),
    "file": (lambda pipe: pipe.decode_sample({"png": io.BytesIO}), r"'png' is a BytesIO, .*decode_sample\("),
    "inside a member": (lambda pipe: pipe.decode_sample({"png": in_json}), "'image' of 'png' is an Image"),
    "nested": (lambda pipe: pipe.decode_sample().map(nested), "'im' of 'a' is an Image"),
    "listed": (lambda pipe: pipe.decode_sample().map(listed), "element 0 of element 1 is an Image"),
}


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("loader", LOADERS)
def test_what_torch_makes_no_batch_of_is_named_with_its_sample_and_what_to_add(loader: str, name: str) -> None:
    chain, told = NAMED[name]
    with pytest.raises(CollateError, match=told):
        next(iter(LOADERS[loader](chain(samples()))))


def test_an_image_of_a_map_style_dataset_is_named() -> None:
    """Says ``transform=``."""
    fsspec.filesystem("memory").pipe({f"/collated/{name}/0.png": PNG.getvalue() for name in "ab"})
    images = tdr.RemoteImageFolder("memory://collated/")
    with pytest.raises(CollateError, match=r"element 0 is an Image.*transform="):
        next(iter(tdr.PrefetchingLoader(images, batch_size=2)))
    assert next(kind for kind, _ in DataLoader(images, batch_size=None)).mode == "RGB"


def test_a_collate_function_that_was_registered_for_images_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's map of types can be extended."""
    monkeypatch.setitem(default_collate_fn_map, Image.Image, lambda batch, *, collate_fn_map=None: len(batch))
    pipe = samples().decode_sample().to_tuple("png")
    assert [next(iter(load(pipe)))[0] for load in LOADERS.values()] == [2] * 2


def keyed(*values: Any) -> Any:
    return IterableWrapper(
        [{"__key__": f"cat/{at}", "__url__": "s3://b/0.tar", "npy": one} for at, one in enumerate(values)]
    )


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([np.zeros(2, "u2")] * 2 + [np.zeros(2, "u4")], "a ndarray of uint32, shape (2,), and a ndarray of uint16"),
        ([torch.zeros(2)] * 2 + [torch.zeros(3)], "a Tensor of torch.float32, shape (3,), and a Tensor of"),
        ([1, 1, None], "None, and 1 (int)"),
        ([1, 1, "one"], "'one' (str), and 1 (int)"),
    ],
    ids=["dtypes", "shapes", "null", "text"],
)
@pytest.mark.parametrize("load", [tdr.stateful_loader, tdr.thread_loader])
def test_samples_that_are_unlike_are_named(load: Any, values: list[Any], told: str) -> None:
    """Member, key and shard of both; of tuples, the element, with the keys that are in them, or how to have them."""
    samples = keyed(*values).sharding_filter_rank()
    expected = f"sample 'cat/2' of s3://b/0.tar: 'npy' is {told}"
    with pytest.raises(CollateError, match=f"{re.escape(expected)}.* in sample 'cat/0' of s3://b/0.tar"):
        list(load(samples, batch_size=3))
    expected = f"'cat/2': element 0 is {told}"
    with pytest.raises(CollateError, match=f"{re.escape(expected)}.* in a sample with 'cat/0', of which"):
        list(load(samples.to_tuple("npy", "__key__"), batch_size=3))
    with pytest.raises(CollateError, match=r"element 0 is .* \(to_tuple\(\.\.\., '__key__', '__url__'\)"):
        list(load(samples.to_tuple("npy"), batch_size=3))


@pytest.mark.parametrize("dtype", ["<U1", "M8[s]"])
@pytest.mark.parametrize("count", [1, 2])
def test_a_dtype_that_torch_has_not_is_named(dtype: str, count: int) -> None:
    """Of one sample, which is not compared with itself."""
    samples = keyed(*[np.zeros(2, dtype)] * count).sharding_filter_rank()
    named = rf"'npy' is a ndarray of {re.escape(str(np.dtype(dtype)))}, shape \(2,\), of which torch's"
    with pytest.raises(CollateError, match=rf"sample 'cat/0' of s3://b/0\.tar: {named} .* to a tensor of one dtype"):
        list(tdr.stateful_loader(samples, batch_size=count))


@pytest.mark.parametrize(
    ("items", "told"),
    [
        ([{"a": 1}, {"b": 1}], "a sample: 'a' is missing, and 1 (int) in a sample"),
        ([{"a": [1]}, {"a": [1, 2]}], "a sample: element 1 of 'a' is 2 (int), and missing in a sample"),
        ([{"a": 1, "b": [1, 2]}, {"a": 1, "c": 3, "b": [1]}], "a sample: element 1 of 'b' is missing, and 2 (int)"),
    ],
)
def test_what_a_sample_lacks_is_named(items: list[Any], told: str) -> None:
    """Members that torch leaves out, since the first sample has none, are not."""
    with pytest.raises(CollateError, match=re.escape(told)):
        next(iter(tdr.stateful_loader(IterableWrapper(items).sharding_filter_rank(), batch_size=2)))
