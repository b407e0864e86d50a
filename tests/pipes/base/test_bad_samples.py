"""Samples for which a function fails: raised, or skipped, counted and said, with an exact position."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import torchdata_remote as tdr
from tests.support.archive_bytes import pack_tar
from tests.support.memory_objects import put
from torchdata_remote.errors import DecodeError, MissingMemberError, ObjectNotFoundError, SampleError
from torchdata_remote.testing import assert_resumes_everywhere, write_small_shards

NUM_SAMPLES = 12
FOLDER = "memory://imperfect/"
KEYS = [sample["__key__"] for sample in write_small_shards(FOLDER, num_shards=4, samples_per_shard=3)]


def shards(**options: Any) -> Any:
    return tdr.stream_shards(FOLDER, **options)


class Fails:
    """A function of samples that fails for some keys."""

    def __init__(self, keys: Any) -> None:
        self.keys = set(keys)

    def __call__(self, sample: dict[str, Any]) -> str:
        if sample["__key__"] in self.keys:
            raise ValueError(f"damaged {sample['__key__']}")
        return str(sample["__key__"])


@contextmanager
def said() -> Iterator[list[str]]:
    found: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield found
    found += [str(warning.message) for warning in caught if "on_bad_sample" in str(warning.message)]


def skipping(keys: Any, num_threads: int | None = 0, **options: Any) -> Any:
    return shards(**options).parallel_map(Fails(keys), num_threads=num_threads, on_bad_sample=tdr.skip_with_warning)


@settings(max_examples=40, deadline=None)
@given(
    bad=st.sets(st.sampled_from(KEYS)),
    world_size=st.integers(1, 3),
    num_threads=st.sampled_from([0, 2]),
    stop=st.integers(0, NUM_SAMPLES),
)
def test_each_good_sample_comes_once_wherever_the_pass_is_stopped(
    bad: set[str], world_size: int, num_threads: int, stop: int
) -> None:
    found: list[str] = []
    skipped: set[tuple[str, str]] = set()
    for rank in range(world_size):
        pipes = [skipping(bad, num_threads, world=tdr.World(rank, world_size)) for _ in range(2)]
        first, resumed = (tdr.Resumable(pipe, num_streams=4) for pipe in pipes)
        with said():
            found += islice(first, stop)
        with said() as lines:
            resumed.load_state_dict(json.loads(json.dumps(first.state_dict())))
            found += resumed
        here = {**pipes[0].skipped.bad_samples, **pipes[1].skipped.bad_samples}
        assert len(lines) == bool(pipes[1].skipped.bad_samples)
        skipped |= here.keys()
    assert sorted(found) == sorted(set(KEYS) - bad)
    assert sorted(key for _, key in skipped) == sorted(bad)


@settings(max_examples=15, deadline=None)
@given(bad=st.sets(st.sampled_from(KEYS), max_size=9), num_threads=st.sampled_from([0, 2]))
def test_resumes_after_each_sample(bad: set[str], num_threads: int) -> None:
    with said():
        assert_resumes_everywhere(lambda: skipping(bad, num_threads, seed=1), num_streams=2)
        assert_resumes_everywhere(lambda: skipping(bad, num_threads, shuffle=False).batch(2))


@pytest.mark.parametrize("make_loader", [tdr.stateful_loader, tdr.thread_loader])
def test_batches_are_of_good_samples_in_every_stop(make_loader: Any) -> None:
    bad = {KEYS[0], KEYS[4], KEYS[5], KEYS[11]}

    def loader() -> Any:
        return make_loader(skipping(bad, num_threads=None, seed=2), batch_size=2, num_streams=2)

    with said():
        whole = [list(batch) for batch in loader()]
        assert sorted(key for batch in whole for key in batch) == sorted(set(KEYS) - bad)
        for stop in range(len(whole) + 1):
            begun, resumed = loader(), loader()
            head = [list(batch) for batch in islice(iter(begun), stop)]
            resumed.load_state_dict(begun.state_dict())
            assert head + [list(batch) for batch in resumed] == whole


@pytest.mark.system
def test_workers_skip_the_samples_of_their_shares(tmp_path: Any) -> None:
    write_small_shards(str(tmp_path), num_shards=4, samples_per_shard=3)
    pipe = tdr.stream_shards(str(tmp_path)).parallel_map(Fails(KEYS[:4]), on_bad_sample=tdr.skip_with_warning)
    loader = tdr.stateful_loader(pipe, batch_size=2, num_workers=2, num_streams=2)
    assert sorted(key for batch in loader for key in batch) == sorted(KEYS[4:])


def photo() -> bytes:
    Image.new("RGB", (8, 6), "red").save(file := io.BytesIO(), "JPEG")
    return file.getvalue()


IMAGES = [
    {"__key__": "good", "__url__": "s3://b/0.tar", "jpg": photo(), "cls": b"1"},
    {"__key__": "cut", "__url__": "s3://b/0.tar", "jpg": photo()[:200], "cls": b"2"},
    {"__key__": "other", "__url__": "https://b/1.tar?sig=1", "gif": b"", "cls": b"3"},
    {"__key__": "last", "__url__": "s3://b/1.tar", "jpg": photo(), "cls": b"4"},
]


@pytest.mark.parametrize("num_threads", [0, 2])
def test_an_image_that_does_not_decode_is_skipped_counted_and_said(num_threads: int) -> None:
    source = tdr.IterableWrapper(IMAGES)
    pipe = source.decode_image(4, num_threads=num_threads, on_bad_sample=tdr.skip_with_warning)
    for _ in range(2):
        with said() as lines:
            assert [sample["__key__"] for sample in pipe] == ["good", "last"]
        assert list(pipe.skipped.bad_samples) == [("s3://b/0.tar", "cut"), ("https://b/1.tar", "other")]
        assert pipe.skipped.bad_samples["s3://b/0.tar", "cut"].startswith("DecodeError: sample 'cut' of s3://b/0.tar")
        (line,) = lines
        assert line.startswith(
            "decode_image(on_bad_sample=) skipped 2 samples of this epoch in this process, whose pipe"
        )
        assert "The first one is 'cut' of s3://b/0.tar: DecodeError:" in line


def test_members_that_do_not_decode_are_counted_by_each_pipe_of_a_chain() -> None:
    samples = [*IMAGES[:2], {**IMAGES[3], "cls": b"no number"}]
    images = tdr.IterableWrapper(samples).decode_image(4, on_bad_sample=tdr.skip_with_warning)
    pipe = images.decode_sample(on_bad_sample=tdr.skip_with_warning).to_tuple("__key__")
    with said() as lines:
        assert list(pipe) == [("good",)]
    assert [key for _, key in pipe.skipped.bad_samples] == ["cut", "last"]
    assert len(lines) == 2


@pytest.mark.parametrize("num_threads", [0, 2])
def test_a_function_decides_in_the_order_of_the_samples(num_threads: int) -> None:
    """It may skip some and raise others; what it raises comes in the place of the sample."""
    errors: list[Exception] = []

    def decide(error: Exception) -> None:
        errors.append(error)
        if isinstance(error, MissingMemberError):
            raise RuntimeError("too many") from error

    samples = iter(tdr.IterableWrapper(IMAGES).decode_image(4, num_threads=num_threads, on_bad_sample=decide))
    assert next(samples)["__key__"] == "good"
    with pytest.raises(RuntimeError, match="too many"):
        next(samples)
    assert [type(error) for error in errors] == [DecodeError, MissingMemberError]


@pytest.mark.parametrize("read", [list, tdr.Resumable, tdr.thread_loader])
def test_skipped_members_and_samples_are_counted_whatever_reads_the_chain(read: Callable[..., Any]) -> None:
    """In the pipe that was given to the loader; anew in each pass."""
    url = put(pack_tar([("a.txt", b""), ("README", b""), ("b.txt", b""), ("c.txt", b"")]), "0.tar")
    source = tdr.stream_shards(url, on_bad_member=lambda error: None)
    pipe = source.parallel_map(Fails("b"), on_bad_sample=tdr.skip_with_warning)
    with said() as lines:
        for _ in range(2):
            assert len(list(read(pipe))) == 2
            assert [key for _, key in pipe.skipped.bad_samples] == ["b"]
            assert pipe.skipped.bad_members == {"it has no extension": 1}
    assert len(lines) == 2


@pytest.mark.parametrize("kind", [ImportError, MemoryError])
@pytest.mark.parametrize("num_threads", [0, 2])
def test_errors_of_the_machine_skip_no_sample(kind: type[Exception], num_threads: int) -> None:
    """A missing library, or a lack of memory, would skip all of them."""

    def fail(sample: Any) -> Any:
        raise kind("missing")

    policy: dict[str, Any] = {"num_threads": num_threads, "on_bad_sample": tdr.skip_with_warning}
    with pytest.raises(kind, match="missing"):
        list(shards().parallel_map(fail, **policy))
    with pytest.raises(DecodeError, match="missing"):
        list(shards().decode_sample({"txt": fail}, **policy))


def test_errors_of_a_store_skip_no_sample() -> None:
    def fetch(sample: dict[str, Any]) -> Any:
        raise ObjectNotFoundError("s3://b/x: no such object")

    with pytest.raises(ObjectNotFoundError):
        list(shards().parallel_map(fetch, on_bad_sample=tdr.skip_with_warning))


def test_what_has_no_key_cannot_be_skipped() -> None:
    chain = shards().to_tuple("cls").parallel_map(lambda item: 1 / 0, on_bad_sample=tdr.skip_with_warning)
    with pytest.raises(SampleError, match=r"parallel_map: expected samples, .* Put it before to_tuple\(\)") as caught:
        list(chain)
    assert isinstance(caught.value.__context__, ZeroDivisionError)


@pytest.mark.parametrize(
    "chain",
    [
        lambda source: source.equalize_ranks().decode_sample(on_bad_sample=tdr.skip_with_warning),
        lambda source: source.decode_sample(on_bad_sample=tdr.skip_with_warning).equalize_ranks(),
    ],
)
def test_ranks_that_are_promised_equal_numbers_do_not_wait_for_each_other(chain: Callable[..., Any]) -> None:
    source = tdr.stream_shards(f"{FOLDER}index.json")
    with pytest.raises(ValueError, match=r"decode_sample\(on_bad_sample=\) may skip .* repeat_epochs\(\) before and"):
        chain(source)


def test_ranks_have_equal_numbers_of_samples_without_end() -> None:
    for rank in range(2):
        endless = shards(world=tdr.World(rank, 2)).repeat_epochs()
        pipe = endless.parallel_map(Fails(KEYS[:3]), on_bad_sample=tdr.skip_with_warning).take(30)
        with said():
            assert len(list(tdr.Resumable(pipe))) == 15


def test_there_is_no_length_where_samples_may_be_skipped() -> None:
    source = tdr.IterableWrapper(IMAGES)
    assert len(source.decode_sample()) == len(IMAGES)
    with pytest.raises(TypeError, match=r"decode_sample\(on_bad_sample=\) may skip samples"):
        len(source.decode_sample(on_bad_sample=tdr.skip_with_warning))
