"""Orders that depend on names and numbers only."""

from __future__ import annotations

from torchdata_remote.core.partition import permutation_array


def test_each_part_of_the_key_changes_the_permutation_array() -> None:
    """Another name or seed, or the same ones in another order, give another order."""
    parts: list[tuple[int | str, ...]] = [
        ("a", 0),
        ("b", 0),
        ("a", 1),
        (0, "a"),
        ("a",),
        ("a", 0, 0),
        ("a", -1),
        ("a", 12, 3),
        ("a", 1, 23),
    ]
    assert len({tuple(permutation_array(20, *some).tolist()) for some in parts}) == len(parts)


def test_permutation_arrays_are_the_same_in_later_versions() -> None:
    """Shards that were written with a seed can be written again; these never change."""
    assert permutation_array(8, "shard_dataset", 0).tolist() == [3, 4, 2, 7, 1, 6, 5, 0]
    assert permutation_array(5, 3, "mix").tolist() == [3, 0, 1, 4, 2]
    assert permutation_array(1_000_000, "shard_dataset", 1)[[0, 1, 500_000, 999_999]].tolist() == [
        681039,
        985600,
        60207,
        445706,
    ]
