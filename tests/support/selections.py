"""Views of shards that tests make from the indexes beside them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.support.shard_places import Place
from torchdata_remote import ListRemote, RemoteUrl
from torchdata_remote.core.shard_view import ShardView, view_url
from torchdata_remote.pipes.base.typed import IterableWrapper

Chosen = Sequence[tuple[int, int]]  # number of a shard, number of a sample in it


class Shards:
    """The shards of a folder, with the offsets of their samples.

    Args:
        place: with shards that ``ShardWriter`` wrote.
    """

    def __init__(self, place: Place) -> None:
        listed = ListRemote(IterableWrapper([place.url]), pattern="*.tar", storage_options=place.options)
        self.urls: list[RemoteUrl] = list(listed)
        files = place.files()
        names = sorted(name for name in files if name.endswith(".tar"))
        self.contents = [files[name] for name in names]
        self.offsets = [np.frombuffer(files[f"{name}.idx"], "<u8").astype(np.int64) for name in names]

    def all(self) -> list[tuple[int, int]]:
        """Every sample."""
        return [(shard, at) for shard, offsets in enumerate(self.offsets) for at in range(len(offsets) - 1)]

    def view(self, chosen: Chosen) -> ShardView:
        """A view of these samples, in this order."""
        used = sorted({shard for shard, _ in chosen}) or [0]
        objects = [used.index(shard) for shard, _ in chosen]
        starts = [int(self.offsets[shard][at]) for shard, at in chosen]
        stops = [int(self.offsets[shard][at + 1]) for shard, at in chosen]
        columns = [np.array(column, np.int64) for column in ([1] * len(chosen), objects, starts, stops)]
        return ShardView(tuple(self.urls[shard] for shard in used), *columns)

    def select(self, chosen: Chosen) -> RemoteUrl:
        """The URL of these samples."""
        return view_url(self.view(chosen))

    def bytes_of(self, chosen: Chosen) -> bytes:
        """What a view of these samples holds."""
        return b"".join(self.contents[shard][slice(*self.offsets[shard][at : at + 2])] for shard, at in chosen)
