"""Show pictures as their files ask for: transposed, then flipped."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Orientation(NamedTuple):
    """How stored pixels become those that are shown.

    Args:
        transposed: whether rows become columns first.
        upside_down: whether the rows are reversed then.
        mirrored: whether the columns are reversed then.
    """

    transposed: bool = False
    upside_down: bool = False
    mirrored: bool = False

    def applied(self, pixels: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the pixels that are shown, in the same memory.

        Args:
            pixels: shape ``(height, width, channels)``.
        """
        shown = pixels.swapaxes(0, 1) if self.transposed else pixels
        return shown[:: -1 if self.upside_down else 1, :: -1 if self.mirrored else 1]


def orientation_of_exif(number: int) -> Orientation:
    """Return the meaning of EXIF's numbers 1 to 8; 1 leaves the pixels as they are stored."""
    # https://www.cipa.jp/std/documents/e/DC-X008-Translation-2019-E.pdf, 4.6.5: in fours, clockwise
    turn = (number - 1) % 4
    return Orientation(number > 4, upside_down=turn >= 2, mirrored=turn in (1, 2))
