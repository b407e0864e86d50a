"""``PrefetchingLoader`` under Accelerate and Lightning: each sample once, resumed by their own checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .launch import Row, launch, outcome

FRAMEWORKS = ("Accelerate", "Lightning")
LOADER, WORKERS = "PrefetchingLoader", (0, 2)


def test_exactly_once_and_resumed_by_two_and_three_ranks(dataset: Path, tmp_path: Path) -> None:
    """Two ranks read an epoch and stop in another one; two and three ranks resume it."""
    given: dict[str, Any] = {"folder": str(dataset), "checkpoints": str(tmp_path), "num_workers": WORKERS}
    two = launch("tests.trainers.prefetching_loader_program", 2, **given, stop=True)
    three = launch("tests.trainers.prefetching_loader_program", 3, **given, stop=False)
    rows = []
    for framework in FRAMEWORKS:
        for workers in WORKERS:
            name = f"{framework}, {workers} workers"
            whole = [rank[f"{name}, epoch"] for rank in two]
            rows.append(Row(framework, LOADER, "2", workers, outcome(whole)))
            stopped = [rank[f"{name}, stop"] for rank in two]
            for world, ranks in {"2 -> 2": two, "2 -> 3": three}.items():
                rest = [rank[f"{name}, resume"] for rank in ranks]
                rows.append(Row(framework, LOADER, world, workers, outcome([*stopped, *rest]), "resume"))
            in_two = [rank[f"{name}, resume"] for rank in two]
            assert [before + after for before, after in zip(stopped, in_two, strict=True)] == whole, name  # same order
    assert {row.result for row in rows} == {"120 of 120"}, "\n".join(map(str, rows))
