"""What a store may do wrong, and how often."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, fields

_LIMITS = ("stall_s", "trickle_s", "methods", "listings")


@dataclass(frozen=True, kw_only=True)
class Faults:
    """Probabilities (0 to 1) that an answer is broken in each way; an answer has one fault at most.

    A fault that a request cannot have leaves the answer sound and counts as such: a range fault without a ``Range``,
    a fault of the body without a body or where the server behind answers other than 200 or 206, a short range of one
    byte. Broken answers are held in memory whole.

    Args:
        slow_down: 503 ``SlowDown`` with S3's XML; the server behind is not asked.
        internal_error: 500 ``InternalError`` with S3's XML; the server behind is not asked.
        reset: RST before any byte of the answer; the server behind is not asked.
        early_end: FIN before any byte of the answer; the server behind is not asked.
        reset_in_body: headers and a random part of the body, which may be empty, then RST.
        cut_body: headers with the full ``Content-Length``, a random part of the body, then FIN.
        cut_without_length: headers without ``Content-Length``, a random part of the body, then FIN: it looks complete.
        short_range: a 206 with fewer bytes than asked for, whose headers agree with its body.
        ignored_range: 200 with the whole object where a ``Range`` was asked for. Where the server behind refuses the
            request without its ``Range``, because that was signed, zeros stand for the bytes outside the range.
        shifted_range: a 206 with the right body, whose ``Content-Range`` names another place.
        other_answer: the answer to one of the last GETs for another path or range (sound where there was none).
        doubled: the same answer twice; then the connection goes on.
        stall: nothing for ``stall_s``, then a sound answer.
        stall_in_body: headers and a random part of the body, nothing for ``stall_s``, then RST.
        trickle: headers, then one byte of the body each ``trickle_s`` until the client leaves.
        changed: another ``ETag``; where ``If-Match`` was sent, 412 ``PreconditionFailed`` with S3's XML.
        flipped_bit: one bit of the body inverted.
        stall_s: length of a stall, in seconds.
        trickle_s: time between two bytes, in seconds.
        methods: HTTP methods whose answers may be broken.
        listings: whether answers to ``ListObjectsV2`` may be broken too.

    Raises:
        ValueError: if a probability is not within 0 to 1, or all together are above 1, or a time is not above 0.

    Example:
        >>> Faults(cut_body=0.05, stall=0.01, stall_s=2).stall_s
        2
    """

    slow_down: float = 0
    internal_error: float = 0
    reset: float = 0
    early_end: float = 0
    reset_in_body: float = 0
    cut_body: float = 0
    cut_without_length: float = 0
    short_range: float = 0
    ignored_range: float = 0
    shifted_range: float = 0
    other_answer: float = 0
    doubled: float = 0
    stall: float = 0
    stall_in_body: float = 0
    trickle: float = 0
    changed: float = 0
    flipped_bit: float = 0
    stall_s: float = 30.0
    trickle_s: float = 1.0
    methods: AbstractSet[str] = frozenset({"GET"})
    listings: bool = False

    def __post_init__(self) -> None:
        probabilities = {name: getattr(self, name) for name in fault_names()}
        wrong = {name: value for name, value in probabilities.items() if not 0 <= value <= 1}
        if wrong:
            raise ValueError(f"Faults: {wrong} are not probabilities: give numbers from 0 to 1.")
        if sum(probabilities.values()) > 1 + 1e-9:  # 17 floats that should make 1 may make a little more
            raise ValueError(
                f"Faults: the probabilities make {sum(probabilities.values())} together, but an answer has one fault "
                "at most: let them make 1 or less."
            )
        if not (self.stall_s > 0 and self.trickle_s > 0):
            raise ValueError(f"Faults: stall_s={self.stall_s} and trickle_s={self.trickle_s} must be above 0.")

    @classmethod
    def storm(cls, probability: float) -> Faults:
        """The faults of a busy store, evenly: 503, 500, reset and early end, together with ``probability``.

        >>> Faults.storm(0.2).reset
        0.05
        """
        each = probability / 4
        return cls(slow_down=each, internal_error=each, reset=each, early_end=each)

    def pick(self, number: float) -> str | None:
        """The fault that a random number from [0, 1) stands for, ``None`` for a sound answer.

        >>> Faults(reset=0.5, stall=0.25).pick(0.6)
        'stall'
        """
        for name in fault_names():
            number -= getattr(self, name)
            if number < 0:
                return name
        return None


_NAMES = tuple(field.name for field in fields(Faults) if field.name not in _LIMITS)


def fault_names() -> tuple[str, ...]:
    """Names of all faults, in the order of the fields of ``Faults``."""
    return _NAMES
