"""What torch's default ``collate_fn`` refuses, in words: the sample, its member, and what to do."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from torch.utils.data import default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from ...errors import CollateError
from ..arguments.check import a_kind, shown
from ..pil_image import is_pil_image
from ..urls import redact

_MAX_DEPTH, _MAX_PARTS = 4, 1_000
_NOTHING = object()


def refusal(batch: list[Any]) -> CollateError | None:
    """Return why torch makes no batch of samples; ``None`` if they are not the reason."""
    if (found := next(_not_collated(batch[0]), None)) is not None:
        return collate_error(_described(batch[0]), *found)
    return next(map(CollateError, _unlike(batch)), None)


def _unlike(batch: list[Any]) -> Iterator[str]:
    """Yield what torch cannot collate: of the first sample, and of each other one with that of the first."""
    first, where = dict(leaves(batch[0])), _described(batch[0])
    advice = ""
    if isinstance(batch[0], tuple) and where == "a sample":
        advice = " Its key and shard are named here if to_tuple(..., '__key__', '__url__') takes them."
    for sample in batch:
        found = dict(leaves(sample))
        # Of lists too, whose lengths have to be equal; members that the first sample lacks are left out by torch
        for name in [*first, *(name for name in found if name not in first and name.startswith("element"))]:
            one, other = first.get(name, _NOTHING), found.get(name, _NOTHING)
            try:
                default_collate([one, other])
            except (TypeError, RuntimeError, ValueError) as error:
                beside = "" if sample is batch[0] else f", and {_kind_of(one)} in {where}"
                yield (
                    f"{_described(sample)}: {name} is {_kind_of(other)}{beside}, of which "
                    f"torch's default collate_fn makes no batch ({str(error).rstrip('.')}). Convert them to one "
                    "dtype that torch takes, and one shape: .map(function) on a chain, transform= of a dataset; or "
                    f"pass a collate_fn.{advice}"
                )


def _kind_of(value: Any) -> str:
    if value is _NOTHING:
        return "missing"
    return f"{a_kind(value)} of {value.dtype}, shape {tuple(value.shape)}" if hasattr(value, "dtype") else shown(value)


def _described(item: Any) -> str:
    """Describe a sample by its key and shard, or by the texts among the elements of a tuple."""
    if isinstance(item, Mapping) and "__key__" in item:
        return f"sample {item['__key__']!r} of {redact(item.get('__url__', ''))}"
    texts = [value for value in item if isinstance(value, str)] if isinstance(item, tuple) else []
    return f"a sample with {', '.join(map(repr, texts)):.500}" if texts else "a sample"


def collate_error(where: str, name: str, value: object) -> CollateError:
    """Error of a value that is none of torch's types."""
    kind = "a PIL image" if is_image(value) else f"a {type(value).__name__}"
    advice = "Convert it to a tensor, of equal shape in all samples: .map(function) on a chain, transform= of a dataset"
    if is_file(value):
        advice = 'Read it in the chain: .decode_sample({"mp4": tdr.decoders.video(num_frames=16)}), .map(function)'
    return CollateError(
        f"{where}: {name} is {kind}, of which torch's default collate_fn makes no batch. {advice}; or pass a "
        "collate_fn."
    )


def leaves(item: Any, names: tuple[str, ...] = (), within: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield the parts of an item that are no collections, each with its name, such as ``element 0 of 'txt'``."""
    parts: Iterable[tuple[str, Any]]
    if isinstance(item, Mapping):
        parts = ((repr(name), value) for name, value in item.items())
    elif isinstance(item, list | tuple):
        shown = names if len(names) == len(item) else None
        parts = ((f"element {at}" if shown is None else repr(shown[at]), value) for at, value in enumerate(item))
    else:
        yield within or "it", item
        return
    if depth < _MAX_DEPTH:
        for name, value in islice(parts, _MAX_PARTS):
            yield from leaves(value, (), f"{name} of {within}" if within else name, depth + 1)


def _not_collated(item: Any) -> Iterator[tuple[str, Any]]:
    known = (*default_collate_fn_map, int, float, str, bytes)
    return ((name, value) for name, value in leaves(item) if not isinstance(value, known))


def is_image(value: object) -> bool:
    """Whether a value is a PIL image, of which torch makes no batch."""
    return is_pil_image(value) and not isinstance(value, _extended())


def is_file(value: object) -> bool:
    """Whether a value is a file, of which torch makes no batch."""
    return isinstance(value, io.IOBase) and not isinstance(value, _extended())


def _extended() -> tuple[type, ...]:
    """Types for which torch or the user has registered a function."""
    return tuple(kind for entry in default_collate_fn_map for kind in (entry if isinstance(entry, tuple) else (entry,)))
