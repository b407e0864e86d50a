from __future__ import annotations

import pickle
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote import labels
from torchdata_remote.errors import LabelError
from torchdata_remote.labels import (
    Labeller,
    by_number,
    class_numbers,
    classes_json,
    from_pattern,
    ground_truth,
    label_number,
    label_text,
    meta_mat,
    parent_directory,
)

NAMES = st.text(st.characters(exclude_characters="/", exclude_categories=["Cs"]), min_size=1, max_size=8)


@given(st.lists(NAMES, unique=True, max_size=20))
def test_a_list_numbers_its_names_from_0(names: list[str]) -> None:
    """In its order; a tuple is as good."""
    assert [class_numbers(names)[name] for name in names] == list(range(len(names)))
    assert class_numbers(tuple(names)) == class_numbers(names)


def test_a_dict_is_the_numbering() -> None:
    """Unchanged, and later changes of the user's dict do not reach it."""
    given_numbers = {"cat": 7, "dog": 7}
    numbers = class_numbers(given_numbers)
    given_numbers["cat"] = 8
    assert numbers == {"cat": 7, "dog": 7}


def test_a_name_that_comes_twice_is_refused() -> None:
    """It would have two numbers; the error names it and no other."""
    with pytest.raises(ValueError, match="'cat'") as caught:
        class_numbers(["cat", "dog", "cat"])
    assert "dog" not in str(caught.value)


@pytest.mark.parametrize("classes", ["cat", {"cat", "dog"}, frozenset({"cat"})])
def test_classes_without_an_order_are_refused(classes: Any) -> None:
    """A str would be its letters; a set is numbered differently in each process."""
    with pytest.raises(TypeError, match="classes"):
        class_numbers(classes)


@given(folders=st.lists(NAMES, max_size=3), label=NAMES, base=NAMES)
def test_the_parent_directory_is_the_label(folders: list[str], label: str, base: str) -> None:
    """However deep it lies, and whatever the names."""
    assert label_text("/".join([*folders, label, base]), None) == label


@pytest.mark.parametrize("path", ["a", "/a", "", "train//a"])
def test_no_parent_directory_is_no_label(path: str) -> None:
    """The error shows the path and says what to do."""
    with pytest.raises(LabelError, match=r"pattern=") as caught:
        label_text(path, None)
    assert repr(path) in str(caught.value)


@given(NAMES.filter(str.isalnum))
def test_a_pattern_finds_the_label_anywhere(label: str) -> None:
    """Its only group is the label."""
    assert label_text(f"train/x/7_{label}_b", re.compile("_(.*)_")) == label


@pytest.mark.parametrize("pattern", ["_([a-z]+)$", "(dog)?_7"])
def test_a_pattern_that_finds_nothing_is_an_error(pattern: str) -> None:
    """No match, or a match whose group took no part; the error shows pattern and path."""
    with pytest.raises(LabelError) as caught:
        label_text("train/cat_7", re.compile(pattern))
    assert repr(pattern) in str(caught.value)
    assert "'train/cat_7'" in str(caught.value)


@given(st.integers(0, 10**6), st.integers(0, 3))
def test_a_number_is_its_own_label(number: int, zeros: int) -> None:
    """With leading zeros or without."""
    assert label_number("0" * zeros + str(number), {}) == number


def test_a_class_comes_before_a_number() -> None:
    """A directory ``10`` that is a class has the number of that class."""
    assert label_number("10", {"9": 0, "10": 1}) == 1
    assert label_number("11", {"9": 0, "10": 1}) == 11


@pytest.mark.parametrize("text", ["bird", "-1", "1.5", "1_0", "٣", "²", " 1", "", "9" * 5000])
def test_an_unknown_label_is_an_error(text: str) -> None:
    """Nothing that only looks like a number is one; the error shows label and classes."""
    with pytest.raises(LabelError) as caught:
        label_number(text, {"cat": 0, "dog": 1})
    assert repr(text)[:50] in str(caught.value)
    assert "['cat', 'dog']" in str(caught.value)
    assert len(str(caught.value)) < 6000


def test_without_classes_the_error_tells_how_to_give_them() -> None:
    """Then no class is known at all."""
    with pytest.raises(LabelError, match=r"'cat'.*classes="):
        label_number("cat", {})


def test_many_classes_do_not_fill_the_message() -> None:
    """It says how many there are and shows a few."""
    with pytest.raises(LabelError, match="1000 classes") as caught:
        label_number("bird", {f"class{i}": i for i in range(1000)})
    assert len(str(caught.value)) < 300


def test_names_of_the_room_are_sorted_and_there() -> None:
    """What ``__all__`` promises can be imported."""
    assert labels.__all__ == sorted(labels.__all__)
    assert all(hasattr(labels, name) for name in labels.__all__)


@given(folders=st.lists(NAMES, max_size=3), label=NAMES.filter(lambda name: name not in (".", "..")), base=NAMES)
def test_parent_directory_labels_by_the_folder(folders: list[str], label: str, base: str) -> None:
    """However deep it lies, and whatever the names."""
    assert parent_directory()("/".join([*folders, label, base])) == label


@pytest.mark.parametrize("path", ["a.jpg", "/a.jpg", "./a.jpg", "train/../a.jpg", "", "train//a.jpg"])
def test_parent_directory_wants_a_name(path: str) -> None:
    """A dot is no class; the error shows the path and what else there is."""
    with pytest.raises(LabelError, match="from_pattern") as caught:
        parent_directory()(path)
    assert repr(path) in str(caught.value)


@pytest.mark.parametrize("regex", ["_([a-z]+)", re.compile("_([A-Z]+)", re.IGNORECASE)])
def test_from_pattern_takes_text_or_a_compiled_expression(regex: str | re.Pattern[str]) -> None:
    """Flags of the expression hold."""
    assert from_pattern(regex)("train/7_cat.jpg") == "cat"


@pytest.mark.parametrize("regex", ["cat", "(cat)(dog)"])
def test_from_pattern_needs_one_group(regex: str) -> None:
    """It is an error when the labeller is built, before anything is read."""
    with pytest.raises(ValueError, match="exactly one group"):
        from_pattern(regex)


def test_from_pattern_searches_in_str() -> None:
    """Paths are no bytes."""
    wrong: Any = re.compile(b"(cat)")
    with pytest.raises(TypeError, match="bytes"):
        from_pattern(wrong)


@pytest.mark.parametrize("regex", ["_([a-z]+)$", "(dog)?_7", "_7(.*)"])
def test_from_pattern_that_finds_nothing_is_an_error(regex: str) -> None:
    """No match, a group that took no part, an empty name; the error shows pattern and path."""
    with pytest.raises(LabelError) as caught:
        from_pattern(regex)("train/cat_7")
    assert repr(regex) in str(caught.value)
    assert "'train/cat_7'" in str(caught.value)


SYNSET = {"ILSVRC2012_ID": 8, "WNID": "n7", "words": "kit fox", "num_children": 0}


@pytest.mark.parametrize(
    ("labeller", "expected"),
    [
        (parent_directory(), "n7"),
        (from_pattern("(n[0-9])_"), "n7"),
        (classes_json({"n7": {"id": 8, "name": "kit_fox"}}, id_base=1), 7),
        (meta_mat([SYNSET]), 7),
        (by_number({"2": 8}, number_base=0), 7),
        (ground_truth([1, 2, 8], base_name="n7_"), 7),
    ],
    ids=["parent_directory", "from_pattern", "classes_json", "meta_mat", "by_number", "ground_truth"],
)
def test_labellers_pickle(labeller: Labeller, expected: int | str) -> None:
    """The copy labels as the original does, and is equal to it; its repr does not list what it knows."""
    copy = pickle.loads(pickle.dumps(labeller))
    assert copy("x/n7/n7_00000003.JPEG") == labeller("x/n7/n7_00000003.JPEG") == expected
    assert copy == labeller
    assert "kit" not in repr(copy)
