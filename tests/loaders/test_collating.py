"""Samples of which torch's default ``collate_fn`` makes no batch, and labels that nobody decoded."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

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

Loaded = Callable[..., Any]
LOADERS: dict[str, Loaded] = {
    "DataLoader": lambda pipe, **options: DataLoader(pipe, **{"batch_size": 2, **options}),
    "Resumable": lambda pipe, **options: DataLoader(tdr.Resumable(pipe), **{"batch_size": 2, **options}),
    "stateful_loader": lambda pipe, **options: tdr.stateful_loader(pipe, **{"batch_size": 2, **options}),
    "thread_loader": lambda pipe, **options: tdr.thread_loader(pipe, **{"batch_size": 2, **options}),
}


def samples() -> Any:
    return IterableWrapper([SAMPLE] * 4).sharding_filter_rank()


def to_tensor(item: Any) -> Any:
    return torch.tensor(item[1])


def own_collate(batch: list[Any]) -> int:
    return len(batch)


def in_json(data: bytes) -> Any:
    return {"image": IMAGE}


TOLD = r"sample 'cat/0' of s3://b/0.tar: 'png' is a PIL image.*\.map\(function\).*collate_fn"
NAMED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "tuple": (lambda pipe: pipe.decode_sample().to_tuple("png", "cls"), TOLD),
    "sample": (lambda pipe: pipe.decode_sample(), TOLD),
    "file": (
        lambda pipe: pipe.decode_sample({"png": io.BytesIO}).to_tuple("png", "cls"),
        r"'png' is a BytesIO, .*Read it in the chain: \.decode_sample\(",
    ),
    "inside a member": (
        lambda pipe: pipe.decode_sample({"png": in_json}).to_tuple("cls", "png"),
        r"sample 'cat/0' .*'image' of 'png' is a PIL image",
    ),
    "behind a shuffle": (lambda pipe: pipe.decode_sample().shuffle_samples(buffer_size=2), "'png' is a PIL image"),
    "tuple behind a shuffle": (
        lambda pipe: pipe.decode_sample().to_tuple("png", "cls").shuffle_samples(buffer_size=2),
        "element 0 is a PIL image",
    ),
}


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("loader", LOADERS)
def test_what_torch_makes_no_batch_of_is_named_with_its_sample_and_what_to_add(loader: str, name: str) -> None:
    """Before torch's TypeError."""
    chain, told = NAMED[name]
    with pytest.raises(CollateError, match=told):
        next(iter(LOADERS[loader](chain(samples()))))


def first(batch: list[Any]) -> Any:
    return batch[0]


@pytest.mark.parametrize("loader", LOADERS)
def test_what_a_shuffle_reads_ahead_is_no_batch(loader: str) -> None:
    """A later pipe converts the images that are read when the buffer is filled."""
    pipe = samples().decode_sample().to_tuple("png", "cls").shuffle_samples(buffer_size=2).map(to_tensor)
    assert next(iter(LOADERS[loader](pipe))).tolist() == [3, 3]
    if loader == "stateful_loader":  # which fills the buffers of several streams before it asks the chain for samples
        assert next(iter(LOADERS[loader](pipe, num_streams=2))).tolist() == [3, 3]


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("shuffle", [True, False])
def test_samples_that_nobody_decoded_are_a_warning(loader: str, shuffle: bool, tmp_path: Path) -> None:
    """With neither ``decode_sample`` nor ``to_tuple``; once."""
    tdr.testing.write_small_shards(str(tmp_path), num_shards=1, samples_per_shard=4)
    pipe = tdr.stream_shards(str(tmp_path), shuffle=shuffle)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert len(list(LOADERS[loader](pipe))) == 2
    (told,) = [str(warning.message) for warning in caught if issubclass(warning.category, RuntimeWarning)]
    assert re.search(r"sample '.*' of .*\.tar: 'cls' is b'\d+', bytes .* decode_sample\(\)", told)


@pytest.mark.parametrize("loader", LOADERS)
def test_other_chains_are_left_alone(loader: str) -> None:
    """No false alarm: later pipes, another ``collate_fn``, single items, undecoded members without a label."""
    load = LOADERS[loader]
    images, undecoded = samples().decode_sample().to_tuple("png", "cls"), samples().to_tuple("png", "cls")
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        assert next(iter(load(images.map(to_tensor)))).tolist() == [3, 3]
        assert next(iter(load(undecoded.map(len)))).tolist() == [2, 2]
        for pipe in (images, undecoded):
            assert next(iter(load(pipe, collate_fn=own_collate))) == 2
            assert len(next(iter(load(pipe, batch_size=None)))) == 2
            assert len(next(iter(pipe))) == 2
        assert len(next(iter(load(samples().to_tuple("png"))))[0]) == 2


def test_a_collate_function_that_was_registered_for_images_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's map of types can be extended."""
    monkeypatch.setitem(default_collate_fn_map, Image.Image, lambda batch, *, collate_fn_map=None: len(batch))
    pipe = samples().decode_sample().to_tuple("png")
    assert [next(iter(load(pipe)))[0] for load in LOADERS.values()] == [2] * 4


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
    with pytest.raises(CollateError, match=r"element 0 is .* to_tuple\(\.\.\., '__key__', '__url__'\)"):
        list(load(samples.to_tuple("npy"), batch_size=3))


@pytest.mark.parametrize("dtype", ["<U1", "M8[s]"])
@pytest.mark.parametrize("count", [1, 2])
def test_a_dtype_that_torch_has_not_is_named(dtype: str, count: int) -> None:
    """Of one sample, which is not compared with itself."""
    samples = keyed(*[np.zeros(2, dtype)] * count).sharding_filter_rank()
    named = rf"'npy' is a ndarray of {re.escape(str(np.dtype(dtype)))}, shape \(2,\), of which torch's"
    with pytest.raises(
        CollateError, match=rf"sample 'cat/0' of s3://b/0\.tar: {named} .* to one dtype that torch takes"
    ):
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
