"""Split shards by samples, where the listing has the number of samples of each."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...core.partition import EqualizeMode, Piece, SamplePartition
from ...core.urls import RemoteUrl, redact
from ...core.world import World, counted, described, detect_world, place_in
from ...errors import EmptyShareError, ManifestError


def order_of(
    urls: list[str], world: World, epoch: int, equalize: EqualizeMode | None, readers: str | None = None
) -> SamplePartition:
    """Return the samples of the shards in the order in which slots take their shares.

    Args:
        urls: of the shards.
        world: whose slots they are.
        epoch: of the pass.
        equalize: how the slots get equal numbers of samples; ``None`` if they need not.
        readers: what an error calls the slots, if they are not ranks x workers.

    Raises:
        EmptyShareError: if a slot would have none.
        ManifestError: if shares have to be equal, and the listing does not have the number of samples.
    """
    counts, num_slots, readers = counts_of(urls), world.num_slots, readers or described(world)
    if equalize is None:
        if counts is None or sum(counts) < num_slots:
            raise too_few(urls, counts, readers)
        return SamplePartition.of(counts)
    if not urls:
        raise EmptyShareError(f"There are no shards for {readers}.")
    if counts is None:
        raise ManifestError(
            f"{redact(urls[0])}: its number of samples is unknown, and equalize_ranks needs it. "
            + (
                "Chain .list_row_groups() before sharding_filter_rank()."
                if are_tables(urls)
                else "List the manifest (index.json) of the shards; if there is none, write it: torchdata-remote "
                "manifest FOLDER"
            )
        )
    order = SamplePartition.of(counts)
    if len(order) < num_slots and (equalize is EqualizeMode.DROP or not len(order)):
        raise EmptyShareError(f"{counted(len(order), 'sample')} for {readers}: each would have none.")
    listed = np.array(sorted(range(len(urls)), key=urls.__getitem__))
    return order.equalized(num_slots, epoch, EqualizeMode(equalize), listed)


def counts_of(urls: list[str]) -> list[int] | None:
    """Number of samples of each shard, or ``None`` if it is unknown for one of them."""
    counts = [url.num_samples for url in urls if isinstance(url, RemoteUrl) and url.num_samples is not None]
    return counts if urls and len(counts) == len(urls) else None


def pieces_of(urls: list[str], pieces: Iterator[Piece]) -> Iterator[str]:
    """Yield the URL of each piece: a shard with a range of its samples."""
    for piece in pieces:
        url = urls[piece.shard]
        yield url.part(piece.first, piece.last) if isinstance(url, RemoteUrl) else url


def too_few(urls: list[str], counts: list[int] | None, readers: str) -> EmptyShareError:
    """Error of fewer shards or samples than slots."""
    what = counted(len(urls), "shard") if counts is None else counted(sum(counts), "sample")
    if counts is None and are_tables(urls):
        what = counted(len(urls), "table")
        return EmptyShareError(
            f"{what} for {readers}: some of them would have nothing to read. Chain .list_row_groups() before "
            "sharding_filter_rank(), which then splits row groups, and the rows of one where need be; or use fewer "
            "readers."
        )
    return EmptyShareError(
        f"{what} for {readers}: some of them would have nothing to read. Use fewer readers, or more and smaller shards "
        "(write_shards, max_shard_samples=); or list the manifest (index.json) of the shards, by which a shard is "
        "split among several readers."
    )


def are_tables(urls: list[str]) -> bool:
    """Whether these are files of Parquet or Arrow, by their names."""
    return bool(urls) and urls[0].partition("?")[0].lower().endswith((".parquet", ".arrow", ".feather"))


def readers_of_streams(num_streams: int, argument: World | None) -> str:
    """Describe the streams of a ``Resumable`` to the user, who has passed ranks and workers, or ``num_streams``."""
    here = place_in(argument, detect_world())
    return described(here) if here.num_slots == num_streams else counted(num_streams, "stream")
