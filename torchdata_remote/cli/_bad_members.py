"""The option ``--on-bad-member``."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any

from ..errors import BadMemberError
from ..formats.error_policy import OnBadMember, raise_error, skip_with_warning
from ._shared import print_line, printable

CHOICES = "raise|skip"
HELP = (
    "what to do with a member that cannot be part of a sample, such as README: stop (default: raise), or leave it out "
    "with a warning and count it"
)


def bad_member_choice(value: Any) -> str:
    """Parse the option's value."""
    if value not in CHOICES.split("|"):
        raise argparse.ArgumentTypeError(f"expected raise or skip, got {value!r}")
    return str(value)


class SkipAndCount:
    """Leave bad members out and count them, with a warning for the first one of each archive."""

    def __init__(self) -> None:
        self._numbers: Counter[str] = Counter()

    def __call__(self, error: BadMemberError) -> None:
        skip_with_warning(error)
        self._numbers[str(error.reason)] += 1

    def print_total(self) -> None:
        """Print a line for each reason."""
        for reason, number in self._numbers.items():
            print_line(f"{number:>10,} members left out: {printable(reason)}")


def policy_of(choice: str) -> tuple[OnBadMember, SkipAndCount]:
    """Return the chosen policy, and the counter that it uses."""
    counter = SkipAndCount()
    return (counter if choice == "skip" else raise_error), counter
