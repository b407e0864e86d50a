"""Labels: from the path of a file to its class, and from all files to the table of classes."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote import labels
from torchdata_remote.errors import LabelError, ObjectNotFoundError

assign_labels = labels.assign_labels
by_number = labels.by_number
classes_json = labels.classes_json
from_pattern = labels.from_pattern
ground_truth = labels.ground_truth
labeller_of = labels.labeller_of
merged_tables = labels.merged_tables
meta_mat = labels.meta_mat
parent_directory = labels.parent_directory


NAMES = st.text(st.characters(exclude_characters="/", exclude_categories=["Cs"]), min_size=1, max_size=8).filter(
    lambda name: name not in (".", "..")
)
KNOWN: dict[str, labels.ClassEntry] = {"dog": {"id": 3, "name": "a dog"}, "cat": {"id": 0, "name": "a cat"}}


# One path


def test_a_set_of_classes_is_refused() -> None:
    """It is numbered differently in each process."""
    with pytest.raises(TypeError, match="classes must be a list of names"):
        labeller_of({"cat", "dog"})  # type: ignore[arg-type]


def numbered(path: str, classes: Any = None, **options: Any) -> object:
    return labeller_of(classes, digits_are_numbers=True, **options)(path)


@given(folders=st.lists(NAMES, max_size=3), label=NAMES, base=NAMES)
def test_the_parent_directory_is_the_class(folders: list[str], label: str, base: str) -> None:
    """At any depth and for any name; numbered by a list or a dict."""
    path = "/".join([*folders, label, base])
    assert parent_directory()(path) == labeller_of(None)(path) == label
    for classes in (["", label], {label: 1}):
        assert numbered(path, classes) == labeller_of(classes)(path) == 1


@pytest.mark.parametrize("path", ["a.jpg", "/a.jpg", "./a.jpg", "train/../a.jpg", "", "train//a.jpg"])
def test_a_path_without_a_named_parent_directory_is_an_error(path: str) -> None:
    """A dot is no class; the error shows the path and says what to do."""
    with pytest.raises(LabelError, match=r"from_pattern.*pattern= of label_from_path") as caught:
        parent_directory()(path)
    assert repr(path) in str(caught.value)


@pytest.mark.parametrize("regex", ["_([a-z]+)", re.compile("_([A-Z]+)", re.IGNORECASE)])
def test_the_group_of_a_pattern_is_the_class(regex: str | re.Pattern[str]) -> None:
    """Flags of the expression hold."""
    assert from_pattern(regex)("train/7_cat.jpg") == "cat"
    assert labeller_of(None, name_of=from_pattern(regex))("train/7_dog") == "dog"


@pytest.mark.parametrize("regex", ["cat", "(cat)(dog)", "*.jpg", re.compile(b"(cat)")])
def test_a_pattern_needs_exactly_one_group(regex: Any) -> None:
    """It is an error when the labeller is built, before anything is read."""
    with pytest.raises((TypeError, ValueError), match="pattern must be a regular expression"):
        from_pattern(regex)


@pytest.mark.parametrize("regex", ["_([a-z]+)$", "(dog)?_7", "_7(.*)"])
def test_a_pattern_that_finds_nothing_is_an_error(regex: str) -> None:
    """No match, a group that took no part, an empty name; the error shows pattern and path."""
    with pytest.raises(LabelError) as caught:
        from_pattern(regex)("train/cat_7")
    assert repr(regex) in str(caught.value)
    assert "'train/cat_7'" in str(caught.value)


def test_a_labeller_is_used_unchanged() -> None:
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
def test_a_labeller_that_gives_numbers_needs_no_other_paths(labeller: labels.Labeller, number: int) -> None:
    """Numbers are handed on, digits are numbers, and keys of its table have the number that they have there."""
    assert numbered("12/image_1", labeller) == number


def test_names_of_a_labeller_with_a_table_are_its_keys() -> None:
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
    with pytest.raises(LabelError, match="'a/1' has no label: the labeller raised IndexError"):
        numbered("a/1", lambda path: path[99])


@given(st.integers(0, 2**31 - 1), st.integers(0, 3))
def test_a_number_is_its_own_label(number: int, zeros: int) -> None:
    """With leading zeros or without, but only where names are not numbered later; a class of that name has its own."""
    path = f"{'0' * zeros}{number}/a"
    assert numbered(path) == numbered(path, ["cat"]) == number
    assert numbered(f"{number}/a", ["x", "y", str(number)]) == 2
    with pytest.raises(LabelError):
        labeller_of(["cat"])(path)


@pytest.mark.parametrize("name", ["bird", "-1", "1.5", "1_0", "٣", "²", " 1", "9" * 5000])
def test_an_unknown_label_is_an_error(name: str) -> None:
    """Nothing that only looks like a number is one; the error shows label and classes."""
    with pytest.raises(LabelError, match=r"no number from 0.*, and none of the 2 classes cat, dog\.") as caught:
        numbered(f"{name}/1", ["dog", "cat"])
    assert repr(name)[:50] in str(caught.value)
    with pytest.raises(LabelError, match=r"1000 classes") as caught:
        numbered("bird/1", {f"class{i}": i for i in range(1000)})
    assert len(str(caught.value)) < 300


def test_a_number_beyond_int32_is_an_error() -> None:
    with pytest.raises(LabelError, match="no number from 0 to 2147483647"):
        numbered(f"{2**31}/1")


SYNSET = {"ILSVRC2012_ID": 8, "WNID": "n7", "words": "kit fox", "num_children": 0}
LABELLERS: dict[str, tuple[labels.Labeller, Any]] = {
    "parent_directory": (parent_directory(), "n7"),
    "from_pattern": (from_pattern("(n[0-9])_"), "n7"),
    "classes_json": (classes_json({"n7": {"id": 8, "name": "kit_fox"}}, id_base=1), 7),
    "file names": (classes_json({"n7_00000003.JPEG": 7, "a.JPEG": 1}), 7),
    "meta_mat": (meta_mat([SYNSET]), 7),
    "by_number": (by_number({"2": 8}, number_base=0), 7),
    "ground_truth": (ground_truth([1, 2, 8], base_name="n7_"), 7),
}


@pytest.mark.parametrize("name", LABELLERS)
def test_labellers_go_to_workers(name: str) -> None:
    """The copy labels as the original does, and is equal to it; its repr does not list what it knows."""
    labeller, expected = LABELLERS[name]
    copy = pickle.loads(pickle.dumps(labeller))
    assert copy("x/n7/n7_00000003.JPEG") == labeller("x/n7/n7_00000003.JPEG") == expected
    assert copy == labeller
    assert "kit" not in repr(copy)
    assert labels.__all__ == sorted(labels.__all__)


# All files


class Given:
    """A labeller that tells what it was given, path -> label."""

    def __init__(self, found: dict[str, Any], table: Any = None) -> None:
        self.found = found
        if table is not None:
            self.table = table

    def __call__(self, path: str) -> Any:
        return self.found[path]


def assign(*given_labels: Any, table: Any = None, known: Any = None) -> tuple[list[int], dict[str, labels.ClassEntry]]:
    """Assign labels to paths "0", "1", ..."""
    found = {str(i): label for i, label in enumerate(given_labels)}
    array, classes = assign_labels(Given(found, table), found, known=known)
    assert array.dtype == np.int32
    assert array.shape == (len(given_labels),)
    return array.tolist(), classes


@given(st.lists(NAMES, max_size=15), st.lists(NAMES, max_size=15))
def test_names_are_numbered_sorted_and_known_classes_keep_their_numbers(before: list[str], added: list[str]) -> None:
    """From 0, whatever the order that they come in; new names follow the known ones, sorted."""
    found, known = assign(*before)
    assert known == {name: {"id": i, "name": name} for i, name in enumerate(sorted(set(before)))}
    assert found == [known[name]["id"] for name in before]
    found, table = assign(*added, known=known)
    assert list(table) == sorted(set(before)) + sorted(set(added) - set(before))
    assert [entry["id"] for entry in table.values()] == list(range(len(table)))
    assert found == [table[name]["id"] for name in added]


def test_known_classes_are_found_by_key() -> None:
    """Their numbers may have gaps, their names differ; the known table is not changed."""
    assert assign("dog", "ant", "cat", "bee", known=KNOWN)[0] == [3, 4, 0, 5]
    assert list(KNOWN) == ["dog", "cat"]
    with pytest.raises(LabelError, match="'dog'"):
        assign("a dog", known=KNOWN)


@given(st.lists(st.integers(0, 2**31 - 1), max_size=30))
def test_numbers_without_a_table_are_classes_named_by_the_number(numbers: list[int]) -> None:
    """Each one that occurs; integers of NumPy are integers."""
    found, table = assign(*numbers)
    assert found == numbers == assign(*map(np.uint64, numbers))[0]
    assert list(table.items()) == [(str(n), {"id": n, "name": str(n)}) for n in sorted(set(numbers))]


def test_the_table_of_the_labeller_is_the_class_table() -> None:
    """Including classes that do not occur; sorted by id. Its keys may be labels."""
    labeller = classes_json({"dog": {"id": 2, "name": "a dog"}, "cat": {"id": 1, "name": "a cat"}}, id_base=1)
    found, table = assign_labels(labeller, ["dog/1.jpg", "dog/2.jpg"])
    assert found.tolist() == [1, 1]
    assert list(table.items()) == [("cat", {"id": 0, "name": "a cat"}), ("dog", {"id": 1, "name": "a dog"})]
    assert assign_labels(labeller, [])[1] == table
    assert assign("dog", "cat", "dog", table=KNOWN)[0] == [3, 0, 3]


def test_numbers_without_a_table_are_classes_of_the_known_table() -> None:
    """So validation images, labelled by number, are added to training images, labelled by class."""
    labeller = by_number({"0": 4, "1": 1}, number_base=0)
    found, table = assign_labels(labeller, ["v_00000002.JPEG", "v_00000001.JPEG"], known=KNOWN)
    assert (found.tolist(), table) == ([0, 3], KNOWN)
    assert assign(7, 3, known=KNOWN)[1]["7"] == {"id": 7, "name": "7"}


def test_a_table_that_agrees_with_the_known_one_extends_it() -> None:
    """A known class keeps its name; a new one is added."""
    table: Any = {"dog": {"id": 3, "name": "dog"}, "ant": {"id": 1, "name": "ant"}}
    expected = {"cat": KNOWN["cat"], "ant": table["ant"], "dog": KNOWN["dog"]}
    for merged in (assign(1, 3, table=table, known=KNOWN)[1], merged_tables(KNOWN, table)):
        assert list(merged.items()) == list(expected.items())
    assert merged_tables(None, KNOWN) == KNOWN


REFUSED: list[tuple[tuple[Any, ...], Any, Any, str]] = [
    (("cat", "ant"), KNOWN, None, "'1' has the label 'ant'"),
    ((0, 1), KNOWN, None, "'1' has the label 1"),
    ((1,), {"dog": {"id": 1, "name": "dog"}}, KNOWN, "'dog' with the label 3"),
    ((3,), {"ant": {"id": 3, "name": "ant"}}, KNOWN, "'ant' has the label 3, but the known class table has 'dog'"),
    ((7,), None, {"7": {"id": 0, "name": "seven"}}, "'7' with the label 0"),
    ((0, "cat"), None, None, "'1' has the label 'cat' (str), but '0' has a number"),
    (("cat", "dog", 0), None, None, "'2' has the label 0 (int), but '0' has a name"),
    (("dog",), None, {"cat": {"id": 2**31 - 1, "name": "cat"}}, "2147483648"),
    ((0,), {"cat": 0}, None, "the labeller's table"),
    ((0,), None, {"cat": 0}, "the known class table"),
]


@pytest.mark.parametrize(("given_labels", "table", "known", "words"), REFUSED, ids=range(len(REFUSED)))
def test_labels_and_tables_that_contradict_each_other_are_errors(
    given_labels: tuple[Any, ...], table: Any, known: Any, words: str
) -> None:
    with pytest.raises(LabelError, match=re.escape(words)):
        assign(*given_labels, table=table, known=known)


@pytest.mark.parametrize("first", [0, 1, "cat"])
@pytest.mark.parametrize("label", [-1, True, np.bool_(True), 1.0, 2**31, 10**30, None, b"cat", "", [], np.zeros(2)])
def test_an_invalid_label_is_an_error_with_its_path(first: Any, label: Any) -> None:
    """Even if it equals an earlier label."""
    with pytest.raises(LabelError) as caught:
        assign(first, first, label)
    assert str(caught.value).startswith(f"'2' has the label {label!r} ")


def not_found(path: str) -> str:
    raise ObjectNotFoundError("gone")


def test_an_exception_of_the_labeller_names_the_path_and_others_are_unchanged() -> None:
    with pytest.raises(LabelError, match=r"'a/1\.jpg' .*KeyError") as caught:
        assign_labels(Given({}), ["a/1.jpg"])
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(ObjectNotFoundError):
        assign_labels(not_found, ["1.jpg"])

    def paths() -> Iterator[str]:
        yield "a/1.jpg"
        raise KeyError("listing")

    with pytest.raises(KeyError, match="listing"):
        assign_labels(parent_directory(), paths())
    with pytest.raises(TypeError, match="paths"):
        assign_labels(parent_directory(), "train/cat/1.jpg")
