from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data.datapipes.iter import IterableWrapper

from torchdata_remote import ToTuple
from torchdata_remote.errors import MissingMemberError
from torchdata_remote.testing import assert_resumes_everywhere, write_small_shards

SAMPLE = {"__key__": "train/1", "__url__": "s3://b/t-000.tar", "png": "image", "cls": 3, "txt": None}
EXTENSIONS = st.sampled_from(["jpg", "png", "cls", "txt", "json"])


@given(present=st.sets(EXTENSIONS), choices=st.lists(st.lists(EXTENSIONS, min_size=1), min_size=1, max_size=4))
def test_first_existing_alternative_is_selected(present: set[str], choices: list[list[str]]) -> None:
    """In the order of the names, one value for each; a place for which nothing is there is an error."""
    sample = {"__key__": "1", **{extension: f"<{extension}>" for extension in present}}
    pipe = ToTuple(IterableWrapper([sample]), *(";".join(choice) for choice in choices))
    firsts = [next((name for name in choice if name in present), None) for choice in choices]
    if None in firsts:
        with pytest.raises(MissingMemberError):
            list(pipe)
    else:
        assert list(pipe) == [tuple(f"<{name}>" for name in firsts)]


def test_key_and_url_can_be_selected() -> None:
    """Beside members; by the functional name too."""
    expected = [("train/1", 3, "s3://b/t-000.tar")]
    assert list(ToTuple(IterableWrapper([SAMPLE]), "__key__", "cls", "__url__")) == expected
    assert list(IterableWrapper([SAMPLE]).to_tuple("__key__", "cls", "__url__")) == expected


def test_member_that_is_none_or_empty_is_selected() -> None:
    """What counts is whether the sample has it."""
    assert list(ToTuple(IterableWrapper([{**SAMPLE, "jpg": b""}]), "txt;cls", "jpg;png")) == [(None, b"")]


def test_blanks_around_names_are_ignored() -> None:
    """Nor does a semicolon too many."""
    assert list(ToTuple(IterableWrapper([SAMPLE]), " jpg ; png;", "cls")) == [("image", 3)]


def test_a_missing_member_is_an_error() -> None:
    """It names sample and shard, what was asked for, and what was there; it is a ``KeyError`` that reads well."""
    with pytest.raises(MissingMemberError) as caught:
        list(ToTuple(IterableWrapper([SAMPLE]), "cls", "jpg;jpeg"))
    message = str(caught.value)
    for part in ("'train/1'", "s3://b/t-000.tar", "'jpg' or 'jpeg'", "['cls', 'png', 'txt']"):
        assert part in message
    assert caught.value.url == "s3://b/t-000.tar"
    assert isinstance(caught.value, KeyError)
    assert "\\n" not in message


def test_errors_show_no_url_signature() -> None:
    """The shard is named without the query of its signed URL."""
    sample = {"__key__": "1", "__url__": "https://host/0.tar?X-Amz-Signature=SECRET"}
    with pytest.raises(MissingMemberError) as caught:
        list(ToTuple(IterableWrapper([sample]), "jpg"))
    assert "https://host/0.tar" in str(caught.value)
    assert "SECRET" not in f"{caught.value} {caught.value.url}"


@pytest.mark.parametrize("names", [(), ("",), ("jpg", " ; "), (3,), (["jpg", "png"],)])
def test_empty_names_are_refused(names: tuple[Any, ...]) -> None:
    """When the pipe is built; the error shows them and how they should look."""
    with pytest.raises(ValueError, match="'jpg;png', 'cls'") as caught:
        ToTuple(IterableWrapper([]), *names)
    assert repr(names) in str(caught.value)


def test_pipe_pickles_before_and_after_a_pass() -> None:
    """It goes to worker processes with its names."""
    pipe = ToTuple(IterableWrapper([SAMPLE]), "jpg;png", "cls")
    assert list(pickle.loads(pickle.dumps(pipe))) == [("image", 3)]
    assert list(pipe) == [("image", 3)]
    assert list(pickle.loads(pickle.dumps(pipe))) == [("image", 3)]


def test_it_resumes_after_any_sample(memory_folder: str) -> None:
    """Its state is that of the reader before it; torch's pipes may follow, where batches are whole."""
    samples = write_small_shards(memory_folder, num_shards=2, samples_per_shard=4)
    urls = sorted({sample["__url__"] for sample in samples})
    assert_resumes_everywhere(lambda: IterableWrapper(urls).shard_tar_reader().to_tuple("cls", "txt"))
    assert_resumes_everywhere(lambda: IterableWrapper(urls).shard_tar_reader().to_tuple("__key__", "txt").batch(3))
