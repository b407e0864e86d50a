"""What all plots share: colours, the check before a long run, and writing the file. matplotlib is optional."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..core.files import replaced, require_replaceable
from ..errors import RemoteDataError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 100
_BACKEND = "MPLBACKEND"
_NEED_LATEX = {"pgf"}
# Okabe and Ito's palette, which colour-blind readers can tell apart
COLOURS = {"list": "#cc79a7", "fetch": "#0072b2", "read": "#009e73", "decode": "#e69f00", "rest": "#b3b3b3"}


def require_plot(path: str) -> None:
    """Raise unless a plot can be drawn and written to a file; to be called before the work that it shows.

    Raises:
        RemoteDataError: if matplotlib is missing or cannot be imported, the file's folder does not exist, or its format
            is unknown.
    """
    # Plots have a canvas of their own. matplotlib cannot be imported where this names a backend that it does not know
    backend = os.environ.pop(_BACKEND, None)
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise RemoteDataError("--plot needs matplotlib: pip install 'torchdata_remote[plot]'") from error
    except Exception as error:  # such as of a library that it needs, or of a configuration file
        raise RemoteDataError(f"--plot: matplotlib cannot be imported: {type(error).__name__}: {error}") from error
    finally:
        if backend is not None:
            os.environ[_BACKEND] = backend
    extension = os.path.splitext(path)[1].lower().removeprefix(".")
    known = Figure().canvas.get_supported_filetypes().keys() - _NEED_LATEX
    if extension not in known:
        raise RemoteDataError(
            f"{path}: no picture format has the extension {extension!r}. Use a name such as out.png; known are "
            f"{', '.join(sorted(known))}."
        )
    require_replaceable(path)


@contextlib.contextmanager
def plain_text() -> Iterator[None]:
    """Draw text in this block without LaTeX, whatever the user's ``matplotlibrc`` says: names are no LaTeX."""
    from matplotlib import rc_context

    with rc_context({"text.usetex": False}):
        yield


def save_plot(figure: Figure, path: str) -> None:
    """Write a figure to a file, in the format of its extension. An existing file is replaced when it is complete.

    Raises:
        RemoteDataError: if it cannot be written.
    """
    try:
        with warnings.catch_warnings(), plain_text(), replaced(path) as partial:
            # Names may have characters that the font does not: they are drawn as boxes
            warnings.filterwarnings("ignore", "Glyph", UserWarning)
            figure.savefig(partial)
    except (OSError, RuntimeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RemoteDataError(f"{path}: the picture cannot be written: {reason}") from error


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
