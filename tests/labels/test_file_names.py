"""Labels by file name, as ImageNetTools' ``ClassInfo.json`` has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.shard_places import memory_place
from torchdata_remote import shard_dataset
from torchdata_remote.errors import LabelError
from torchdata_remote.labels import assign_labels, classes_json

NAMES = st.text("aB1_é ", min_size=1, max_size=6).map(lambda stem: f"{stem}.JPEG")


@given(numbers=st.dictionaries(NAMES, st.integers(0, 2**31 - 6), min_size=1), base=st.sampled_from([None, 0, -5]))
def test_numbers_are_unchanged_without_id_base(numbers: dict[str, int], base: int | None) -> None:
    """For files in any folder."""
    labeller = classes_json(numbers, id_base=base)
    for name, number in numbers.items():
        assert labeller(f"train/x/{name}") == labeller(name) == number - (base or 0)


def test_id_base_is_subtracted(tmp_path: Path) -> None:
    """From a file, as ImageNetTools writes it."""
    (tmp_path / "ClassInfo.json").write_text('{"PiC1.JPEG": 1, "PiC2.JPEG": 3}')
    labeller = classes_json(tmp_path / "ClassInfo.json", id_base=1)
    assert [labeller("PiC1.JPEG"), labeller("a/PiC2.JPEG")] == [0, 2]


@pytest.mark.parametrize(
    ("path", "label"),
    [("a/x.jpg", 1), ("b/x.jpg", 2), ("deep/b/x.jpg", 2), ("c/b/x.jpg", 3), ("y.jpg", 4), ("d/y.jpg", 4)],
)
def test_longest_matching_path_of_the_source_applies(path: str, label: int) -> None:
    """Or the only path that ends with the file's path."""
    labeller = classes_json({"a/x.jpg": 1, "./b/x.jpg": 2, "c/b/x.jpg": 3, "d/y.jpg": 4})
    assert labeller(path) == label


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("x.jpg", "may be 'a/x.jpg' or 'b/x.jpg'"),
        ("c/x.jpg", "none of the 2 files"),
        ("ax.jpg", "none of the 2 files"),
        ("a/x.JPG", "none of the 2 files"),
        ("", "none of the 2 files"),
    ],
)
def test_ambiguous_file_is_an_error(path: str, message: str) -> None:
    """It names the file."""
    with pytest.raises(LabelError, match=message) as caught:
        classes_json({"a/x.jpg": 1, "b/x.jpg": 2})(path)
    assert repr(path) in str(caught.value)


def test_two_files_with_one_name_are_an_error() -> None:
    """In one source; the same file in another source, or once more, is not."""
    labeller = classes_json({"x.jpg": 1, "y.jpg": 2})
    with pytest.raises(LabelError, match=r"'a/x\.jpg' and 'b/x\.jpg' have one name, 'x\.jpg'"):
        assign_labels(labeller, ["a/x.jpg", "a/y.jpg", "b/x.jpg"])
    for folder in ("train", "val"):
        labels, table = assign_labels(labeller, [f"{folder}/y.jpg", f"{folder}/x.jpg"])
        assert labels.tolist() == [2, 1]
        assert table == {"1": {"id": 1, "name": "1"}, "2": {"id": 2, "name": "2"}}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"x.jpg": 1, "y.jpg": "2"}, "'y.jpg' is '2'"),
        ({"x.jpg": 1, "y.jpg": True}, "bool"),
        ({"x.jpg": 1, "y.jpg": {"id": 2, "name": "y"}}, "'y.jpg' is"),
        ({"x.jpg": -1}, "is -1, expected 0"),
        ({"x.jpg": 1, "./x.jpg": 1}, "occurs twice"),
    ],
)
def test_invalid_number_is_an_error(document: Any, message: str) -> None:
    """It names the file that they are of."""
    with pytest.raises(LabelError) as caught:
        classes_json(document)
    assert message in str(caught.value)


def test_classes_require_id_base() -> None:
    """The document does not show whether 0 or 1 is the first number."""
    with pytest.raises(TypeError, match="id_base"):
        classes_json({"a": {"id": 1, "name": "a"}})


def test_shard_dataset_labels_by_file_names() -> None:
    """From end to end."""
    source, to = memory_place(), memory_place()
    files = {"PiC1.JPEG": b"one", "PiC2.JPEG": b"two"}
    class_info = memory_place().put({"ClassInfo.json": json.dumps({"PiC1.JPEG": 1, "PiC2.JPEG": 7}).encode()})
    labels = classes_json(f"{class_info}ClassInfo.json")
    shard_dataset(source.put(files), to.template(), labels=labels, progress=False)
    found = to.members()
    assert {name: found[f"{name}.cls"] for name in ("PiC1", "PiC2")} == {"PiC1": b"1", "PiC2": b"7"}
