"""``decode_image``: what it hands out, in which order, at which place of memory, and how it fails."""

from __future__ import annotations

import io
import pickle
import random
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data.datapipes.iter import IterableWrapper

import torchdata_remote as tdr
from torchdata_remote import DecodeImage
from torchdata_remote.core.frameworks.batch_rows import BatchRows
from torchdata_remote.core.frameworks.collating import LoaderCollate, collate_samples
from torchdata_remote.errors import DecodeError, MissingMemberError, SampleError
from torchdata_remote.testing import assert_resumes_everywhere

from ..support.photographs import encoded, photograph

COUNT = 7
FILE = encoded(photograph(60, 40), quality=90)
SAMPLES = [
    {"__key__": f"cat/{at}", "__url__": "s3://b/0.tar", "jpg": FILE, "cls": str(at).encode()} for at in range(COUNT)
]


def source(samples: list[Any] | None = None) -> Any:
    return IterableWrapper(SAMPLES if samples is None else samples)


def images(pipe: Any) -> dict[str, bytes]:
    return {sample["__key__"]: sample["jpg"].numpy().tobytes() for sample in pipe}


def chain(url: str, **options: Any) -> Any:
    pipe = tdr.stream_shards(url, seed=0).decode_image(16, dtype=torch.uint8, seed=5, **options)
    return pipe.decode_sample().to_tuple("__key__", "jpg", "cls")


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("shards")
    with tdr.ShardWriter(f"{folder}/{{shard}}.tar", max_shard_samples=3) as writer:
        for at in range(12):
            writer.write({"__key__": f"cat/{at}", "jpg": encoded(photograph(30 + at, 24)), "cls": at})
    return str(folder)


def test_the_image_becomes_a_tensor_and_other_members_stay() -> None:
    """Under the name that it had."""
    (sample, *_) = DecodeImage(source(), (20, 30))
    assert sample.keys() == SAMPLES[0].keys()
    assert (sample["jpg"].shape, sample["jpg"].dtype) == ((3, 20, 30), torch.float32)
    assert sample["cls"] == b"0"
    assert SAMPLES[0]["jpg"] is FILE
    assert -2.2 < sample["jpg"].min() < sample["jpg"].max() < 2.7


def test_the_first_member_that_the_sample_has_is_decoded() -> None:
    """Others are left to other pipes."""
    png = encoded(photograph(20, 20), "PNG")
    samples = [{"__key__": "1", "png": png, "seg.png": png}, {"__key__": "2", "jpg": FILE, "png": png}]
    first, second = DecodeImage(source(samples), 8)
    assert isinstance(first["png"], torch.Tensor)
    assert first["seg.png"] == png
    assert isinstance(second["jpg"], torch.Tensor)
    assert second["png"] == png
    (both, _) = DecodeImage(source(samples), 8).decode_image(4, members="seg.png;jpg.none;png", crop=None)
    assert both["seg.png"].shape == (3, 4, 4)


@pytest.mark.parametrize("num_threads", [0, 1, 3])
def test_crops_depend_on_seed_epoch_and_key_only(num_threads: int) -> None:
    """Not on order, number of threads, other samples or random states."""
    expected = images(DecodeImage(source(), 16, dtype=torch.uint8, seed=1))
    shuffled = random.Random(0).sample(SAMPLES, 5)
    torch.manual_seed(num_threads)
    got = images(DecodeImage(source(shuffled), 16, dtype=torch.uint8, seed=1, num_threads=num_threads))
    assert got == {key: expected[key] for key in got}
    assert len(set(expected.values())) == COUNT
    other = images(DecodeImage(source(), 16, dtype=torch.uint8, seed=2))
    assert all(other[key] != expected[key] for key in other)


def test_each_epoch_has_other_crops() -> None:
    """They are the same whenever the epoch is read."""
    pipe = DecodeImage(source(), 16, dtype=torch.uint8)
    first, second = images(pipe), images(pipe)
    assert not set(first.values()) & set(second.values())
    pipe.set_epoch(0)
    assert images(pipe) == first
    chained = DecodeImage(source(), 16, dtype=torch.uint8).decode_sample()
    chained.set_epoch(1)
    assert images(chained) == second


def as_bytes(item: Any) -> Any:
    return (item[0], item[1].numpy().tobytes(), item[2])


@pytest.mark.parametrize("options", [{}, {"num_threads": 2}])
def test_it_resumes_after_each_sample(options: dict[str, Any], shards: str) -> None:
    """With the crops that a run without a stop has."""
    assert_resumes_everywhere(lambda: chain(shards, **options).map(as_bytes))


def read(url: str, num_workers: int = 0, *, num_streams: int = 1, skip: int = 0, **options: Any) -> dict[str, bytes]:
    """The images of epoch 1, over all batches; after ``skip`` of them, from a state."""
    loader = tdr.stateful_loader(
        chain(url, **options), batch_size=2, num_workers=num_workers, num_streams=max(num_streams, num_workers)
    )
    loader.set_epoch(1)
    found: dict[str, bytes] = {}
    batches = iter(loader)
    for _ in range(skip):
        keys, made, _ = next(batches)
        found.update(zip(keys, (one.numpy().tobytes() for one in made), strict=True))
    if skip:
        state = loader.state_dict()
        loader = tdr.stateful_loader(chain(url, num_threads=2), batch_size=2, num_streams=max(num_streams, num_workers))
        loader.load_state_dict(state)
        batches = iter(loader)
    for keys, made, _ in batches:
        found.update(zip(keys, (one.numpy().tobytes() for one in made), strict=True))
    return found


def test_crops_are_the_same_in_every_world(shards: str) -> None:
    """With any number of streams, threads, and after a resume with another one."""
    expected = read(shards)
    assert len(expected) == 12
    assert read(shards, num_streams=2, num_threads=2) == expected
    assert read(shards, skip=3) == expected
    assert read(shards, num_streams=3, skip=2) == expected


@pytest.mark.system
def test_crops_are_the_same_in_workers(shards: str) -> None:
    """Of ``stateful_loader``, whatever their number."""
    assert read(shards, num_workers=2) == read(shards)


@pytest.mark.parametrize("num_threads", [0, 2])
@pytest.mark.parametrize("memory", ["process", "shared"])
def test_images_are_written_where_the_batch_is(num_threads: int, memory: Any) -> None:
    """By the hook of loaders: no image of a batch is copied but the last one."""
    pipe = DecodeImage(source(), 16, num_threads=num_threads)
    pipe.use_rows(BatchRows(3, memory))
    samples = list(pipe)
    expected = {sample["__key__"]: sample["jpg"] for sample in DecodeImage(source(), 16)}
    for _ in range(2):
        part, samples = samples[:3], samples[3:]
        begin = part[0]["jpg"].data_ptr()
        batch = LoaderCollate(collate_samples)(part)
        assert batch["jpg"].data_ptr() == begin
        for image, key in zip(batch["jpg"], batch["__key__"], strict=True):
            assert torch.equal(image, expected[key])


@pytest.mark.parametrize("num_threads", [0, 2])
def test_a_damaged_image_is_named_in_its_place(num_threads: int) -> None:
    """Member, sample and shard, after the images before it; the cause is the decoder's error."""
    damaged = [*SAMPLES[:2], {**SAMPLES[2], "jpg": FILE[: len(FILE) // 2]}, *SAMPLES[3:]]
    found = iter(DecodeImage(source(damaged), 16, num_threads=num_threads))
    assert [next(found)["__key__"], next(found)["__key__"]] == ["cat/0", "cat/1"]
    told = rf"sample 'cat/2' of s3://b/0.tar: the {len(FILE) // 2:,} bytes of 'jpg' cannot be decoded: OSError: .*trunc"
    with pytest.raises(DecodeError, match=told) as caught:
        next(found)
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.url == "s3://b/0.tar"


def test_a_member_that_is_not_encoded_is_an_error() -> None:
    """It says where the pipe belongs."""
    with pytest.raises(DecodeError, match=r"'jpg' cannot be decoded: TypeError: .*an Image\. Chain .* before decode_"):
        list(DecodeImage(source().decode_sample(), 16))


def test_a_sample_without_an_image_is_an_error() -> None:
    """It names what was asked for, what there is, and the option."""
    told = r"sample '1' of an unknown shard has no 'jpg' or 'png'. It has \['cls', 'gif'\]. .*members="
    with pytest.raises(MissingMemberError, match=told):
        list(DecodeImage(source([{"__key__": "1", "gif": b"", "cls": 1}]), 16, members="jpg; png"))
    with pytest.raises(SampleError, match=r"decode_image: expected samples, .* got a tuple"):
        list(DecodeImage(source([("a", 1)]), 16))


def test_it_pickles_with_its_options() -> None:
    """For workers that are spawned."""
    pipe = DecodeImage(source(), 16, dtype=torch.bfloat16, layout="HWC", num_threads=2)
    pipe.use_rows(BatchRows(4))
    copied = pickle.loads(pickle.dumps(pipe))
    for one, other in zip(pipe, copied, strict=True):
        assert torch.equal(one["jpg"], other["jpg"])


def test_members_of_a_memory_map_are_decoded() -> None:
    """Readers of local files hand out views of large members."""
    file = encoded(photograph(64, 64), "BMP")
    samples = [{"__key__": "1", "jpg": memoryview(file)}]
    (mapped,) = DecodeImage(IterableWrapper(samples, deepcopy=False), 64, crop=None, mean=0, std=1)
    expected = np.asarray(Image.open(io.BytesIO(file))) / 255
    assert np.abs(mapped["jpg"].permute(1, 2, 0).numpy() - expected).max() < 1e-6
