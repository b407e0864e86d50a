"""Files of labels: classes.json, ClassInfo.json, meta.mat, numbers of images, and ground truth."""

from __future__ import annotations

import io
import json
import re
import struct
import sys
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import scipy.io  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

from tests.servers.s3 import S3Server
from torchdata_remote import labels
from torchdata_remote.errors import LabelError, ObjectNotFoundError

CLASSES_NAME = labels.CLASSES_NAME
assign_labels = labels.assign_labels
by_number = labels.by_number
classes_json = labels.classes_json
dump_table = labels.dump_table
ground_truth = labels.ground_truth
load_table = labels.load_table
meta_mat = labels.meta_mat


CLASSES = {
    "n02119789": {"id": 1, "name": "kit_fox"},
    "n02100735": {"id": 2, "name": "English_setter"},
    "red_fox": {"id": 3, "name": "red fox"},
}


def refused(call: Any, *arguments: Any, words: str, **options: Any) -> LabelError:
    with pytest.raises(LabelError, match=re.escape(words)) as caught:
        call(*arguments, **options)
    return caught.value


# classes.json


@pytest.mark.parametrize(
    ("path", "label"),
    [
        ("n02119789_17.JPEG", 0),  # as in the train archive's inner archives
        ("n02119789/n02119789_17.JPEG", 0),  # the inner archive's name as a folder
        ("train/n02119789/17.JPEG", 0),
        ("n02100735/images/n02119789/crops/17.JPEG", 0),  # the innermost folder
        ("n02100735/n02119789_17.JPEG", 0),  # the file's own name comes first
        ("n02100735.JPEG", 1),
        ("red_fox_17_a.jpg", 2),  # a key may hold underscores
        ("/red_fox/a", 2),
        ("n02100735/n021197890_17.JPEG", 1),  # a longer name is another
    ],
)
def test_the_class_is_found_by_name_or_folder(path: str, label: int) -> None:
    """By the longest part of the file's name, then by the innermost folder."""
    assert classes_json(CLASSES, id_base=1)(path) == label


@pytest.mark.parametrize("path", ["cat/1.jpg", "n02119789.tar/1.jpg", "N02119789_1.JPEG", "1.jpg", "", "/", "_"])
def test_a_file_of_no_class_is_an_error(path: str) -> None:
    """It names the file and what classes there are."""
    error = refused(classes_json(CLASSES, id_base=1), path, words="none of the 3 classes")
    assert repr(path) in str(error)
    assert "n02119789" in str(error)


@given(st.lists(st.integers(0, 2**31 - 1), unique=True, max_size=9), st.integers(-5, 5))
def test_labels_count_from_0_whatever_the_base(ids: list[int], base: int) -> None:
    """The table's too; the source is not changed."""
    source = {f"c{i}": {"id": i + base, "name": f"class {i}"} for i in ids}
    labeller = classes_json(source, id_base=base)
    assert [labeller(f"c{i}_1.jpg") for i in ids] == ids
    assert labeller.table == {f"c{i}": {"id": i, "name": f"class {i}"} for i in ids}
    assert all(source[f"c{i}"]["id"] == i + base for i in ids)


WRONG_CLASSES: list[tuple[Any, str]] = [
    ({"a": {"id": 2**31 + 1, "name": "a"}}, "expected 1 to 2147483648"),
    ({"a": {"id": True, "name": "a"}}, "bool"),
    ({"a": {"id": 1.0, "name": "a"}}, "float"),
    ({"a": {"name": "a"}}, "id of class 'a' is None"),
    ({"a": {"id": 1}}, "'a' is"),
    ({"a": {"id": 1, "name": 1}}, "'a' is"),
    ({7: {"id": 1, "name": "a"}}, "class 7 is"),
]


@pytest.mark.parametrize(("classes", "words"), WRONG_CLASSES, ids=range(len(WRONG_CLASSES)))
def test_classes_that_cannot_be_used_are_an_error(classes: Any, words: str) -> None:
    refused(classes_json, classes, words=words, id_base=1)


@st.composite
def tables(draw: st.DrawFn) -> dict[str, labels.ClassEntry]:
    """Class tables, also with gaps."""
    ids = draw(st.lists(st.integers(0, 2**31 - 1), unique=True, max_size=9))
    keys = draw(st.lists(st.text(min_size=1, max_size=8), unique=True, min_size=len(ids), max_size=len(ids)))
    return {key: {"id": i, "name": draw(st.text(max_size=8))} for key, i in zip(keys, ids, strict=True)}


@given(tables())
def test_a_table_is_read_back_as_it_was_written(table: dict[str, labels.ClassEntry]) -> None:
    """Sorted by id, for any names."""
    data = dump_table(table)
    loaded = load_table(data, f"memory://a/{CLASSES_NAME}")
    assert loaded == table
    assert [entry["id"] for entry in loaded.values()] == sorted(entry["id"] for entry in table.values())
    assert data.endswith(b"}\n")
    assert dump_table(loaded) == data


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"cat": 0}', b'{"cat": {"id": -1, "name": "cat"}}'])
def test_an_invalid_table_is_an_error_without_the_query_of_its_url(data: bytes) -> None:
    error = refused(
        load_table, data, "https://host/classes.json?X-Amz-Signature=5ec2e7", words="https://host/classes.json"
    )
    assert "5ec2e7" not in f"{error}{error.url}"
    assert error.url == "https://host/classes.json"
    two = {"id": 0, "name": "two"}
    refused(dump_table, {"cat": two, "dog": two}, words="same id")


def test_url_path_and_parsed_object_are_equivalent(tmp_path: Path, memory_folder: str) -> None:
    file = tmp_path / "classes.json"
    file.write_text(json.dumps(CLASSES))
    fsspec.filesystem("memory").pipe(f"{memory_folder}/classes.json", file.read_bytes())
    for source in (CLASSES, file, str(file), f"file://{file}", f"{memory_folder}/classes.json"):
        labeller = classes_json(source, id_base=1)
        assert labeller("n02100735/n02100735_1.JPEG") == 1
        assert labeller.table["n02100735"] == {"id": 1, "name": "English_setter"}


def test_files_in_a_bucket_are_read_with_storage_options(moto: S3Server) -> None:
    """The labeller does not keep them."""
    client, bucket = moto.client(), moto.new_bucket()
    client.put_object(Bucket=bucket, Key="classes.json", Body=json.dumps(CLASSES).encode())
    client.put_object(Bucket=bucket, Key="truth.txt", Body=b"490\n361\n")
    options = moto.storage_options
    by_class = classes_json(f"s3://{bucket}/classes.json", id_base=1, storage_options=options)
    by_line = ground_truth(f"s3://{bucket}/truth.txt", base_name="v_", storage_options=options)
    assert (by_class("n02100735/1.JPEG"), by_line("v_00000002.JPEG")) == (1, 360)
    assert moto.secret not in repr(vars(by_class)) + repr(vars(by_line))
    error = refused(by_class, "cat/1.jpg", words=f"s3://{bucket}/classes.json")
    assert error.url == f"s3://{bucket}/classes.json"
    with pytest.raises(ObjectNotFoundError):
        classes_json(f"s3://{bucket}/other.json", id_base=1, storage_options=options)


TWICE = b'{"a": {"id": 1, "name": "x"}, "a": {"id": 2, "name": "y"}}'


@pytest.mark.parametrize(
    "document",
    [b"", b"{", b"[1]", b"\xff\xfe\xfd", TWICE, b"[" * 100_000],
    ids=["empty", "cut", "list", "no-text", "key-twice", "deep"],
)
def test_an_invalid_document_is_an_error_that_names_it(tmp_path: Path, document: bytes) -> None:
    """A repeated key, of which json keeps the last, is an error too."""
    file = tmp_path / "labels.json"
    file.write_bytes(document)
    assert refused(classes_json, file, words=str(file), id_base=1).url == str(file)
    refused(by_number, file, words="labels.json", number_base=0)


# File name -> number

FILE_NAMES = st.text("aB1_é ", min_size=1, max_size=6).map(lambda stem: f"{stem}.JPEG")


@given(st.dictionaries(FILE_NAMES, st.integers(0, 2**31 - 6), min_size=1), st.sampled_from([None, 0, -5, 1]))
def test_numbers_of_file_names_are_unchanged_without_id_base(numbers: dict[str, int], base: int | None) -> None:
    """For files in any folder."""
    labeller = classes_json({name: number + (base or 0) for name, number in numbers.items()}, id_base=base)
    for name, number in numbers.items():
        assert labeller(f"train/x/{name}") == labeller(name) == number


@pytest.mark.parametrize(
    ("path", "label"),
    [("a/x.jpg", 1), ("b/x.jpg", 2), ("deep/b/x.jpg", 2), ("c/b/x.jpg", 3)],
)
def test_the_longest_matching_path_of_the_source_applies(path: str, label: int) -> None:
    assert classes_json({"a/x.jpg": 1, "./b/x.jpg": 2, "c/b/x.jpg": 3})(path) == label


@pytest.mark.parametrize("path", ["x.jpg", "c/x.jpg", "ax.jpg", "a/x.JPG", ""])
def test_a_file_that_the_source_does_not_name_is_an_error(path: str) -> None:
    assert repr(path) in str(refused(classes_json({"a/x.jpg": 1, "b/x.jpg": 2}), path, words="none of the 2 files"))


def test_two_files_with_one_name_are_an_error() -> None:
    """In one source; the same file in another source, or once more, is not."""
    labeller, words = classes_json({"x.jpg": 1, "y.jpg": 2}), "'a/x.jpg' and 'b/x.jpg' have one name, 'x.jpg'"
    refused(assign_labels, labeller, ["a/x.jpg", "a/y.jpg", "b/x.jpg"], words=words)
    for folder in ("train", "val"):
        labels, table = assign_labels(labeller, [f"{folder}/y.jpg", f"{folder}/x.jpg"])
        assert labels.tolist() == [2, 1]
        assert table == {"1": {"id": 1, "name": "1"}, "2": {"id": 2, "name": "2"}}


WRONG_NUMBERS: list[tuple[Any, str]] = [
    ({"x.jpg": 1, "y.jpg": "2"}, "'y.jpg' is '2'"),
    ({"x.jpg": 1, "y.jpg": True}, "bool"),
    ({"x.jpg": 1, "y.jpg": {"id": 2, "name": "y"}}, "'y.jpg' is"),
    ({"x.jpg": -1}, "is -1, expected 0"),
    ({"x.jpg": 1, "./x.jpg": 1}, "occurs twice"),
]


@pytest.mark.parametrize(("document", "words"), WRONG_NUMBERS, ids=range(len(WRONG_NUMBERS)))
def test_an_invalid_number_of_a_file_is_an_error(document: Any, words: str) -> None:
    refused(classes_json, document, words=words)


def test_a_table_of_classes_does_not_tell_what_it_counts_from() -> None:
    with pytest.raises(TypeError, match="id_base"):
        classes_json({"a": {"id": 1, "name": "a"}})


# meta.mat

FIELDS = ["ILSVRC2012_ID", "WNID", "words", "gloss", "num_children", "children"]
LEAVES: list[tuple[Any, ...]] = [
    (2.0, "n02100735", "English setter, é", "an English breed", 0.0, np.zeros((1, 0))),
    (1.0, "n02119789", "kit fox, Vulpes macrotis", "small grey fox", 0.0, np.zeros((1, 0))),
]
ABOVE = (1001.0, "n00001740", "entity", "that which is", 2.0, np.array([[1.0, 2.0]]))


def mat(rows: list[tuple[Any, ...]], *, name: str = "synsets", compressed: bool = True) -> bytes:
    """A file in the layout of the development kit's meta.mat: a column of structs, numbers as doubles."""
    structs = np.empty((len(rows), 1), dtype=[(field, object) for field in FIELDS])
    for i, row in enumerate(rows):
        structs[i, 0] = row
    file = io.BytesIO()
    scipy.io.savemat(file, {"before": np.eye(3), name: structs, "after": "text"}, do_compression=compressed)
    return file.getvalue()


def table_of(data: bytes) -> dict[str, labels.ClassEntry]:
    """The table of a file."""
    url = "memory://label-files/meta.mat"
    fsspec.filesystem("memory").pipe(url, data)
    return dict(meta_mat(url).table)


FOX, SETTER = {"id": 0, "name": "kit fox, Vulpes macrotis"}, {"id": 1, "name": "English setter, é"}


@pytest.mark.parametrize("rows", [[*LEAVES, ABOVE], [ABOVE, *LEAVES], LEAVES, LEAVES[1:]])
def test_meta_mat_reads_the_leaves(rows: list[Any]) -> None:
    """Numbered by ILSVRC2012_ID, also where numbers are integers; also one struct only."""
    as_int = [tuple(np.uint16(cell) if isinstance(cell, float) else cell for cell in row) for row in rows]
    expected = {"n02119789": FOX, "n02100735": SETTER} if len(rows) > 1 else {"n02119789": FOX}
    assert table_of(mat(rows)) == table_of(mat(as_int, compressed=False)) == expected
    parsed = meta_mat([dict(zip(FIELDS, row, strict=True)) for row in rows])
    assert parsed.table == expected
    assert type(parsed("n02119789/n02119789_17.JPEG")) is int
    assert parsed("n02119789/n02119789_17.JPEG") == 0


def test_without_scipy_the_error_of_meta_mat_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    with pytest.raises(ImportError, match="pip install scipy"):
        table_of(mat(LEAVES))


PLAIN = io.BytesIO()
scipy.io.savemat(PLAIN, {"synsets": np.eye(2)})
NO_MATS = {
    "HDF5": b"MATLAB 7.3 MAT-file".ljust(124) + struct.pack("<H", 0x0200) + b"IM" + bytes(384) + b"\x89HDF",
    "a plain array": PLAIN.getvalue(),
    "noise": b"MATLAB 5.0 MAT-file".ljust(200),
    "another name": mat(LEAVES, name="other"),
    "no leaves": mat([ABOVE]),
    "nothing": b"",
    "cut": mat(LEAVES)[:300],
    "twice": mat([LEAVES[0], LEAVES[0]]),
    "id of 0": mat([(0.0, *LEAVES[0][1:])]),
    "half a number": mat([(2.5, *LEAVES[0][1:])]),
}


@pytest.mark.parametrize("case", NO_MATS)
def test_a_matlab_file_of_another_form_is_an_error(case: str) -> None:
    refused(table_of, NO_MATS[case], words="meta.mat")


def test_a_source_of_another_kind_is_an_error() -> None:
    for function, options in ((meta_mat, {}), (ground_truth, {"base_name": "v_"}), (by_number, {"number_base": 0})):
        refused(function, 3, words=f"given to {function.__name__}", **options)


# Numbered images

IDS = st.lists(st.integers(0, 999), min_size=1, max_size=20)


@given(ids=IDS, number_base=st.integers(0, 3), id_base=st.integers(0, 3))
def test_images_are_numbered_from_1_whatever_the_bases(ids: list[int], number_base: int, id_base: int) -> None:
    """Image n has the key n - 1 + number_base and the label value - id_base, by default from 1."""
    source = {str(i + number_base): label + id_base for i, label in enumerate(ids)}
    labeller = by_number(source, number_base=number_base, id_base=id_base)
    assert [labeller(f"val/ILSVRC2012_val_{n:08d}.JPEG") for n in range(1, len(ids) + 1)] == ids
    assert by_number({"0": 490}, number_base=0)("ILSVRC2012_val_00000001.JPEG") == 489


@pytest.mark.parametrize("path", ["1.png", "0001.png", "a/b2/x1.png", "2_1", "x.2.1.png"])
def test_the_last_digits_of_the_name_are_the_number(path: str) -> None:
    """Neither those of folders, nor those of the extension."""
    assert by_number({"0": 1, "1": 2}, number_base=0)(path) == 0


UNKNOWN = ["cat.jpg", "val_00000001a.jpg", "7/cat.jpg", "cat.mp4", "", f"{'0' * 5000}1.jpg", "val_٣.jpg"]
UNKNOWN += ["val_00000000.jpg", "val_00000004.jpg"]


@pytest.mark.parametrize("path", UNKNOWN, ids=range(len(UNKNOWN)))
def test_an_image_without_a_known_number_is_an_error(path: str) -> None:
    """It names the file, and the key that was looked for."""
    words = {"val_00000000.jpg": "key -1", "val_00000004.jpg": "key 3"}.get(path, "no number")
    error = refused(by_number({"0": 1, "1": 1, "2": 1}, number_base=0), path, words=words)
    assert repr(path) in str(error)


WRONG_SOURCES: list[tuple[Any, str]] = [
    *(({key: 1}, f"key '{key}'") for key in ("0", "-1", "a", "²")),
    ({"1": 1, "01": 1}, "more than once"),
    ({"1": 0}, "is 0, expected 1"),
    *(({"1": value}, words) for value, words in (("1", "expected an int"), (None, "None"), (True, "bool"))),
    ([1], "list"),
]


@pytest.mark.parametrize(("source", "words"), WRONG_SOURCES, ids=range(len(WRONG_SOURCES)))
def test_numbers_of_another_form_are_an_error(source: Any, words: str) -> None:
    """So a wrong base shows where it can."""
    refused(by_number, source, words=words, number_base=1)


@given(ids=IDS, id_base=st.integers(0, 3), ending=st.sampled_from(["", "\n", "\r\n", "\n\n \n"]), crlf=st.booleans())
def test_line_n_of_the_ground_truth_is_image_n(ids: list[int], id_base: int, ending: str, crlf: bool) -> None:
    """Whatever the line ends; the list of the numbers is as good; the image after the last line is an error."""
    numbers = [label + id_base for label in ids]
    text = ("\r\n" if crlf else "\n").join(map(str, numbers)) + ending
    fsspec.filesystem("memory").pipe("memory://label-files/truth.txt", text.encode())
    for source in ("memory://label-files/truth.txt", numbers, np.array(numbers)):
        labeller = ground_truth(source, base_name="v_", id_base=id_base)
        assert [labeller(f"a/b/v_{i:08d}.JPEG") for i in range(1, len(ids) + 1)] == ids
        assert labeller("v_00000001.jpeg") == ids[0]
        refused(labeller, f"v_{len(ids) + 1:08d}.JPEG", words=f"line {len(ids) + 1} of")


OTHER_IMAGES = [
    "v_00000000.JPEG",
    "v_00000002.JPEG",
    "v_000000001.JPEG",
    "v_1.JPEG",
    "V_00000001.JPEG",
    "w_00000001.JPEG",
]
OTHER_IMAGES += ["xv_00000001.JPEG", "v_00000001.png", "v_00000001", "v_0000000a.JPEG", "v_.JPEG", ""]


@pytest.mark.parametrize("path", OTHER_IMAGES)
def test_an_image_without_a_line_is_an_error(path: str) -> None:
    """Or one that is called otherwise; the error names it and the source."""
    assert repr(path) in str(refused(ground_truth([3], base_name="v_"), path, words="given to ground_truth"))


WRONG_TRUTHS = [("", "no class numbers"), ("\n\n", "no class numbers"), ("1\n\n2\n", "line 2 is b''")]
WRONG_TRUTHS += [("1\n2 3\n", "line 2 is b'2 3'"), ("1\n-2\n", "line 2 is b'-2'"), ("1\n2\n0\n", "line 3 is 0")]
WRONG_TRUTHS += [("1\nn02119789\n", "line 2"), ("1\n" + "9" * 5000, "line 2")]


@pytest.mark.parametrize(("text", "words"), WRONG_TRUTHS, ids=range(len(WRONG_TRUTHS)))
def test_a_ground_truth_of_another_form_is_an_error(tmp_path: Path, text: str, words: str) -> None:
    """It names the file and the line."""
    (tmp_path / "truth.txt").write_text(text)
    assert "truth.txt" in str(refused(ground_truth, tmp_path / "truth.txt", words=words, base_name="v_"))
    with pytest.raises(ValueError, match="base_name"):
        ground_truth([1], base_name="val/v_")
