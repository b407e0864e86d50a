"""Plan which samples go into which shard, in which order, before anything is written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from ..core.partition import permutation_array
from ..errors import ShardReadError, ShardWriteError
from ..fetch.sample_table import Int64s, SampleTable
from ..formats.sample import split_key, writing_fault
from ..formats.tar import BLOCK, END_OF_ARCHIVE, pack_header
from .planned_samples import LABEL, Naming

_PLAIN_NAME = 100  # characters that fit into a header's name field
_PLAIN_BYTES = 8 << 30  # bytes that fit into its size field

Labels = np.ndarray[Any, np.dtype[np.int32]]


def sample_order(num_samples: int, seed: int | None) -> Int64s:
    """Return the sample numbers in the order of writing: uniformly random, or ascending without a seed."""
    return np.arange(num_samples) if seed is None else permutation_array(num_samples, "shard_dataset", seed)


def packed_bytes(table: SampleTable, labels: Labels | None, naming: Naming) -> Int64s:
    """Return the bytes of a shard that each sample takes, headers and padding included; shape ``(num_samples,)``."""
    sizes, names = table.sizes(), table.names
    fits = (name.isascii() and len(name) + len(f".{LABEL}") <= _PLAIN_NAME for name in names)
    plain = np.fromiter(fits, np.bool_, len(names)) & (sizes < _PLAIN_BYTES)
    plain &= (keeps_length := naming.split is split_key)
    member_bytes = BLOCK + sizes + -sizes % BLOCK
    for index in np.flatnonzero(~plain).tolist():
        key, extension = naming(names[index])
        size = int(sizes[index])
        member_bytes[index] = len(pack_header(f"{key}.{extension}", size)) + _padded(size)
    if labels is not None:
        for index, name in enumerate(names):
            if (not keeps_length or name.lower().endswith(f".{LABEL}")) and naming(name)[1] == LABEL:
                member_bytes[index] = 0
    firsts = table.firsts()
    totals = np.diff(np.append(0, np.cumsum(member_bytes))[firsts])
    if labels is not None:
        totals += 2 * BLOCK  # a label has at most ten digits
        for index in np.flatnonzero(~plain[firsts[:-1]]).tolist():
            written = f"{naming(names[int(firsts[index])])[0]}.{LABEL}"
            totals[index] += len(pack_header(written, 1)) - BLOCK
    return totals


def require_sizes(table: SampleTable, max_member_bytes: int) -> None:
    """Require that no member is larger than readers accept.

    Raises:
        ShardWriteError: for the first one that is.
    """
    large = np.flatnonzero(table.sizes() > max_member_bytes)
    if len(large):
        name, size = table.names[int(large[0])], int(table.sizes()[large[0]])
        raise ShardWriteError(
            f"{name!r:.200} of the source has {size:,} bytes, which is more than readers accept "
            f"(max_member_bytes={max_member_bytes:,}). Leave it out by pattern=, or raise that limit here "
            "and in the readers."
        )


def require_writable(table: SampleTable, naming: Naming, labelled: bool, max_member_bytes: int) -> None:
    """Require that readers can read every member back from a shard, before anything is written.

    Args:
        table: of the source's members.
        naming: of the members in shards.
        labelled: whether each sample gets a label.
        max_member_bytes: limit of a member.

    Raises:
        ShardWriteError: with the first member that they cannot read, and the reason.
    """
    for name in table.names:
        key, extension = naming(name)
        fault = writing_fault(key, extension) or (writing_fault(key, LABEL) if labelled else None)
        if fault is not None:
            raise ShardWriteError(
                f"{name!r:.200} of the source cannot be part of a shard, as {key!r:.200} with {extension!r:.200}: "
                f"{fault}. Rename it, or leave it out by pattern=."
            )
    require_sizes(table, max_member_bytes)


def _padded(size: int) -> int:
    return size + -size % BLOCK


def cut_by_bytes(sample_bytes: Int64s, max_shard_bytes: int, max_shard_samples: int) -> Iterator[slice]:
    """Split samples into runs that fill one shard each.

    Args:
        sample_bytes: of each sample, in the order of writing.
        max_shard_bytes: limit of a shard; a single sample may be larger.
        max_shard_samples: limit of samples.
    """
    ends = np.append(0, np.cumsum(sample_bytes))
    at = 0
    while at < len(sample_bytes):
        limit = int(ends[at]) + max_shard_bytes - len(END_OF_ARCHIVE)
        last = int(np.searchsorted(ends, limit, side="right")) - 1
        last = max(at + 1, min(last, at + max_shard_samples))
        yield slice(at, last)
        at = last


def cut_evenly(num_samples: int, mean_bytes: float, max_shard_bytes: int, max_shard_samples: int) -> Iterator[slice]:
    """Split samples into runs of equal length, if their sizes are not known before they are written.

    Args:
        num_samples: of the source.
        mean_bytes: estimated bytes of a sample; a tenth of the shard is reserved for larger ones.
        max_shard_bytes: limit of a shard.
        max_shard_samples: limit of samples.
    """
    fitting = int((max_shard_bytes - len(END_OF_ARCHIVE)) / (1.1 * max(mean_bytes, 1.0)))
    num_shards = -(-num_samples // max(1, min(fitting, max_shard_samples)))
    for index in range(num_shards):
        yield slice(index * num_samples // num_shards, (index + 1) * num_samples // num_shards)


def folders_to_drop(table: SampleTable, naming: Naming, num_archives: int) -> Naming:
    """Return how members are named, with the number of leading folders to drop.

    With several archives, their names are the first folder; they are kept if keys are repeated in another archive, as
    in shards that each count from 0.

    Raises:
        ShardReadError: if two samples have the same key.
    """
    dropping = replace(naming, num_folders=1 if num_archives > 1 else 0)
    duplicate = _duplicate_key(table, dropping)
    if duplicate is not None and dropping != naming:
        dropping, duplicate = naming, _duplicate_key(table, naming)
    if duplicate is not None:
        raise ShardReadError(f"Two samples of the source have the key {duplicate!r:.200}. Rename one of them.")
    return dropping


def _duplicate_key(table: SampleTable, naming: Naming) -> str | None:
    hashes = np.fromiter((hash(naming(name)[0]) for name in table.first_names()), np.int64, len(table))
    order = np.sort(hashes)
    suspects = set(order[1:][order[1:] == order[:-1]].tolist())
    if not suspects:
        return None
    seen: set[str] = set()
    firsts = table.firsts()
    for index in np.flatnonzero(np.isin(hashes, list(suspects))).tolist():
        key = naming(table.names[int(firsts[index])])[0]
        if key in seen:
            return key
        seen.add(key)
    return None
