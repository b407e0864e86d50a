"""Where the passes of a chain have their listing from: made here, handed on by this rank's process, or by rank 0."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ...core.rank_exchange import exchanged, from_rank_0, in_group
from ...core.world import World
from .handover import Handover
from .packed_listing import Listed, packed, unpacked


class Listings:
    """What of a chain's listings is known before a pass begins.

    A rank's process lists when a pass begins, and leaves what it found to its workers. An error is left as well, so
    that it is raised where it would have been: in the workers, before the first batch.
    """

    def __init__(self) -> None:
        self.once = False  # whether all passes read what the first one has listed
        self.in_rank_0 = False  # whether rank 0 lists for all ranks of the process group
        self._of_all_passes: bytes | None = None
        self._of_this_pass: bytes | None = None  # in this process
        self._handover = Handover()

    def of(self, epoch: int) -> Listed | Exception | None:
        """The listing of a pass that begins now; ``None`` if it is to be made here."""
        data = self._of_all_passes or self._of_this_pass or self._handover.take(epoch)
        return None if data is None else unpacked(data)

    def keep(self, listed: Listed) -> None:
        """Let all passes read this."""
        self._of_all_passes = packed(listed)

    @property
    def kept(self) -> Listed | None:
        """What all passes read."""
        found = None if self._of_all_passes is None else unpacked(self._of_all_passes)
        return found if isinstance(found, Listed) else None

    @contextmanager
    def made(self, make: Callable[[], Listed], world: World, epoch: int, num_workers: int) -> Iterator[None]:
        """While the block lasts, the listing of an epoch is there for the passes that begin in it.

        Args:
            make: lists.
            world: of this rank; with ``in_rank_0`` all ranks have to call this.
            epoch: of the passes.
            num_workers: processes that begin one; without any this process does.
        """
        data = self._of_all_passes
        if self.in_rank_0 and in_group(world):
            kept = exchanged(world, "begin a pass with what rank 0 lists", data is not None)
            data = data if all(kept.values()) else None
        if data is None:
            data = self._listed(make, world, num_workers)
        if data is not None and num_workers > 0:
            self._handover.leave(epoch, data)
        elif data is not None:
            self._of_this_pass = data
        try:
            yield
        finally:
            self._of_this_pass = None
            self._handover.clear()

    def _listed(self, make: Callable[[], Listed], world: World, num_workers: int) -> bytes | None:
        are_several = self.in_rank_0 and in_group(world)
        if not (num_workers > 0 or self.once or are_several):
            return None
        try:
            found = from_rank_0(world, "list for all ranks", lambda: packed(make())) if are_several else make()
        except Exception as error:  # noqa: BLE001  # raised where the pass begins
            return _packed_error(error)
        try:
            data = packed(found) if isinstance(found, Listed) else found
        except Exception as error:  # noqa: BLE001  # items that cannot be pickled; forked workers have them
            return _packed_error(error) if self.once else None
        if self.once:
            self._of_all_passes = data
        return data

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_of_this_pass": None}


def _packed_error(error: Exception) -> bytes | None:
    """An error for workers; ``None`` if it cannot be sent, so that they list themselves and have their own."""
    try:
        data = packed(error)
        unpacked(data)
    except Exception:  # noqa: BLE001  # whatever the class of a user's own raises
        return None
    return data
