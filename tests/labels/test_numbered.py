"""Labellers for numbered images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchdata_remote.errors import LabelError
from torchdata_remote.labels import by_number, ground_truth

IDS = st.lists(st.integers(0, 999), min_size=1, max_size=20)


@given(ids=IDS, number_base=st.integers(0, 3), id_base=st.integers(0, 3))
def test_by_number_of_any_bases(ids: list[int], number_base: int, id_base: int) -> None:
    """Image n, counted from 1, has the key n - 1 + number_base and the label value - id_base."""
    source = {str(i + number_base): label + id_base for i, label in enumerate(ids)}
    labeller = by_number(source, number_base=number_base, id_base=id_base)
    assert [labeller(f"val/ILSVRC2012_val_{n:08d}.JPEG") for n in range(1, len(ids) + 1)] == ids


def test_by_number_counts_images_from_1() -> None:
    """The first image has the key "0" where keys count from 0, and "1" where they count from 1."""
    assert by_number({"0": 490}, number_base=0)("ILSVRC2012_val_00000001.JPEG") == 489
    assert by_number({"1": 490}, number_base=1)("ILSVRC2012_val_00000001.JPEG") == 489


@pytest.mark.parametrize("path", ["1.png", "0001.png", "a/b2/x1.png", "2_1", "x.2.1.png"])
def test_by_number_takes_the_last_digits_of_the_name(path: str) -> None:
    """Neither those of folders, nor those of the extension."""
    assert by_number({"0": 1, "1": 2}, number_base=0)(path) == 0


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("cat.jpg", "no number"),
        ("val_00000001a.jpg", "no number"),
        ("7/cat.jpg", "no number"),
        ("cat.mp4", "no number"),
        ("", "no number"),
        (f"{'0' * 5000}1.jpg", "no number"),
        ("val_٣.jpg", "no number"),
        ("val_00000000.jpg", "key -1"),
        ("val_00000004.jpg", "key 3"),
    ],
)
def test_by_number_of_an_unknown_file_is_an_error(path: str, message: str) -> None:
    """It names the file, and the key that was looked for."""
    with pytest.raises(LabelError) as caught:
        by_number({"0": 1, "1": 1, "2": 1}, number_base=0)(path)
    assert repr(path) in str(caught.value)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"0": 1}, "key '0'"),
        ({"-1": 1}, "key '-1'"),
        ({"a": 1}, "key 'a'"),
        ({"²": 1}, "key '²'"),
        ({"1": 1, "01": 1}, "more than once"),
        ({"1": 0}, "is 0, expected 1"),
        ({"1": "1"}, "expected an int"),
        ({"1": None}, "None"),
        ({"1": True}, "bool"),
        ([1], "list"),
    ],
)
def test_by_number_of_a_source_of_another_form_is_an_error(source: Any, message: str) -> None:
    """So a wrong base shows where it can."""
    with pytest.raises(LabelError) as caught:
        by_number(source, number_base=1)
    assert message in str(caught.value)


@given(ids=IDS, id_base=st.integers(0, 3), ending=st.sampled_from(["", "\n", "\r\n", "\n\n \n"]), crlf=st.booleans())
def test_ground_truth_has_line_i_for_image_i(
    tmp_path_factory: pytest.TempPathFactory, ids: list[int], id_base: int, ending: str, crlf: bool
) -> None:
    """Whatever the line ends; the list of the numbers is as good; the image after the last line is an error."""
    file = tmp_path_factory.mktemp("truth") / "truth.txt"
    numbers = [label + id_base for label in ids]
    file.write_bytes((("\r\n" if crlf else "\n").join(map(str, numbers)) + ending).encode())
    for source in (file, numbers):
        labeller = ground_truth(source, base_name="v_", id_base=id_base)
        assert [labeller(f"a/b/v_{i:08d}.JPEG") for i in range(1, len(ids) + 1)] == ids
        with pytest.raises(LabelError, match=f"line {len(ids) + 1} of"):
            labeller(f"v_{len(ids) + 1:08d}.JPEG")


@pytest.mark.parametrize("path", ["v_00000001.JPEG", "v_00000001.jpeg", "val/v_00000001.Jpeg"])
def test_ground_truth_does_not_mind_folder_and_case(path: str) -> None:
    """Of the extension, that is."""
    assert ground_truth([3], base_name="v_")(path) == 2


@pytest.mark.parametrize(
    "path",
    [
        "v_00000000.JPEG",
        "v_00000002.JPEG",
        "v_000000001.JPEG",
        "v_1.JPEG",
        "V_00000001.JPEG",
        "w_00000001.JPEG",
        "xv_00000001.JPEG",
        "v_00000001.png",
        "v_00000001",
        "v_0000000a.JPEG",
        "v_.JPEG",
        "",
    ],
)
def test_ground_truth_of_an_unknown_file_is_an_error(path: str) -> None:
    """One that has no line, or is called otherwise; the error names it and the source."""
    with pytest.raises(LabelError) as caught:
        ground_truth([3], base_name="v_")(path)
    assert repr(path) in str(caught.value)
    assert "given to ground_truth" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no class numbers"),
        ("\n\n", "no class numbers"),
        ("1\n\n2\n", "line 2 is b''"),
        ("1\n2 3\n", "line 2 is b'2 3'"),
        ("1\n-2\n", "line 2 is b'-2'"),
        ("1\n2\n0\n", "line 3 is 0"),
        ("1\nn02119789\n", "line 2"),
        ("1\n" + "9" * 5000, "line 2"),
    ],
)
def test_ground_truth_of_a_file_of_another_form_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    """It names the file and the line."""
    (tmp_path / "truth.txt").write_text(text)
    with pytest.raises(LabelError) as caught:
        ground_truth(tmp_path / "truth.txt", base_name="v_")
    assert message in str(caught.value)
    assert "truth.txt" in str(caught.value)


@pytest.mark.parametrize("base_name", ["val/v_", None])
def test_ground_truth_wants_the_base_name_alone(base_name: Any) -> None:
    """Folders are not part of it."""
    with pytest.raises(ValueError, match="base_name"):
        ground_truth([1], base_name=base_name)
