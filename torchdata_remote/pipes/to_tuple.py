"""``to_tuple``: select members of samples as tuples, the input of a training loop."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from typing import Any

from typing_extensions import TypeVar

from ..core.arguments.suggestions import did_you_mean
from ..core.frameworks.collating import check_item
from ..core.iter_datapipe import IterDataPipe, functional_datapipe
from ..errors import MissingMemberError
from ..fetch.listing.source_argument import pipe_of
from ..formats.sample import Sample, describe, require_sample, sample_url
from .base.datapipe import OneForOne
from .base.members import alternatives, member_named

# A tuple as long as the names, from the chained form; see `.ci/make_typed.py`
Items = TypeVar("Items", bound=tuple[Any, ...], default=tuple[Any, ...], covariant=True)


@functional_datapipe("to_tuple")
class ToTuple(OneForOne[Items]):
    """Select members as a tuple (functional name: ``to_tuple``).

    Args:
        source_datapipe: samples.
        *names: one per element of the tuple: extensions separated by ``;``, in any case, of which the first that the
            sample has is selected. ``"__key__"`` and ``"__url__"`` are valid names too.

    Yields:
        tuple: the values, as long as ``names``.

    Raises:
        CollateError: for an image that goes to torch's default ``collate_fn``. A label in bytes is a warning there.
        MissingMemberError: names the sample, the requested members and the existing ones.

    Example:
        >>> samples = IterableWrapper([{"__key__": "1", "png": "image", "cls": 3}])
        >>> list(ToTuple(samples, "jpg;jpeg;png", "cls"))
        [('image', 3)]
    """

    def __init__(self, source_datapipe: IterDataPipe[Sample], *names: str) -> None:
        if not names or not all(isinstance(name, str) and name.strip("; ") for name in names):
            first: object = names[0] if names else None
            advice = f" Write to_tuple({', '.join(map(repr, first))})." if isinstance(first, list | tuple) else ""
            raise ValueError(f"to_tuple needs names such as 'jpg;png', 'cls'; got {names!r:.200}.{advice}")
        self.source_datapipe = pipe_of(source_datapipe, of="to_tuple", holds="samples")
        self._names = names
        self._choices = [alternatives(name) for name in names]

    def __iter__(self) -> Iterator[Items]:
        is_first = True
        # In one call, where each sample has the first name of each choice
        firsts = [choice[0] for choice in self._choices]
        take = itemgetter(*firsts) if len(firsts) > 1 else lambda sample: (sample[firsts[0]],)
        for sample in self.source_datapipe:
            try:
                item = take(sample) if type(sample) is dict else self._picked(sample)
            except KeyError:
                item = self._picked(sample)
            if is_first:
                is_first = False
                check_item(self, item, where=describe(sample), names=self._names)
            yield item  # type: ignore[misc]  # as long as the names

    def _picked(self, sample: Sample) -> tuple[Any, ...]:
        try:
            return tuple([self._pick(sample, choice) for choice in self._choices])
        except (AttributeError, TypeError):
            require_sample(sample, of="to_tuple")
            raise

    def _pick(self, sample: Sample, choice: tuple[str, ...]) -> Any:
        name = member_named(sample, choice)
        if name is not None:
            return sample[name]
        members = sorted(name for name in sample if not name.startswith("__"))
        advice = did_you_mean(choice[0], members) or "."
        if any(separator in choice[0] for separator in ", |"):
            advice = (
                ". Separate alternatives by ';', and elements of the tuple by arguments: to_tuple('jpg;png', 'cls')."
            )
        raise MissingMemberError(
            f"{describe(sample)} has no {' or '.join(map(repr, choice))}. It has {members}{advice}",
            url=sample_url(sample),
        )
