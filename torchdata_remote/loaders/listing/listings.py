"""Provide the listing of a pass: made here, or received from this rank's process or from rank 0."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ...core.rank_exchange import exchanged, from_rank_0, in_group
from ...core.world import World
from .handover import Handover
from .packed_listing import Listed, packed, unpacked


class Listings:
    """The listings of a chain that were made before a pass starts.

    A rank's process lists when a pass starts, and passes the listing to its workers. An error is passed as well, so
    that it is raised as if the workers had listed: there, before the first batch.
    """

    def __init__(self) -> None:
        self.once = False  # whether all passes read the listing of the first one
        self.in_rank_0 = False  # whether rank 0 lists for all ranks of the process group
        self._of_all_passes: bytes | None = None
        self._of_this_pass: bytes | None = None  # in this process
        self._handover = Handover()

    def of(self, epoch: int) -> Listed | Exception | None:
        """The listing of a pass that starts now; ``None`` if this process has to list."""
        data = self._of_all_passes or self._of_this_pass or self._handover.load(epoch)
        return None if data is None else unpacked(data)

    def keep(self, listed: Listed) -> None:
        """Let all passes read this listing."""
        self._of_all_passes = packed(listed)

    @property
    def kept(self) -> Listed | None:
        """The listing that all passes read, if there is one."""
        listed = None if self._of_all_passes is None else unpacked(self._of_all_passes)
        return listed if isinstance(listed, Listed) else None

    @contextmanager
    def made(self, make: Callable[[], Listed], world: World, epoch: int, num_workers: int) -> Iterator[None]:
        """Provide the listing of an epoch to the passes that start within the block.

        Args:
            make: lists.
            world: of this rank; with ``in_rank_0`` this is a collective call.
            epoch: of the passes.
            num_workers: processes that start a pass; with 0, this process does.
        """
        data = self._of_all_passes
        if self.in_rank_0 and in_group(world):
            kept = exchanged(world, "start a pass with the listing of rank 0", data is not None)
            data = data if all(kept.values()) else None
        if data is None:
            data = self._listed(make, world, num_workers)
        if data is not None and num_workers > 0:
            self._handover.store(epoch, data)
        elif data is not None:
            self._of_this_pass = data
        try:
            yield
        finally:
            self._of_this_pass = None
            self._handover.clear()

    def _listed(self, make: Callable[[], Listed], world: World, num_workers: int) -> bytes | None:
        is_for_all_ranks = self.in_rank_0 and in_group(world)
        if not (num_workers > 0 or self.once or is_for_all_ranks):
            return None
        try:
            listed = from_rank_0(world, "list for all ranks", lambda: packed(make())) if is_for_all_ranks else make()
        except Exception as error:  # noqa: BLE001  # raised when the pass starts
            return _packed_error(error)
        try:
            data = packed(listed) if isinstance(listed, Listed) else listed
        except Exception as error:  # noqa: BLE001  # items that cannot be pickled; forked workers have them
            return _packed_error(error) if self.once else None
        if self.once:
            self._of_all_passes = data
        return data

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_of_this_pass": None}


def _packed_error(error: Exception) -> bytes | None:
    """Pack an error for workers; ``None`` if it cannot be pickled, so that they list and raise their own."""
    try:
        data = packed(error)
        unpacked(data)
    except Exception:  # noqa: BLE001  # a user's own class may raise anything
        return None
    return data
