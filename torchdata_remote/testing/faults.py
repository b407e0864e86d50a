"""The faults of a store, and how often they occur."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, fields

from ..core import arguments as check
from ..core.arguments import explained, real, whole

_LIMITS = ("stall_s", "trickle_s", "retry_after_s", "methods", "listings")


@explained
@dataclass(frozen=True, kw_only=True)
class Faults:
    """Probabilities (0 to 1) that a response is broken in each way; a response has one fault at most.

    If a response cannot have a fault it is left intact, and counted so: a range fault without a ``Range``, a fault of
    the body without a body or with a status other than 200 or 206, a short range of one byte. Broken responses are
    held in memory whole.

    Args:
        slow_down: 503 ``SlowDown`` with S3's XML; the upstream server gets no request.
        internal_error: 500 ``InternalError`` with S3's XML; the upstream server gets no request.
        reset: RST before any byte of the response; the upstream server gets no request.
        early_end: FIN before any byte of the response; the upstream server gets no request.
        reset_in_body: headers and a random part of the body, which may be empty, then RST.
        cut_body: headers with the full ``Content-Length``, a random part of the body, then FIN.
        cut_without_length: headers without ``Content-Length``, a random part of the body, then FIN. It looks complete.
        short_range: a 206 with fewer bytes than requested, whose headers agree with its body.
        ignored_range: 200 with the whole object instead of a ``Range``. If the upstream server refuses the request
            without its ``Range``, because that was signed, the bytes outside the range are zeros.
        shifted_range: a 206 with the right body, whose ``Content-Range`` has another start.
        other_answer: the response to one of the last GETs of another path or range (intact if there was none).
        doubled: the same response twice; then the connection stays open.
        stall: nothing for ``stall_s``, then an intact response.
        stall_in_body: headers and a random part of the body, nothing for ``stall_s``, then RST.
        trickle: headers, then one byte of the body each ``trickle_s`` until the client closes the connection.
        changed: another ``ETag``; if ``If-Match`` was sent, 412 ``PreconditionFailed`` with S3's XML.
        flipped_bit: one bit of the body inverted.
        too_many_requests: 429 with ``Retry-After``; the upstream server gets no request.
        stall_s: length of a stall, in seconds.
        trickle_s: time between two bytes, in seconds.
        retry_after_s: whole seconds in ``Retry-After``.
        methods: HTTP methods whose responses may be broken.
        listings: whether responses to listings may be broken too: of S3 and Google Cloud Storage (``list-type=2``),
            Azure (``comp=list``), the Hugging Face Hub (``/api/datasets/.../tree/...``) and dataset services.

    Raises:
        ValueError: if a probability is not within 0 to 1, or their sum is above 1, or a time is not above 0.

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
    too_many_requests: float = 0
    stall_s: float = 30.0
    trickle_s: float = 1.0
    retry_after_s: int = 1
    methods: AbstractSet[str] = frozenset({"GET"})
    listings: bool = False

    def __post_init__(self) -> None:
        for name in (*FAULT_NAMES, "stall_s", "trickle_s"):
            number = real(name, getattr(self, name), positive=name not in FAULT_NAMES)
            object.__setattr__(self, name, number)
        object.__setattr__(self, "retry_after_s", whole("retry_after_s", self.retry_after_s, at_least=0))
        object.__setattr__(self, "listings", check.flag("listings", self.listings))
        total = sum(getattr(self, name) for name in FAULT_NAMES)
        if total > 1 + 1e-9:  # the sum of 18 floats may exceed 1 by rounding
            raise check.marked(
                ValueError(f"the sum of the probabilities is {total}, but a response has one fault at most: 1 or less.")
            )

    @classmethod
    def storm(cls, probability: float) -> Faults:
        """Return the faults of a busy store: 503, 500, reset and early end, equally likely, ``probability`` in sum.

        >>> Faults.storm(0.2).reset
        0.05
        """
        each = probability / 4
        return cls(slow_down=each, internal_error=each, reset=each, early_end=each)

    def pick(self, number: float) -> str | None:
        """Return the fault for a random number from [0, 1), ``None`` for an intact response.

        >>> Faults(reset=0.5, stall=0.25).pick(0.6)
        'stall'
        """
        for name in FAULT_NAMES:
            number -= getattr(self, name)
            if number < 0:
                return name
        return None


FAULT_NAMES = tuple(field.name for field in fields(Faults) if field.name not in _LIMITS)
"""The names of all faults, in the order of the fields of ``Faults``."""
