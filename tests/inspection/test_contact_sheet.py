"""Pictures in a grid."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageFont

from torchdata_remote.inspection.contact_sheet import Cell, contact_sheet, shorten

RED, BLUE = (255, 0, 0), (0, 0, 255)


@given(num_cells=st.integers(1, 30), num_columns=st.integers(1, 12), cell_pixels=st.integers(16, 120))
def test_contact_sheet_has_a_cell_for_each_image(num_cells: int, num_columns: int, cell_pixels: int) -> None:
    """All images are drawn, in rows of equal cells, with a white margin."""
    cells: list[Cell] = [(Image.new("RGB", (cell_pixels, cell_pixels), RED), "") for _ in range(num_cells)]
    sheet = np.asarray(contact_sheet(cells, num_columns=num_columns, cell_pixels=cell_pixels))
    columns = min(num_columns, num_cells)
    red = (sheet == RED).all(axis=2)
    assert red.sum() == num_cells * cell_pixels**2
    assert len(np.unique(np.flatnonzero(red.any(axis=0)))) == columns * cell_pixels
    assert len(np.unique(np.flatnonzero(red.any(axis=1)))) == math.ceil(num_cells / columns) * cell_pixels
    border = [sheet[0], sheet[-1], sheet[:, 0], sheet[:, -1]]
    assert all((edge == 255).all() for edge in border)


@pytest.mark.parametrize("size", [(400, 100), (100, 400), (50, 50), (2, 1), (1, 3000), (3000, 1)])
def test_images_keep_their_shape_and_are_centred(size: tuple[int, int]) -> None:
    """As large as the cell allows, whether larger or smaller before."""
    sheet = np.asarray(contact_sheet([(Image.new("RGB", size, BLUE), "")], num_columns=1, cell_pixels=100))
    rows, columns = np.nonzero((sheet == BLUE).all(axis=2))
    height, width = int(np.ptp(rows)) + 1, int(np.ptp(columns)) + 1
    scale = 100 / max(size)
    assert (width, height) == (max(1, round(size[0] * scale)), max(1, round(size[1] * scale)))
    assert abs(columns.min() + columns.max() + 1 - sheet.shape[1]) <= 1
    assert abs(rows.min() + rows.max() + 1 - 2 * (6 + 50)) <= 1


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGBA", "CMYK", "LA"])
def test_contact_sheet_draws_any_image_mode(mode: str) -> None:
    """An image that is not RGB is drawn as well."""
    contact_sheet([(Image.new(mode, (10, 10)), "a")], num_columns=1)


@given(text=st.text(max_size=80), most_pixels=st.integers(40, 300))
def test_shorten_fits_the_width_on_one_line(text: str, most_pixels: int) -> None:
    """Never wider than allowed, on one line; one that fits is left alone, a cut one ends in dots."""
    font = ImageFont.load_default(14)
    assert isinstance(font, ImageFont.FreeTypeFont)
    fitting = shorten(text, font, most_pixels)
    assert font.getlength(fitting) <= most_pixels
    assert "\n" not in fitting
    plain = "".join(character if character.isprintable() else " " for character in text).strip()
    assert fitting == plain or (fitting.endswith("...") and plain.startswith(fitting[:-3]))
    assert fitting == plain or font.getlength(plain) > most_pixels


def test_labels_are_drawn_below_their_images() -> None:
    """Dark letters under the first image, none under the second; the same picture each time."""
    blank = Image.new("RGB", (100, 100), BLUE)
    sheet = contact_sheet([(blank, "kit fox"), (blank, "")], num_columns=2, cell_pixels=100)
    dark = np.asarray(sheet).max(axis=2) < 100
    rows, columns = np.nonzero(dark)
    assert 106 <= rows.min() < rows.max() < 126
    assert 6 <= columns.min() < columns.max() < 106
    again = contact_sheet([(blank, "kit fox"), (blank, "")], num_columns=2, cell_pixels=100)
    assert again.tobytes() == sheet.tobytes()


def test_missing_image_is_a_crossed_cell() -> None:
    """And its label; the others are drawn."""
    sheet = np.asarray(contact_sheet([(None, "a"), (Image.new("RGB", (9, 9), RED), "b")], num_columns=2))
    assert (sheet == (160, 160, 166)).all(axis=2).sum() > 100
    assert (sheet == RED).all(axis=2).sum() == 160 * 160


@pytest.mark.parametrize(
    ("num_cells", "num_columns", "cell_pixels"), [(0, 1, 100), (1, 0, 100), (1, 1, 15), (1000, 100, 4000)]
)
def test_contact_sheet_of_impossible_size_is_refused(num_cells: int, num_columns: int, cell_pixels: int) -> None:
    """Nothing at all, no column, too small, too large: an error, before memory is taken."""
    cells: list[Cell] = [(None, "")] * num_cells
    with pytest.raises(ValueError, match="pixels"):
        contact_sheet(cells, num_columns=num_columns, cell_pixels=cell_pixels)
