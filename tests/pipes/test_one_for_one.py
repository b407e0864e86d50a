"""Pipes of one item for one: labels from paths, tuples for a training loop; samples that are left out on purpose."""

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
from torch.utils.data.datapipes.iter import IterableWrapper

import torchdata_remote as tdr
from tests.support.archive_bytes import pack_tar
from tests.support.memory_objects import put
from torchdata_remote import labels
from torchdata_remote.errors import DecodeError, LabelError, MissingMemberError, ObjectNotFoundError, SampleError
from torchdata_remote.pipes import LabelFromPath, ToTuple
from torchdata_remote.testing import write_small_shards

Sample = dict[str, Any]
SAMPLE: Sample = {"__key__": "train/1", "__url__": "s3://b/t-000.tar", "png": "image", "cls": 3, "txt": None}
EXTENSIONS = st.sampled_from(["jpg", "png", "cls", "txt", "json"])


# to_tuple


@given(present=st.sets(EXTENSIONS), choices=st.lists(st.lists(EXTENSIONS, min_size=1), min_size=1, max_size=4))
def test_a_tuple_has_the_first_alternative_that_the_sample_has_for_each_name(
    present: set[str], choices: list[list[str]]
) -> None:
    sample = {"__key__": "1", **{extension: f"<{extension}>" for extension in present}}
    pipe = ToTuple(IterableWrapper([sample, sample]), *(" ; ".join(choice) for choice in choices))
    firsts = [next((name for name in choice if name in present), None) for choice in choices]
    if None in firsts:
        with pytest.raises(MissingMemberError):
            list(pipe)
    else:
        assert list(pipe) == [tuple(f"<{name}>" for name in firsts)] * 2


def test_keys_urls_and_values_that_are_none_or_empty_are_selected() -> None:
    pipe = IterableWrapper([SAMPLE]).to_tuple("__key__", "CLS", "__url__")
    assert list(pipe) == [("train/1", 3, "s3://b/t-000.tar")]
    assert len(pipe) == 1
    assert list(IterableWrapper([{**SAMPLE, "jpg": b""}]).to_tuple("txt;cls", "jpg;png;")) == [(None, b"")]


# label_from_path


def labelled(keys: list[str], **options: Any) -> list[int]:
    samples = [{"__key__": key, "__url__": "s3://pets/t-000.tar", "jpg": b"..."} for key in keys]
    found = list(LabelFromPath(IterableWrapper(samples, deepcopy=False), **options))
    assert [{**sample, "cls": one["cls"]} for sample, one in zip(samples, found, strict=True)] == found
    assert not any("cls" in sample for sample in samples), "those of the source stay as they were"
    return [sample["cls"] for sample in found]


@given(st.lists(st.sampled_from(["cat", "dog", "10", "é"]), max_size=8))
def test_classes_number_the_parent_directory_by_place_or_dict(folders: list[str]) -> None:
    classes = ["dog", "é", "10", "cat"]
    keys = [f"train/{folder}/{i}" for i, folder in enumerate(folders)]
    assert labelled(keys, classes=classes) == [classes.index(folder) for folder in folders]
    numbers = {"cat": 5, "dog": 5, "10": 0, "é": 1000}
    assert labelled(keys, classes=numbers) == [numbers[folder] for folder in folders]


def test_digits_patterns_and_labellers_give_numbers() -> None:
    assert labelled(["cat/a", "12/c"], classes=["dog", "cat"]) == [1, 12]
    assert labelled(["x/1_dog", "y/2_cat"], pattern="_([a-z]+)$", classes=["cat", "dog"]) == [1, 0]
    assert labelled(["x/1_3", "y/2_4"], pattern=r"_(\d+)$") == [3, 4]
    classes = labels.classes_json({"n01": {"id": 1, "name": "cat"}, "n02": {"id": 2, "name": "dog"}}, id_base=1)
    assert labelled(["n02/n02_7", "n01/n01_3"], classes=classes) == [1, 0]
    assert labelled(["x/1_3", "y/2_44"], classes=len) == [5, 6]


@pytest.mark.parametrize(
    ("key", "options", "fragments"),
    [
        ("train/bird/1", {"classes": ["cat"]}, ["'bird'", "none of the 1 classes cat"]),
        ("train/1", {"pattern": "_([a-z]+)$"}, ["_([a-z]+)$", "no label"]),
        ("bird/1", {"classes": [f"class{i}" for i in range(10_000)]}, ["'bird'"]),
    ],
)
def test_a_sample_without_a_label_is_an_error_that_names_it(
    key: str, options: dict[str, Any], fragments: list[str]
) -> None:
    with pytest.raises(LabelError) as caught:
        labelled([key], **options)
    for part in [repr(key), "s3://pets/t-000.tar", *fragments]:
        assert part in str(caught.value)
    assert caught.value.url == "s3://pets/t-000.tar"
    assert len(str(caught.value)) < 1000 + 4 * len(key), "ten thousand classes are not listed"


# Samples for which a function fails

FOLDER = "memory://imperfect/"
NUM_SAMPLES = 12
KEYS = [f"{number}/{number:06d}" for number in range(10)] + ["0/000010", "1/000011"]


@pytest.fixture(scope="module", autouse=True)
def _shards() -> None:
    written = write_small_shards(FOLDER, num_shards=4, samples_per_shard=3)
    assert [sample["__key__"] for sample in written] == KEYS


class Fails:
    """A function of samples that fails for some keys."""

    def __init__(self, keys: Any) -> None:
        self.keys = set(keys)

    def __call__(self, sample: Sample) -> str:
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
    source = tdr.stream_shards(FOLDER, **options)
    return source.parallel_map(Fails(keys), num_threads=num_threads, on_bad_sample=tdr.skip_with_warning)


@settings(max_examples=20)
@given(
    bad=st.sets(st.sampled_from(KEYS)),
    world_size=st.integers(1, 3),
    num_threads=st.sampled_from([0, 2]),
    stop=st.integers(0, NUM_SAMPLES),
)
def test_each_good_sample_comes_once_and_each_bad_one_is_recorded_wherever_the_pass_is_stopped(
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
        assert len(lines) == bool(pipes[1].skipped.bad_samples)
        skipped |= {**pipes[0].skipped.bad_samples, **pipes[1].skipped.bad_samples}.keys()
    assert sorted(found) == sorted(set(KEYS) - bad)
    assert sorted(key for _, key in skipped) == sorted(bad)


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
def test_an_image_that_does_not_decode_is_skipped_counted_and_said_at_the_end_of_each_epoch(num_threads: int) -> None:
    pipe = IterableWrapper(IMAGES).decode_image(4, num_threads=num_threads, on_bad_sample=tdr.skip_with_warning)
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
    with pytest.raises(TypeError, match=r"decode_image\(on_bad_sample=\) may skip samples"):
        len(pipe)
    bad_class = [*IMAGES[:2], {**IMAGES[3], "cls": b"no number"}]
    images = IterableWrapper(bad_class).decode_image(4, on_bad_sample=tdr.skip_with_warning)
    both = images.decode_sample(on_bad_sample=tdr.skip_with_warning).to_tuple("__key__")
    with said() as lines:
        assert list(both) == [("good",)]
    assert [key for _, key in both.skipped.bad_samples] == ["cut", "last"]
    assert len(lines) == 2


@pytest.mark.parametrize("num_threads", [0, 2])
def test_a_policy_decides_in_the_order_of_the_samples_and_what_it_raises_comes_in_their_place(num_threads: int) -> None:
    errors: list[Exception] = []

    def decide(error: Exception) -> None:
        errors.append(error)
        if isinstance(error, MissingMemberError):
            raise RuntimeError("too many") from error

    samples = iter(IterableWrapper(IMAGES).decode_image(4, num_threads=num_threads, on_bad_sample=decide))
    assert next(samples)["__key__"] == "good"
    with pytest.raises(RuntimeError, match="too many"):
        next(samples)
    assert [type(error) for error in errors] == [DecodeError, MissingMemberError]


@pytest.mark.parametrize("read", [list, tdr.Resumable, tdr.thread_loader])
def test_what_is_skipped_is_counted_anew_in_each_pass_whatever_reads_the_chain(read: Callable[..., Any]) -> None:
    url = put(pack_tar([("a.txt", b""), ("README", b""), ("b.txt", b""), ("c.txt", b"")]), "0.tar")
    source = tdr.stream_shards(url, on_bad_member=lambda error: None)
    pipe = source.parallel_map(Fails("b"), on_bad_sample=tdr.skip_with_warning)
    with said() as lines:
        for _ in range(2):
            assert len(list(read(pipe))) == 2
            assert [key for _, key in pipe.skipped.bad_samples] == ["b"]
            assert pipe.skipped.bad_members == {"it has no extension": 1}
    assert len(lines) == 2


@pytest.mark.parametrize("num_threads", [0, 2])
def test_errors_of_the_machine_and_of_stores_skip_no_sample(num_threads: int) -> None:
    """A missing library, or a lack of memory, would skip all of them."""
    policy: dict[str, Any] = {"num_threads": num_threads, "on_bad_sample": tdr.skip_with_warning}
    for error in (ImportError("missing"), MemoryError("missing"), ObjectNotFoundError("s3://b/x: missing")):

        def fail(sample: Any, error: Exception = error) -> Any:
            raise error

        with pytest.raises(type(error), match="missing"):
            list(tdr.stream_shards(FOLDER).parallel_map(fail, **policy))
        if not isinstance(error, ObjectNotFoundError):
            with pytest.raises(DecodeError, match="missing"):
                list(tdr.stream_shards(FOLDER).decode_sample({"txt": fail}, **policy))


def test_ranks_that_are_promised_equal_numbers_skip_no_samples_but_of_an_endless_source() -> None:
    skip: dict[str, Any] = {"on_bad_sample": tdr.skip_with_warning}
    source = tdr.stream_shards(f"{FOLDER}index.json")
    for chain in (
        lambda: source.equalize_ranks().decode_sample(**skip),
        lambda: source.decode_sample(**skip).equalize_ranks(),
    ):
        with pytest.raises(
            ValueError, match=r"decode_sample\(on_bad_sample=\) may skip .* repeat_epochs\(\) before and"
        ):
            chain()
    for rank in range(2):
        endless = tdr.stream_shards(FOLDER, world=tdr.World(rank, 2)).repeat_epochs()
        with said():
            assert len(list(tdr.Resumable(endless.parallel_map(Fails(KEYS[:3]), **skip).take(30)))) == 15


@pytest.mark.parametrize("pipe", ["to_tuple", "decode_sample", "label_from_path", "decode_image"])
@pytest.mark.parametrize("item", [3, ("a", 1), "text"])
def test_items_that_are_no_samples_are_an_error_that_names_the_pipe(pipe: str, item: Any) -> None:
    arguments: dict[str, list[Any]] = {"to_tuple": ["jpg"], "decode_image": [4]}
    with pytest.raises(SampleError, match=f"{pipe}: expected samples"):
        list(getattr(IterableWrapper([item]), pipe)(*arguments.get(pipe, [])))
