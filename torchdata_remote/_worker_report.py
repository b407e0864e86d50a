"""Read the message of an exception that torch has rebuilt from the report of a worker."""

from __future__ import annotations

import re

NOTE_OF_PIPE = "\nThis exception is thrown by __iter__ of "
"""What torch appends to the message of an exception that leaves a pipe."""

_REPORT = re.compile(r"Caught \w+ [^\n]*\.\nOriginal (?=Traceback \(most recent call last\):\n)")
_HEADING = "Traceback (most recent call last):\n"


def split_report(message: object) -> tuple[str, str] | None:
    r"""Split the message of an exception that torch has rebuilt.

    Args:
        message: of the exception.

    Returns:
        tuple[str, str] | None: the error of the worker, as in ``"ValueError: message"``, without the note of a pipe;
        and the worker's traceback. ``None`` for other messages.

    Example:
        >>> start = "Caught ValueError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
        >>> split_report(start + '  File "a.py", line 1, in read\nValueError: no label')[0]
        'ValueError: no label'
    """
    start = _REPORT.match(message) if isinstance(message, str) else None
    if start is None:
        return None
    traceback = str(message)[start.end() :]
    lines = traceback.rpartition(_HEADING)[2].splitlines()
    # Frames are indented
    first = next((number for number, line in enumerate(lines) if line[:1] not in ("", " ")), len(lines))
    return "\n".join(lines[first:]).partition(NOTE_OF_PIPE)[0], traceback
