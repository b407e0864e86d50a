"""The policy for samples for which the function of a pipe fails."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from ...core.arguments import check
from ...core.world import counted
from ...errors import RemoteDataError, SampleError
from ...formats.error_policy import OnBadSample, Skipped, raise_error
from ...formats.sample import require_key, sample_url


class BadSample(NamedTuple):
    """Takes the place of a result."""

    url: str
    key: str
    error: Exception


class SamplePolicy:
    """Raises the errors of a function, or skips the samples for which it fails.

    Args:
        pipe: its functional name.
        on_bad_sample: called with an error; raises, or returns to skip the sample.
    """

    def __init__(self, pipe: str, on_bad_sample: OnBadSample) -> None:
        self._pipe, self.skipped = pipe, Skipped()
        self._on_bad_sample = check.function("on_bad_sample", on_bad_sample, example="tdr.skip_with_warning")
        self.may_skip = on_bad_sample is not raise_error

    def guarded(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return the function; where samples may be skipped, one that returns a :class:`BadSample` in place of raising.

        Args:
            function: called in any thread, with a sample or with a task that has one.
        """
        return partial(self._result_of, function) if self.may_skip else function

    def _result_of(self, function: Callable[[Any], Any], argument: Any) -> Any:
        try:
            return function(argument)
        except Exception as error:
            # Those of a store and of the machine are none of the sample
            is_other = isinstance(error, RemoteDataError) and not isinstance(error, SampleError)
            if is_other or isinstance(error.__cause__ or error, ImportError | MemoryError):
                raise
            sample = getattr(argument, "sample", argument)
            key = str(require_key(sample, of=self._pipe))
            return BadSample(sample_url(sample), key, error)

    def skip(self, bad: BadSample) -> None:
        """Record a sample as skipped, unless the policy raises. To be called in the order of the samples."""
        self._on_bad_sample(bad.error)
        self.skipped.bad_samples[bad.url, bad.key] = f"{type(bad.error).__name__}: {bad.error!s:.300}"

    def warn(self) -> None:
        """Say at the end of a pass how many samples were skipped, if any."""
        if found := self.skipped.bad_samples:
            (url, key), error = next(iter(found.items()))
            warnings.warn(
                f"{self._pipe}(on_bad_sample=) skipped {counted(len(found), 'sample')} of this epoch in this process, "
                "whose pipe has their URLs, keys and errors in skipped.bad_samples. The first one is "
                f"{key!r:.200} of {url or 'an unknown shard'}: {error}",
                RuntimeWarning,
                stacklevel=2,
            )

    def require_equal_counts(self) -> None:
        """Refuse to skip samples where ranks are promised equal numbers of them.

        Raises:
            ValueError: says how to have both.
        """
        if self.may_skip:
            raise ValueError(
                f"{self._pipe}(on_bad_sample=) may skip samples, so that ranks have different numbers of them for all "
                "that equalize_ranks() does, and wait for each other. Leave it out, and chain repeat_epochs() before "
                "and take(n) after: all ranks then have equally many."
            )
