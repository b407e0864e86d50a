"""The labels of all files, and the classes that there are."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote.errors import LabelError, ObjectNotFoundError
from torchdata_remote.labels import ClassEntry, assign_labels, by_number, classes_json, parent_directory

NAMES = st.text("abcé/_", min_size=1, max_size=3)
KNOWN: dict[str, ClassEntry] = {"dog": {"id": 3, "name": "a dog"}, "cat": {"id": 0, "name": "a cat"}}


class Given:
    """A labeller that tells what it was given, path -> label."""

    def __init__(self, labels: dict[str, Any], table: Any = None) -> None:
        self.labels = labels
        if table is not None:
            self.table = table

    def __call__(self, path: str) -> Any:
        return self.labels[path]


def assign(*labels: Any, table: Any = None, known: Any = None) -> tuple[list[int], dict[str, ClassEntry]]:
    """Assign labels to paths "0", "1", ..."""
    found = {str(i): label for i, label in enumerate(labels)}
    array, classes = assign_labels(Given(found, table), found, known=known)
    assert array.dtype == np.int32
    assert array.shape == (len(labels),)
    return array.tolist(), classes


@given(st.lists(NAMES, max_size=30))
def test_names_are_numbered_sorted_from_0(names: list[str]) -> None:
    """Whatever the order that they come in; each file has the number of its name."""
    labels, table = assign(*names)
    assert list(table) == sorted(set(names))
    assert table == {name: {"id": i, "name": name} for i, name in enumerate(sorted(set(names)))}
    assert labels == [table[name]["id"] for name in names]


@given(st.lists(NAMES, max_size=15), st.lists(NAMES, max_size=15))
def test_known_classes_keep_their_numbers(before: list[str], added: list[str]) -> None:
    """New names follow the known ones, sorted."""
    _, known = assign(*before)
    labels, table = assign(*added, known=known)
    assert list(table) == sorted(set(before)) + sorted(set(added) - set(before))
    assert [entry["id"] for entry in table.values()] == list(range(len(table)))
    assert labels == [table[name]["id"] for name in added]


def test_known_classes_are_found_by_key() -> None:
    """Their numbers may have gaps, their names differ; the known table is not changed."""
    assert assign("dog", "ant", "cat", "bee", known=KNOWN)[0] == [3, 4, 0, 5]
    assert list(KNOWN) == ["dog", "cat"]
    with pytest.raises(LabelError, match="'dog'"):
        assign("a dog", known=KNOWN)


@given(st.lists(st.integers(0, 2**31 - 1), max_size=30))
def test_numbers_without_a_table_are_classes_named_by_the_number(numbers: list[int]) -> None:
    """Each one that occurs."""
    labels, table = assign(*numbers)
    assert labels == numbers
    assert list(table.items()) == [(str(n), {"id": n, "name": str(n)}) for n in sorted(set(numbers))]


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int64, np.uint64])
def test_integers_of_numpy_are_labels(dtype: Any) -> None:
    """Like those of Python."""
    assert assign(dtype(3), 3, dtype(3), dtype(0))[0] == [3, 3, 3, 0]


def test_table_of_the_labeller_is_the_class_table() -> None:
    """Including classes that do not occur; sorted by id."""
    labeller = classes_json({"dog": {"id": 2, "name": "a dog"}, "cat": {"id": 1, "name": "a cat"}}, id_base=1)
    labels, table = assign_labels(labeller, ["dog/1.jpg", "dog/2.jpg"])
    assert labels.tolist() == [1, 1]
    assert list(table.items()) == [("cat", {"id": 0, "name": "a cat"}), ("dog", {"id": 1, "name": "a dog"})]
    assert assign_labels(labeller, [])[1] == table


def test_names_get_their_ids_in_the_table_of_the_labeller() -> None:
    """A user's labeller may have a table and return its keys."""
    assert assign("dog", "cat", "dog", table=KNOWN)[0] == [3, 0, 3]


@pytest.mark.parametrize("label", ["ant", 1, 4])
def test_a_label_outside_the_labellers_table_is_an_error(label: Any) -> None:
    """The table is complete."""
    with pytest.raises(LabelError, match="'1' has the label"):
        assign("cat" if isinstance(label, str) else 0, label, table=KNOWN)


def test_numbers_without_a_table_are_classes_of_the_known_table() -> None:
    """So validation images, labelled by number, are added to training images, labelled by class."""
    labeller = by_number({"0": 4, "1": 1}, number_base=0)
    labels, table = assign_labels(labeller, ["v_00000002.JPEG", "v_00000001.JPEG"], known=KNOWN)
    assert labels.tolist() == [0, 3]
    assert table == KNOWN
    assert assign(7, 3, known=KNOWN)[1]["7"] == {"id": 7, "name": "7"}


def test_table_that_agrees_with_the_known_one_extends_it() -> None:
    """A known class keeps its name; a new one is added."""
    table = {"dog": {"id": 3, "name": "dog"}, "ant": {"id": 1, "name": "ant"}}
    assert assign(1, 3, table=table, known=KNOWN)[1] == {
        "cat": {"id": 0, "name": "a cat"},
        "ant": {"id": 1, "name": "ant"},
        "dog": {"id": 3, "name": "a dog"},
    }


@pytest.mark.parametrize("table", [{"dog": {"id": 1, "name": "dog"}}, {"ant": {"id": 3, "name": "ant"}}])
def test_table_that_contradicts_the_known_one_is_an_error(table: Any) -> None:
    """The same key with another id, the same id with another key; both are shown."""
    with pytest.raises(LabelError, match="'dog' with the label 3") as caught:
        assign(next(iter(table.values()))["id"], table=table, known=KNOWN)
    assert repr(next(iter(table))) in str(caught.value)


def test_number_that_is_the_key_of_another_class_is_an_error() -> None:
    """Class "7" has the number 0 there, so 7 cannot be called so."""
    with pytest.raises(LabelError, match="'7' with the label 0"):
        assign(7, known={"7": {"id": 0, "name": "seven"}})


@pytest.mark.parametrize("first", [0, 1, "cat"])
@pytest.mark.parametrize(
    "label", [-1, True, False, np.bool_(True), 1.0, 2**31, 10**30, None, b"cat", "", [], np.zeros(2)]
)
def test_invalid_label_is_an_error(first: Any, label: Any) -> None:
    """Even if it equals an earlier label; path and label are shown."""
    with pytest.raises(LabelError) as caught:
        assign(first, first, label)
    assert str(caught.value).startswith(f"'2' has the label {label!r} ")


@pytest.mark.parametrize("labels", [(0, "cat"), ("cat", 0), (0, 0, "cat"), ("cat", "dog", 0)])
def test_mixture_of_names_and_numbers_is_an_error(labels: tuple[Any, ...]) -> None:
    """It shows path and label, and the first path."""
    with pytest.raises(LabelError, match="'0' has a n") as caught:
        assign(*labels)
    assert f"'{len(labels) - 1}' has the label {labels[-1]!r}" in str(caught.value)


def test_exception_of_the_labeller_names_the_path() -> None:
    """It is chained; an error of this package is unchanged."""
    with pytest.raises(LabelError, match=r"'a/1\.jpg' .*KeyError") as caught:
        assign_labels(Given({}), ["a/1.jpg"])
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(LabelError, match=r"^'1\.jpg' has no parent directory"):
        assign_labels(parent_directory(), ["1.jpg"])
    with pytest.raises(ObjectNotFoundError):
        assign_labels(lambda path: _not_found(), ["1.jpg"])


def _not_found() -> str:
    raise ObjectNotFoundError("gone")


def test_error_of_the_listing_is_unchanged() -> None:
    """It is not reported as a label error."""

    def paths() -> Iterator[str]:
        yield "a/1.jpg"
        raise KeyError("listing")

    with pytest.raises(KeyError, match="listing") as caught:
        assign_labels(parent_directory(), paths())
    assert not isinstance(caught.value, LabelError)


def test_str_in_place_of_paths_is_refused() -> None:
    """It would be iterated by letters."""
    with pytest.raises(TypeError, match="paths"):
        assign_labels(parent_directory(), "train/cat/1.jpg")


def test_numbers_beyond_int32_are_an_error() -> None:
    """Labels are int32."""
    with pytest.raises(LabelError, match="2147483648"):
        assign("dog", known={"cat": {"id": 2**31 - 1, "name": "cat"}})


def test_invalid_class_table_is_an_error() -> None:
    """Of the labeller, and the known one."""
    with pytest.raises(LabelError, match="the labeller's table"):
        assign(0, table={"cat": 0})
    with pytest.raises(LabelError, match="the known class table"):
        assign(0, known={"cat": 0})


def test_million_files_are_labelled_within_time_and_memory() -> None:
    """Seconds, and the memory of the numbers: paths and names are not kept."""
    started_s = time.process_time()
    labels, table = assign_labels(parent_directory(), (f"train/c{i % 1000}/{i}.jpg" for i in range(1_000_000)))
    assert time.process_time() - started_s < 3
    assert len(labels) == 1_000_000
    assert len(table) == 1000
    tracemalloc.start()
    try:
        assign_labels(parent_directory(), (f"train/c{i % 1000}/{i}.jpg" for i in range(100_000)))
        assert tracemalloc.get_traced_memory()[1] < 100_000 * 4 * 4
    finally:
        tracemalloc.stop()
