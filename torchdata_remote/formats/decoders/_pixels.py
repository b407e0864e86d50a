"""``pixels``: decode images to arrays with all of their bits."""

from __future__ import annotations

import io
import re
from typing import Any

import numpy as np

from ._rgb import has_deep_channels, maxval_of, open_image
from ._turbojpeg import check_size

_SAMPLE_FORMAT = 339
# FFmpeg's names
_FORMATS = {"PNG": "png_pipe", "PPM": "ppm_pipe", "TIFF": "tiff_pipe"}


def pixels(data: bytes) -> np.ndarray[Any, Any]:
    """Decode an image to a NumPy array with all of its bits, as of depth maps, masks, microscopy and satellites.

    Values are those of the file, in its units: a depth map in millimetres stays one. Nothing is scaled, cut off or
    turned, but AVIF of 10 and 12 bits, and BMP of 16 bits per pixel, become 8 bits per channel. 16 bits in more than
    one channel are decoded by PyAV (extra ``[media]``), all else by Pillow. Of several pages or frames, the first.

    Args:
        data: a whole file.

    Returns:
        Shape ``(height, width)`` for one channel, else ``(height, width, channels)``, with alpha as the last one.
        uint8 for 2 to 8 bits, uint16 for 9 to 16 bits, uint32 for 32 bits, float32 for floats, bool for one bit, where
        white is true. Signed integers of TIFF: int8 for 8 bits, int32 for others. Of a palette, the numbers of the
        colours.

    Raises:
        ImportError: if PyAV is needed and cannot be imported.
        ValueError: if the image has more than ``MAX_PIXELS`` pixels.
        OSError: if the data are not an image, or incomplete.

    Example:
        >>> from PIL import Image
        >>> depth = np.array([[0, 4095, 65535]], np.uint16)
        >>> Image.fromarray(depth).save(file := io.BytesIO(), "PNG")
        >>> pixels(file.getvalue())
        array([[    0,  4095, 65535]], dtype=uint16)
    """
    with open_image(data) as opened:
        check_size(*opened.size)
        maxval = maxval_of(opened)
        if maxval not in (0, 0xFF, 0xFFFF):
            # Both libraries scale others to these
            header = b"%b %d %d %d\n" % (data[:2], *opened.size, 0xFF if maxval < 0xFF else 0xFFFF)
            return pixels(header + data[opened.tile[0].offset :])
        if has_deep_channels(opened, data):
            return _by_pyav(data, _FORMATS[str(opened.format)])
        tags = getattr(opened, "tag_v2", {})  # of TIFF
        layout = str(opened.tile[:1])
        opened.load()
        array = np.array(opened)
        if array.dtype.kind in "iu":
            kind = "i" if 2 in tags.get(_SAMPLE_FORMAT, ()) else "u"
            array = array.astype(f"{kind}{min(array.itemsize, 4 if tags else 2)}", copy=False)
        if found := re.search("'L;([24]?)(I?)", layout):
            # Pillow has scaled 2 and 4 bits to 8, and inverted those with a white of 0
            array = (~array if found[2] else array) // {"2": 85, "4": 17, "": 1}[found[1]]
        return array


def _by_pyav(data: bytes, name: str) -> np.ndarray[Any, Any]:
    try:
        import av
    except ImportError as error:
        raise ImportError(
            "PyAV, which decodes 16 bits in more than one channel, cannot be imported: "
            f"pip install 'torchdata_remote[media]'. ({error})"
        ) from error
    with av.open(io.BytesIO(data), format=name) as container:
        frame = next(container.decode(video=0))
        is_gray_alpha = frame.format.name.startswith("ya16")  # of which PyAV makes no array
        array: np.ndarray[Any, Any] = frame.to_ndarray(format="rgba64" if is_gray_alpha else None)
        return array[..., [0, 3]] if is_gray_alpha else array
