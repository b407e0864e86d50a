"""Labellers that know their classes."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote.errors import LabelError
from torchdata_remote.labels import classes_json, meta_mat

CLASSES = {
    "n02119789": {"id": 1, "name": "kit_fox"},
    "n02100735": {"id": 2, "name": "English_setter"},
    "red_fox": {"id": 3, "name": "red fox"},
}


@pytest.mark.parametrize(
    ("path", "label"),
    [
        ("n02119789_17.JPEG", 0),  # as in the train archive's inner archives
        ("n02119789/n02119789_17.JPEG", 0),  # the inner archive's name as a folder
        ("train/n02119789/17.JPEG", 0),
        ("n02100735/images/n02119789/crops/17.JPEG", 0),  # the innermost folder
        ("n02100735/n02119789_17.JPEG", 0),  # the file's own name comes first
        ("n02100735.JPEG", 1),
        ("red_fox.jpg", 2),
        ("red_fox_17_a.jpg", 2),  # a key may hold underscores
        ("/red_fox/a", 2),
        ("n02100735/n021197890_17.JPEG", 1),  # a longer name is another
    ],
)
def test_the_class_is_found_by_name_or_folder(path: str, label: int) -> None:
    """By the longest part of the file's name, then by the innermost folder."""
    assert classes_json(CLASSES, id_base=1)(path) == label


@pytest.mark.parametrize("path", ["cat/1.jpg", "n02119789.tar/1.jpg", "N02119789_1.JPEG", "1.jpg", "", "/", "_"])
def test_an_unknown_file_is_an_error(path: str) -> None:
    """It names the file and what classes there are."""
    with pytest.raises(LabelError, match="none of the 3 classes") as caught:
        classes_json(CLASSES, id_base=1)(path)
    assert repr(path) in str(caught.value)
    assert "n02119789" in str(caught.value)


@given(st.lists(st.integers(0, 2**31 - 1), unique=True, max_size=9), st.integers(-5, 5))
def test_labels_count_from_0_whatever_the_base(ids: list[int], base: int) -> None:
    """The table's too; the source is not changed."""
    source = {f"c{i}": {"id": i + base, "name": f"class {i}"} for i in ids}
    labeller = classes_json(source, id_base=base)
    assert [labeller(f"c{i}_1.jpg") for i in ids] == ids
    assert labeller.table == {f"c{i}": {"id": i, "name": f"class {i}"} for i in ids}
    assert all(source[f"c{i}"]["id"] == i + base for i in ids)


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ({"a": {"id": 0, "name": "a"}}, "is 0, expected 1 to 2147483648"),
        ({"a": {"id": 2**31 + 1, "name": "a"}}, "expected 1 to 2147483648"),
        ({"a": {"id": 1, "name": "a"}, "b": {"id": 1, "name": "b"}}, "'a' and 'b' have the same id, 1"),
        ({"a": {"id": "1", "name": "a"}}, "expected an int"),
        ({"a": {"id": True, "name": "a"}}, "bool"),
        ({"a": {"id": 1.0, "name": "a"}}, "float"),
        ({"a": {"name": "a"}}, "id of class 'a' is None"),
        ({"a": {"id": 1}}, "'a' is"),
        ({"a": {"id": 1, "name": 1}}, "'a' is"),
        ({"a": 1}, "'a' is 1"),
        ({"": {"id": 1, "name": "a"}}, "key"),
        ({7: {"id": 1, "name": "a"}}, "7 is the key"),
        (["a"], "list"),
    ],
)
def test_classes_that_cannot_be_used_are_an_error(classes: Any, message: str) -> None:
    """It names the class and what is wrong with it."""
    with pytest.raises(LabelError) as caught:
        classes_json(classes, id_base=1)
    assert message in str(caught.value)


FIELDS = ["ILSVRC2012_ID", "WNID", "words", "gloss", "num_children", "children", "wordnet_height", "num_train_images"]
LEAVES = [
    (1.0, "n02119789", "kit fox, Vulpes macrotis", "small grey fox", 0.0, np.zeros((1, 0)), 0.0, 1300.0),
    (2.0, "n02100735", "English setter", "an English breed", 0.0, np.zeros((1, 0)), 0.0, 1300.0),
]
ABOVE = (1001.0, "n00001740", "entity", "that which is", 2.0, np.array([[1.0, 2.0]]), 1.0, 0.0)


def mat_bytes(rows: list[tuple[Any, ...]], *, name: str = "synsets", compressed: bool = True) -> bytes:
    """A file in the layout of the development kit's meta.mat: a column of structs, numbers as doubles."""
    structs = np.empty((len(rows), 1), dtype=[(field, object) for field in FIELDS])
    for i, row in enumerate(rows):
        structs[i, 0] = row
    file = io.BytesIO()
    scipy.io.savemat(file, {name: structs}, do_compression=compressed)
    return file.getvalue()


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("rows", [[*LEAVES, ABOVE], [ABOVE, *LEAVES], LEAVES, LEAVES[:1]])
def test_meta_mat_reads_the_leaves(tmp_path: Path, rows: list[tuple[Any, ...]], compressed: bool) -> None:
    """Also where there is one struct only, which scipy makes no array of."""
    (tmp_path / "meta.mat").write_bytes(mat_bytes(rows, compressed=compressed))
    labeller = meta_mat(tmp_path / "meta.mat")
    assert labeller.table["n02119789"] == {"id": 0, "name": "kit fox, Vulpes macrotis"}
    assert labeller("n02119789/n02119789_17.JPEG") == 0
    assert type(labeller("n02119789/n02119789_17.JPEG")) is int
    assert "n00001740" not in labeller.table
    assert len(labeller.table) == len([row for row in rows if row in LEAVES])


def test_meta_mat_takes_integers_and_rows(tmp_path: Path) -> None:
    """Numbers need not be doubles; rows read by other means are as good, and need no scipy."""
    as_int = [tuple(np.uint16(cell) if isinstance(cell, float) else cell for cell in row) for row in LEAVES]
    (tmp_path / "meta.mat").write_bytes(mat_bytes(as_int))
    rows = [dict(zip(FIELDS, row, strict=True)) for row in [*LEAVES, ABOVE]]
    assert meta_mat(str(tmp_path / "meta.mat")).table == meta_mat(rows).table


def test_meta_mat_numbers_as_ilsvrc_does() -> None:
    """By ILSVRC2012_ID, not by the order of the rows or the WNIDs."""
    rows = [dict(zip(FIELDS, row, strict=True)) for row in reversed(LEAVES)]
    assert meta_mat(rows)("n02100735_1.JPEG") == 1


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a MATLAB file"),
        (b"{}", "not a MATLAB file"),
        (mat_bytes(LEAVES)[:300], "not a MATLAB file"),
        (b"\x80\x04\x95\x00cos\nsystem\n.", "not a MATLAB file"),
        (mat_bytes(LEAVES, name="other"), "without synsets"),
        (mat_bytes([]), "no classes"),
        (mat_bytes([ABOVE]), "no classes"),
        (mat_bytes([LEAVES[0], LEAVES[0]]), "'n02119789'"),
        (mat_bytes([LEAVES[0], (1.0, *LEAVES[1][1:])]), "same id"),
        (mat_bytes([(0.0, *LEAVES[0][1:])]), "is 0, expected 1"),
        (mat_bytes([(1.5, *LEAVES[0][1:])]), "1.5"),
        (mat_bytes([(1.0, 7.0, *LEAVES[0][2:])]), "WNID"),
        (mat_bytes([(1.0, "n1", 7.0, *LEAVES[0][3:])]), "'n1'"),
        (mat_bytes([(*LEAVES[0][:4], np.zeros((0, 0)), *LEAVES[0][5:])]), "num_children"),
    ],
)
def test_meta_mat_of_another_form_is_an_error(tmp_path: Path, data: bytes, message: str) -> None:
    """It names the file and what is wrong; nothing is unpickled."""
    (tmp_path / "meta.mat").write_bytes(data)
    with pytest.raises(LabelError) as caught:
        meta_mat(tmp_path / "meta.mat")
    assert message in str(caught.value)
    assert "meta.mat" in str(caught.value)


def test_meta_mat_without_structs_is_an_error(tmp_path: Path) -> None:
    """Another MATLAB file, in which synsets is a plain array."""
    scipy.io.savemat(tmp_path / "meta.mat", {"synsets": np.eye(2)})
    with pytest.raises(LabelError, match="WNID"):
        meta_mat(tmp_path / "meta.mat")


def test_scipy_is_not_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It crashes the interpreter on damaged files."""
    (tmp_path / "meta.mat").write_bytes(mat_bytes(LEAVES))
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    assert meta_mat(tmp_path / "meta.mat")("n02119789_1.JPEG") == 0
