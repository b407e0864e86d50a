from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data.datapipes.iter import IterableWrapper

from torchdata_remote import LabelFromPath, labels
from torchdata_remote.errors import LabelError
from torchdata_remote.testing import assert_resumes_everywhere, write_small_shards

Sample = dict[str, Any]


def _sample(key: str, url: str = "s3://pets/t-000.tar") -> Sample:
    return {"__key__": key, "__url__": url, "jpg": b"..."}


def _labels(keys: list[str], **options: Any) -> list[int]:
    return [sample["cls"] for sample in LabelFromPath(IterableWrapper([_sample(key) for key in keys]), **options)]


def _error(sample: Sample, **options: Any) -> str:
    with pytest.raises(LabelError) as caught:
        list(LabelFromPath(IterableWrapper([sample]), **options))
    assert caught.value.url == sample.get("__url__", "").partition("?")[0]
    return str(caught.value)


@given(st.lists(st.sampled_from(["cat", "dog", "10", "é"]), max_size=8))
def test_classes_number_the_parent_directory(folders: list[str]) -> None:
    """By its place in a list, or in a dict; one sample out for each one in, in order."""
    classes = ["dog", "é", "10", "cat"]
    keys = [f"train/{folder}/{i}" for i, folder in enumerate(folders)]
    assert _labels(keys, classes=classes) == [classes.index(folder) for folder in folders]
    numbers = {"cat": 5, "dog": 5, "10": 0, "é": 1000}
    assert _labels(keys, classes=numbers) == [numbers[folder] for folder in folders]


def test_directory_of_digits_is_the_number() -> None:
    """Without classes, and beside them for a name that is not among them."""
    assert _labels(["0/a", "train/007/b", "12/c"]) == [0, 7, 12]
    assert _labels(["cat/a", "12/c"], classes=["dog", "cat"]) == [1, 12]


def test_pattern_finds_the_label_in_the_key() -> None:
    """Its one group is searched in the key."""
    assert _labels(["x/1_dog", "y/2_cat"], pattern="_([a-z]+)$", classes=["cat", "dog"]) == [1, 0]
    assert _labels(["x/1_3", "y/2_4"], pattern=r"_(\d+)$") == [3, 4]


def test_labeller_returns_the_number() -> None:
    """Those of ``labels``, and a function of one's own; it is called with the key."""
    classes = labels.classes_json({"n01": {"id": 1, "name": "cat"}, "n02": {"id": 2, "name": "dog"}}, id_base=1)
    assert _labels(["n02/n02_7", "n01/n01_3"], classes=classes) == [1, 0]
    assert _labels(["x/1_3", "y/2_4"], classes=labels.from_pattern(r"_(\d+)$")) == [3, 4]
    assert _labels(["x/1_3", "y/2_44"], classes=len) == [5, 6]
    with pytest.raises(ValueError, match="from_pattern"):
        _labels(["x/1_3"], classes=len, pattern=r"_(\d+)$")


def test_source_sample_is_not_modified() -> None:
    """The source's dict stays as it was; all other entries are handed on."""
    source = _sample("3/a")
    (got,) = LabelFromPath(IterableWrapper([source], deepcopy=False))
    assert got == {**source, "cls": 3}
    assert "cls" not in source
    assert list(IterableWrapper([source]).label_from_path()) == [got]


@pytest.mark.parametrize(
    ("key", "options", "fragments"),
    [
        ("train/bird/1", {"classes": ["cat"]}, ["'bird'", "none of the 1 classes cat"]),
        ("train/bird/1", {}, ["'bird'", "classes="]),
        ("1", {}, ["no parent directory", "pattern="]),
        ("train/1", {"pattern": "_([a-z]+)$"}, ["_([a-z]+)$", "no label"]),
        ("9" * 5000 + "/1", {}, ["999"]),
    ],
)
def test_a_sample_without_a_label_is_an_error(key: str, options: dict[str, Any], fragments: list[str]) -> None:
    """It names key and URL, and what was looked for."""
    message = _error(_sample(key), **options)
    for part in [repr(key), "s3://pets/t-000.tar", *fragments]:
        assert part in message


def test_existing_label_is_an_error() -> None:
    """Neither of the two wins silently; the error names the sample and says what to do."""
    message = _error({**_sample("3/a"), "cls": b"4"})
    assert "'3/a'" in message
    assert "'cls' already" in message
    assert "s3://pets/t-000.tar" in message


def test_errors_show_no_url_signature() -> None:
    """The shard is named without the query of its signed URL."""
    signed = "https://host/0.tar?X-Amz-Signature=SECRET"
    for sample in (_sample("bird/1", signed), {**_sample("3/1", signed), "cls": 1}):
        message = _error(sample)
        assert "https://host/0.tar" in message
        assert "SECRET" not in message


def test_a_sample_without_key_is_an_error() -> None:
    """Not a bare ``KeyError``: it says that what came is no sample."""
    with pytest.raises(LabelError, match="__key__"):
        list(LabelFromPath(IterableWrapper([{"jpg": b""}])))


@pytest.mark.parametrize("pattern", ["cat", "(a)(b)"])
def test_pattern_without_exactly_one_group_is_refused(pattern: str) -> None:
    """Told when the pipe is built, with the pattern."""
    with pytest.raises(ValueError, match=r"exactly one group") as caught:
        LabelFromPath(IterableWrapper([]), pattern=pattern)
    assert repr(pattern) in str(caught.value)


def test_invalid_classes_are_refused_when_the_pipe_is_built() -> None:
    """A name twice, a str, a set: none of them numbers the classes."""
    with pytest.raises(ValueError, match="'cat'"):
        LabelFromPath(IterableWrapper([]), classes=["cat", "cat"])
    with pytest.raises(TypeError, match="'cat'"):
        LabelFromPath(IterableWrapper([]), classes="cat")
    unordered: Any = {"cat", "dog"}
    with pytest.raises(TypeError, match="set"):
        LabelFromPath(IterableWrapper([]), classes=unordered)


def test_errors_do_not_list_ten_thousand_classes() -> None:
    """torch adds the pipe's attributes to the message: ten thousand names are none of them."""
    assert len(_error(_sample("bird/1"), classes=[f"class{i}" for i in range(10_000)])) < 1000


def test_pipe_pickles_before_and_after_a_pass() -> None:
    """With classes and pattern."""
    pipe = LabelFromPath(IterableWrapper([_sample("x/1_dog")]), classes=["cat", "dog"], pattern="_([a-z]+)$")
    assert [sample["cls"] for sample in pickle.loads(pickle.dumps(pipe))] == [1]
    list(pipe)
    assert [sample["cls"] for sample in pickle.loads(pickle.dumps(pipe))] == [1]


def _without_label(sample: Sample) -> Sample:
    return {name: value for name, value in sample.items() if name != "cls"}


def test_it_resumes_after_any_sample(memory_folder: str) -> None:
    """Its state is that of the reader before it."""
    samples = write_small_shards(memory_folder, num_shards=2, samples_per_shard=4)
    urls = sorted({sample["__url__"] for sample in samples})
    assert_resumes_everywhere(
        lambda: IterableWrapper(urls).shard_tar_reader(interleave=2).map(_without_label).label_from_path()
    )
