"""Rows of the documentation's table: what came of a framework with a loader."""

from __future__ import annotations

import collections
import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest

from .data import NUM_SAMPLES, Cells

ROWS: list[Row] = []
"""All rows of this process."""


def needs(package: str) -> pytest.MarkDecorator:
    """Skip without a package, which is not imported: that takes seconds."""
    is_missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(is_missing, reason=f"{package} is not installed: it is in the extra trainers")


WHOLE = f"{NUM_SAMPLES} of {NUM_SAMPLES}"


@dataclass(frozen=True)
class Row:
    """What came of one framework with one loader.

    Args:
        framework: such as ``"Accelerate"``.
        loader: one of ``data.LOADERS``.
        world_size: number of ranks; of a resume, ``"2 -> 3"``.
        num_workers: of each rank.
        result: ``"120 of 120"``, or the error's first sentence.
        action: ``"epoch"`` or ``"resume"``.
    """

    framework: str
    loader: str
    world_size: str
    num_workers: int
    result: str
    action: str = "epoch"

    def __post_init__(self) -> None:
        ROWS.append(self)


def epoch_rows(framework: str, ranks: list[dict[str, Any]], cells: Cells) -> list[Row]:
    """The rows of an epoch of each loader, reported as ``"<framework>: <loader>, <number> workers"``."""
    return [
        Row(
            framework, loader, f"{len(ranks)}", workers,
            outcome(rank[f"{framework}: {loader}, {workers} workers"] for rank in ranks),
        )
        for loader, workers in cells
    ]  # fmt: skip


def outcome(per_rank: Iterable[Any]) -> str:
    """The result of a row: ``"120 of 120"`` if all ranks together had each sample once.

    Args:
        per_rank: of each rank the numbers of its samples, or of its batches, or ``{"error": ...}``.
    """
    found = list(per_rank)
    errors = [rank["error"] for rank in found if isinstance(rank, dict)]
    if errors:
        return str(errors[0])
    counts = collections.Counter(number for rank in found for number in flat(rank))
    result = f"{len(counts)} of {NUM_SAMPLES}"
    repeated = sum(counts.values()) - len(counts)
    return f"{result}, {repeated} repeated" if repeated else result


def flat(batches: Any) -> Any:
    """The numbers of all batches."""
    return [number for batch in batches for number in (batch if isinstance(batch, list) else [batch])]


def markdown() -> str:
    """A line for each framework, loader and result, with the numbers of ranks and workers that have it."""
    lines: dict[tuple[str, ...], tuple[list[str], list[str]]] = {}
    for row in ROWS:
        sizes, workers = lines.setdefault((row.framework, row.loader, row.action, row.result), ([], []))
        sizes.append(row.world_size)
        workers.append(f"{row.num_workers}")
    head = "| framework | given | what | ranks | workers | result |\n|---|---|---|---|---|---|"
    cells = [
        (framework, f"`{loader}`", action, *(", ".join(dict.fromkeys(values)) for values in among), result)
        for (framework, loader, action, result), among in lines.items()
    ]
    return "\n".join([head, *(f"| {' | '.join(row)} |" for row in cells)])
