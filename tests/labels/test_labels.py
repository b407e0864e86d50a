from __future__ import annotations

import pickle
import re
from typing import Any, ClassVar

import numpy as np
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
    labeller_of,
    meta_mat,
    parent_directory,
)

NAMES = st.text(st.characters(exclude_characters="/", exclude_categories=["Cs"]), min_size=1, max_size=8)


@given(st.lists(NAMES, unique=True, min_size=1, max_size=20))
def test_list_of_classes_is_numbered_from_0(names: list[str]) -> None:
    """In its order; a tuple too."""
    assert [class_numbers(names)[name] for name in names] == list(range(len(names)))
    assert class_numbers(tuple(names)) == class_numbers(names)


def test_dict_of_classes_is_copied() -> None:
    """Later changes of the user's dict have no effect."""
    given_numbers = {"cat": 7, "dog": 7}
    numbers = class_numbers(given_numbers)
    given_numbers["cat"] = 8
    assert numbers == {"cat": 7, "dog": 7}


def test_repeated_class_name_is_refused() -> None:
    """It would have two numbers; the error names only it."""
    with pytest.raises(ValueError, match="'cat'") as caught:
        class_numbers(["cat", "dog", "cat"])
    assert "dog" not in str(caught.value)


@pytest.mark.parametrize("classes", ["cat", {"cat", "dog"}, frozenset({"cat"})])
def test_classes_without_an_order_are_refused(classes: Any) -> None:
    """A str would be its letters; a set is numbered differently in each process."""
    with pytest.raises(TypeError, match="classes"):
        class_numbers(classes)


def test_class_numbers_are_ints() -> None:
    """Also NumPy's; the error shows the entries that are not."""
    from_numpy: Any = {"cat": np.int64(3)}
    assert class_numbers(from_numpy) == {"cat": 3}
    wrong: Any = {"cat": "1", "dog": 0, "ant": 0.5}
    with pytest.raises(TypeError, match=r"an int, got \{'cat': '1', 'ant': 0.5\}"):
        class_numbers(wrong)


def numbered(path: str, classes: Any = None, **options: Any) -> object:
    return labeller_of(classes, digits_are_numbers=True, **options)(path)


@given(folders=st.lists(NAMES, max_size=3), label=NAMES.filter(lambda name: name not in (".", "..")), base=NAMES)
def test_classes_number_the_parent_directory(folders: list[str], label: str, base: str) -> None:
    """At any depth and for any name, as a list or as a dict."""
    path = "/".join([*folders, label, base])
    for classes in (["", label], {label: 1}):
        assert numbered(path, classes) == labeller_of(classes)(path) == 1


def test_without_classes_the_labeller_gives_the_name() -> None:
    """Of the parent directory, or what the pattern finds."""
    assert labeller_of(None)("train/cat/7") == "cat"
    assert labeller_of(None, name_of=from_pattern("_([a-z]+)$"))("train/7_dog") == "dog"


def test_labeller_is_used_unchanged() -> None:
    """If names are numbered later; a pattern together with it is an error."""
    labeller = parent_directory()
    assert labeller_of(labeller) is labeller
    with pytest.raises(ValueError, match="from_pattern"):
        labeller_of(labeller, name_of=from_pattern("_([a-z]+)$"))


@pytest.mark.parametrize(
    ("labeller", "number"),
    [
        (parent_directory(), 12),
        (lambda path: np.int64(7), 7),
        (classes_json({"12": {"id": 3, "name": "twelve"}}, id_base=1), 2),
        (by_number({"1": 5}, number_base=1, id_base=0), 5),
    ],
)
def test_a_labeller_that_gives_numbers_needs_no_other_paths(labeller: Labeller, number: int) -> None:
    """Numbers are handed on, digits are numbers, and keys of its table have the number that they have there."""
    assert numbered("12/image_1", labeller) == number


def test_names_of_a_labeller_with_a_table_are_its_keys() -> None:
    """Their ids are the numbers; a name that is not in the table is an error."""

    class FirstLetter:
        table: ClassVar = {"c": {"id": 4, "name": "cat"}}

        def __call__(self, path: str) -> str:
            return path[0]

    assert numbered("cat/1", FirstLetter()) == 4
    with pytest.raises(LabelError, match=r"'dog/1' has the label 'd'.* none of the 1 classes c\."):
        numbered("dog/1", FirstLetter())


@pytest.mark.parametrize("label", [-1, 2**31, 0.5, None, True, b"cat"])
def test_a_labeller_that_gives_no_label_is_an_error(label: Any) -> None:
    """Neither a name nor a number from 0; the error shows path and label."""
    with pytest.raises(LabelError, match=r"'a/1' has the label .*expected the name of a class") as caught:
        numbered("a/1", lambda path: label)
    assert repr(label) in str(caught.value)


def test_an_exception_of_a_labeller_is_a_label_error() -> None:
    """It names the path and the exception."""
    with pytest.raises(LabelError, match="'a/1' has no label: the labeller raised IndexError"):
        numbered("a/1", lambda path: path[99])


@given(st.integers(0, 10**6), st.integers(0, 3))
def test_a_number_is_its_own_label(number: int, zeros: int) -> None:
    """With leading zeros or without, but only where names are not numbered later."""
    path = f"{'0' * zeros}{number}/a"
    assert numbered(path) == numbered(path, ["cat"]) == number
    with pytest.raises(LabelError):
        labeller_of(["cat"])(path)


def test_a_class_name_takes_precedence_over_a_number() -> None:
    """A directory ``10`` that is a class has the number of that class."""
    assert numbered("10/a", {"9": 0, "10": 1}) == 1
    assert numbered("11/a", {"9": 0, "10": 1}) == 11


@pytest.mark.parametrize("name", ["bird", "-1", "1.5", "1_0", "٣", "²", " 1", "9" * 5000])
def test_an_unknown_label_is_an_error(name: str) -> None:
    """Nothing that only looks like a number is one; the error shows label and classes."""
    with pytest.raises(LabelError, match=r"not a number, and none of the 2 classes cat, dog\.") as caught:
        numbered(f"{name}/1", ["dog", "cat"])
    assert repr(name)[:50] in str(caught.value)


def test_without_classes_the_error_says_how_to_pass_them() -> None:
    """Then no class is known."""
    with pytest.raises(LabelError, match=r"'cat'.*pass classes="):
        numbered("cat/1")


def test_many_classes_do_not_fill_the_message() -> None:
    """It says how many there are and shows a few."""
    with pytest.raises(LabelError, match="1000 classes") as caught:
        numbered("bird/1", {f"class{i}": i for i in range(1000)})
    assert len(str(caught.value)) < 300


def test_public_names_of_labels_are_sorted_and_exist() -> None:
    """What ``__all__`` promises can be imported."""
    assert labels.__all__ == sorted(labels.__all__)
    assert all(hasattr(labels, name) for name in labels.__all__)


@given(folders=st.lists(NAMES, max_size=3), label=NAMES.filter(lambda name: name not in (".", "..")), base=NAMES)
def test_parent_directory_returns_the_folder(folders: list[str], label: str, base: str) -> None:
    """At any depth, for any name."""
    assert parent_directory()("/".join([*folders, label, base])) == label


@pytest.mark.parametrize("path", ["a.jpg", "/a.jpg", "./a.jpg", "train/../a.jpg", "", "train//a.jpg"])
def test_a_path_without_a_named_parent_directory_is_an_error(path: str) -> None:
    """A dot is no class; the error shows the path and says what to do."""
    with pytest.raises(LabelError, match=r"from_pattern.*pattern= of label_from_path") as caught:
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


def test_from_pattern_refuses_patterns_of_bytes() -> None:
    """Paths are str."""
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
