"""Decode members that are compressed: ``json.gz``, ``npy.zst``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import ShardReadError
from ..compression import CompressionLimits, decompressed_whole

_NAMES = {"gz": "gzip", "bz2": "bzip2", "xz": "xz", "zst": "zstd"}
_LIMITS = CompressionLimits(max_decompressed_bytes=1 << 30)


@dataclass(frozen=True)
class Decompressing:
    """Decompresses, within the limits of compressed shards and up to 1 GiB, and decodes.

    Args:
        compression: that the extension names.
        decoder: of the decompressed bytes.

    Raises:
        ValueError: if the member is not compressed by it, is damaged, or beyond the limits.
    """

    compression: str
    decoder: Callable[[Any], Any]

    def __call__(self, data: Any) -> Any:
        try:
            whole = decompressed_whole(bytes(data), name=self.compression, url="it", limits=_LIMITS)
        except ShardReadError as error:
            advice = "A decoder of the complete extension, such as decode_sample({'json.gz': function}), has no limits"
            raise ValueError(f"{error} {advice}") from error
        return self.decoder(whole)


def compressed_decoder(name: str, decoders: Mapping[str, Callable[[Any], Any]]) -> Decompressing | None:
    """Return the decoder of a member such as ``json.gz``; ``None`` if nothing decodes what is in it."""
    inner, _, ending = name.rpartition(".")
    compression = _NAMES.get(ending)
    if compression is None or not inner:
        return None
    decoder = decoders.get(inner) or decoders.get(inner.rpartition(".")[2])
    return None if decoder is None else Decompressing(compression, decoder)
