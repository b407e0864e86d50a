"""Groups of ranks without their processes; ``tests/trainers/test_mesh.py`` has real ones."""

from __future__ import annotations

import copy
import pickle
import weakref

import pytest

from torchdata_remote.core.rank_group import RankGroup


class Group:
    """Stands where a process group would: can be referred to weakly, and not be pickled."""

    def __reduce__(self) -> str:
        raise TypeError("cannot pickle 'ProcessGroup' object")


def test_a_pickled_group_has_its_members_only() -> None:
    """It equals the original, as its hash does, and says why it cannot exchange."""
    made = Group()
    group = RankGroup(((0, 2), (2, 3)), (weakref.ref(made), weakref.ref(made)))
    again = pickle.loads(pickle.dumps(group))
    assert again == group
    assert hash(again) == hash(group)
    assert repr(again) == "RankGroup(members=((0, 2), (2, 3)))"
    with pytest.raises(RuntimeError, match=r"\(\(0, 2\), \(2, 3\)\)\) has no process group in this process"):
        again.gather(0, None)
    assert copy.deepcopy(group) is group


def test_a_destroyed_group_is_not_kept() -> None:
    """``destroy_process_group`` ends its threads, since nothing here holds it."""
    made = Group()
    group = RankGroup(((0, 1),), (weakref.ref(made),))
    del made
    with pytest.raises(RuntimeError, match="it was destroyed"):
        group.gather(0, None)


def test_groups_of_other_ranks_differ() -> None:
    """As do worlds that hold them."""
    assert RankGroup(((0, 2),)) != RankGroup(((1, 3),))
