"""``pixels``: decode images to arrays with all of their bits."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from ._rgb import has_deep_channels, maxval_of, open_image
from ._turbojpeg import check_size

# FFmpeg's names
_FORMATS = {"PNG": "png_pipe", "PPM": "ppm_pipe", "TIFF": "tiff_pipe"}


def pixels(data: bytes) -> np.ndarray[Any, Any]:
    """Decode an image to a NumPy array with all of its bits, as of depth maps, masks, microscopy and satellites.

    Values are those of the file, in its units: a depth map in millimetres stays one. Nothing is scaled, cut off or
    turned. AVIF of 10 and 12 bits becomes 8 bits. 16 bits in more than one channel are decoded by PyAV (extra
    ``[media]``), all else by Pillow.

    Args:
        data: a whole file.

    Returns:
        Shape ``(height, width)`` for one channel, else ``(height, width, channels)``, with alpha as the last one.
        uint8 for 2 to 8 bits, uint16 for 9 to 16 bits, float32 for floats, int32 for integers of 32 bits, bool for one
        bit. Of a palette, the numbers of the colours.

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
        if has_deep_channels(opened, data):
            array = _by_pyav(data, _FORMATS[str(opened.format)])
        else:
            is_wide = opened.format == "TIFF" and opened.mode == "I"
            opened.load()
            array = np.array(opened)
            if opened.mode.startswith("I") and not is_wide:
                array = array.astype(np.uint16)
    if maxval > 0xFF:
        # Both libraries scale them to 65535
        array = np.rint(array * (maxval / 0xFFFF)).astype(np.uint16)
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
        array: np.ndarray[Any, Any] = next(container.decode(video=0)).to_ndarray()
        return array
