"""Tracebacks that show a user's own lines: the frames of this package, of torch and of torchdata are left out."""

from __future__ import annotations

import logging
import os
import sys
from types import TracebackType

from ..errors import RemoteDataError

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_OF_OBSTORE = "\n\nDebug source:"  # what obstore says for its developers
_log = logging.getLogger("torchdata_remote")


def brief(error: Exception) -> Exception:
    """Shorten the traceback of an error that leaves a pass, and those of its causes; the last frame of each stays.

    Only of the package's own errors, which say what happened, and of those of a user's functions. The whole traceback
    is logged at level DEBUG.
    """
    if isinstance(error, RemoteDataError) or not _is_left_out(_frames(error.__traceback__)[-1]):
        _log.debug("The whole traceback of an error:", exc_info=error)
        one: BaseException | None = error
        known = set[int]()
        while one is not None and id(one) not in known:
            known.add(id(one))
            one.__traceback__ = _shortened(one.__traceback__)
            if len(one.args) == 1 and isinstance(one.args[0], str):
                one.args = (one.args[0].partition(_OF_OBSTORE)[0],)
            one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
    return error


def _frames(traceback: TracebackType | None) -> list[TracebackType]:
    frames = []
    while traceback is not None:
        frames.append(traceback)
        traceback = traceback.tb_next
    return frames


def _is_left_out(traceback: TracebackType) -> bool:
    file = traceback.tb_frame.f_code.co_filename
    packages = (getattr(sys.modules.get(name), "__file__", None) for name in ("torch", "torchdata"))
    return file.startswith((_PACKAGE + os.sep, *(os.path.dirname(one) + os.sep for one in packages if one)))


def _shortened(traceback: TracebackType | None) -> TracebackType | None:
    frames, kept = _frames(traceback), None
    for one in reversed(frames):
        if one is frames[-1] or not _is_left_out(one):
            kept = TracebackType(kept, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return kept
