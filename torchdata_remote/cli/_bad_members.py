"""How a command line says what becomes of members that cannot be part of a sample."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

from ..errors import BadMemberError
from ..formats.error_policy import OnBadMember, raise_error, skip_with_warning
from ._shared import printable, say

CHOICES = "raise|skip"
HELP = (
    "what becomes of a member that cannot be part of a sample, such as README: stop (default: raise), or leave it out, "
    "say so, and count it"
)


def bad_member_choice(value: Any) -> str:
    """One of the choices."""
    if value not in CHOICES.split("|"):
        raise argparse.ArgumentTypeError(f"expected raise or skip, got {value!r}")
    return str(value)


class SkipAndCount:
    """Leave bad members out; the first one of each archive is shown."""

    def __init__(self) -> None:
        self._numbers: Counter[str] = Counter()

    def __call__(self, error: BadMemberError) -> None:
        skip_with_warning(error)
        self._numbers[str(error.reason)] += 1

    def say_total(self) -> None:
        """Print a line for each reason."""
        for reason, number in self._numbers.items():
            say(f"{number:>10,} members left out: {printable(reason)}")


def policy_of(choice: str) -> tuple[OnBadMember, SkipAndCount]:
    """The policy that was chosen, and what counts for it."""
    counting = SkipAndCount()
    return (counting if choice == "skip" else raise_error), counting
