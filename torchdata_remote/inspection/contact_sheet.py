"""Draw images in a grid, each with a label below."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont

from ..formats.decoders import rgb

_PAGE, _FRAME, _TEXT, _PALE = (255, 255, 255), (238, 238, 240), (32, 33, 36), (160, 160, 166)
_ELLIPSIS = "..."  # three dots, which every font has
_MIN_FONT_PIXELS, _MAX_FONT_PIXELS = 10, 22
_MAX_SHEET_PIXELS = 1 << 26

Cell = tuple[Image.Image | None, str]


def contact_sheet(cells: Sequence[Cell], *, num_columns: int, cell_pixels: int = 160) -> Image.Image:
    """Draw images in a grid, scaled into square cells and centred, with a label under each.

    Args:
        cells: image and label; ``None`` where the image cannot be shown.
        num_columns: cells in a row.
        cell_pixels: side of a cell without margin and label.

    Returns:
        An RGB image, as wide as the columns that are used.

    Raises:
        ValueError: if there is nothing to draw, or the picture would have more than 67 million pixels.

    Example:
        >>> cells = [(Image.new("RGB", (300, 200), "green"), "grass"), (None, "not an image")]
        >>> contact_sheet(cells, num_columns=2, cell_pixels=100).size
        (218, 128)
    """
    if not cells or num_columns < 1 or cell_pixels < 16:
        raise ValueError(
            f"A contact sheet needs at least one image, one column and cells of 16 pixels; got {len(cells)} images, "
            f"num_columns={num_columns}, cell_pixels={cell_pixels}."
        )
    columns = min(num_columns, len(cells))
    rows = -(-len(cells) // columns)
    margin = max(4, cell_pixels // 16)
    font_pixels = min(_MAX_FONT_PIXELS, max(_MIN_FONT_PIXELS, cell_pixels // 9))
    font = ImageFont.load_default(font_pixels)
    label_pixels = font_pixels * 3 // 2
    width = columns * (cell_pixels + margin) + margin
    height = rows * (cell_pixels + label_pixels + margin) + margin
    if width * height > _MAX_SHEET_PIXELS:
        raise ValueError(
            f"{rows} x {columns} cells of {cell_pixels} pixels make a picture of {width:,} x {height:,}, more than "
            f"{_MAX_SHEET_PIXELS:,} pixels. Show fewer images, or use smaller cells."
        )
    sheet = Image.new("RGB", (width, height), _PAGE)
    draw = ImageDraw.Draw(sheet)
    for number, (image, label) in enumerate(cells):
        row, column = divmod(number, columns)
        left = margin + column * (cell_pixels + margin)
        top = margin + row * (cell_pixels + label_pixels + margin)
        draw.rectangle((left, top, left + cell_pixels - 1, top + cell_pixels - 1), fill=_FRAME)
        if image is None:
            _draw_cross(draw, left, top, cell_pixels)
        else:
            scaled = _scaled(image, cell_pixels)
            sheet.paste(scaled, (left + (cell_pixels - scaled.width) // 2, top + (cell_pixels - scaled.height) // 2))
        middle = (left + cell_pixels / 2, top + cell_pixels + label_pixels / 2)
        draw.text(middle, shorten(label, font, cell_pixels), fill=_TEXT, font=font, anchor="mm")
    return sheet


def thumbnail(data: bytes | None, cell_pixels: int) -> Image.Image | None:
    """Decode an image and shrink it to fit a cell; ``None`` if the data are missing or not an image."""
    if not data:
        return None
    try:
        image = rgb(data, min_size=cell_pixels)
    except Exception:  # noqa: BLE001  # Pillow raises nearly anything for damaged images
        return None
    image.thumbnail((cell_pixels, cell_pixels), Image.Resampling.LANCZOS)
    return image


def _scaled(image: Image.Image, cell_pixels: int) -> Image.Image:
    """As large as the cell allows; tiny images, such as digits of 8 pixels, keep their square pixels."""
    scale = min(cell_pixels / image.width, cell_pixels / image.height)
    size = max(1, round(image.width * scale)), max(1, round(image.height * scale))
    method = Image.Resampling.NEAREST if scale >= 4 else Image.Resampling.LANCZOS
    return image.convert("RGB").resize(size, method, reducing_gap=3.0)


def _draw_cross(draw: ImageDraw.ImageDraw, left: int, top: int, cell_pixels: int) -> None:
    inset = cell_pixels // 3
    first, last = inset, cell_pixels - 1 - inset
    for start, end in (((first, first), (last, last)), ((first, last), (last, first))):
        line = (left + start[0], top + start[1], left + end[0], top + end[1])
        draw.line(line, fill=_PALE, width=max(2, cell_pixels // 40))


def shorten(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, max_pixels: int) -> str:
    """Shorten a text to one line of at most ``max_pixels``, with an ellipsis where it was cut.

    Line breaks and unprintable characters become spaces.
    """
    text = "".join(character if character.isprintable() else " " for character in text[:1000]).strip()
    if font.getlength(text) <= max_pixels:
        return text
    least, most = 0, len(text)  # characters that fit, by bisection
    while least < most:
        middle = (least + most + 1) // 2
        if font.getlength(text[:middle].rstrip() + _ELLIPSIS) <= max_pixels:
            least = middle
        else:
            most = middle - 1
    return text[:least].rstrip() + _ELLIPSIS
