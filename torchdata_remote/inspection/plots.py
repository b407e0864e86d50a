"""What all plots share: colours, the check before a long run, and writing the file. matplotlib is optional."""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING

from ..errors import RemoteDataError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 100
# Okabe and Ito's palette, which colour-blind readers can tell apart
COLOURS = {"list": "#cc79a7", "fetch": "#0072b2", "read": "#009e73", "decode": "#e69f00", "rest": "#b3b3b3"}


def require_plot(path: str) -> None:
    """Raise unless a plot can be drawn and written to a file; to be called before the work that it shows.

    Raises:
        RemoteDataError: if matplotlib is missing, the file's folder does not exist, or its format is unknown.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise RemoteDataError("--plot needs matplotlib: pip install 'torchdata_remote[plot]'") from error
    folder, name = os.path.split(os.path.abspath(path))
    extension = os.path.splitext(name)[1].lower().removeprefix(".")
    known = Figure().canvas.get_supported_filetypes()
    if extension not in known:
        raise RemoteDataError(
            f"{path}: no picture format has the extension {extension!r}. Use a name such as out.png; known are "
            f"{', '.join(sorted(known))}."
        )
    if not os.path.isdir(folder):
        raise RemoteDataError(f"{path}: the folder {folder} does not exist. Create it, or write elsewhere.")
    if not os.access(path if os.path.exists(path) else folder, os.W_OK) or os.path.isdir(path):
        raise RemoteDataError(f"{path}: no file can be written there. Write elsewhere.")


def save_plot(figure: Figure, path: str) -> None:
    """Write a figure to a file, in the format of its extension.

    Raises:
        RemoteDataError: if it cannot be written.
    """
    try:
        with warnings.catch_warnings():
            # Names may have characters that the font does not: they are drawn as boxes
            warnings.filterwarnings("ignore", "Glyph", UserWarning)
            figure.savefig(path)
    except (OSError, ValueError) as error:
        raise RemoteDataError(f"{path}: the picture cannot be written: {error}") from error


def shortened(text: str, max_characters: int) -> str:
    """Shorten a text in its middle.

    Example:
        >>> shortened("s3://bucket/a/long/path/train/", 20)
        's3://bucke.../train/'
    """
    if len(text) <= max_characters:
        return text
    kept = max_characters - 3
    return f"{text[: kept - kept // 2 + 1]}...{text[len(text) - kept // 2 + 1 :]}"
