"""Decode members to values, by extension. No decoder unpickles anything."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ...core import arguments as check
from ...errors import DecodeError
from ..compression import CompressionLimits, decompressed_whole
from ..images import IMAGE_FORMATS
from ..member_file import MemberFile
from ..sample import describe, sample_url
from ._audio import AudioSection, audio
from ._pictures import MAX_PIXELS, Pixels, RgbAtLeast, pixels, rgb
from ._values import integer, npy, npz, safetensors, text, torch_file
from ._video import VideoFrames, video, video_clips

__all__ = [
    "DEFAULT_DECODERS",
    "MAX_PIXELS",
    "AudioSection",
    "Decoder",
    "Pixels",
    "RgbAtLeast",
    "VideoFrames",
    "audio",
    "checked_decoders",
    "decode_error",
    "decoder_of",
    "integer",
    "npy",
    "npz",
    "pixels",
    "rgb",
    "safetensors",
    "takes_files",
    "text",
    "torch_file",
    "video",
    "video_clips",
]

Decoder = Callable[[Any], Any]
"""Makes a value of the bytes of a member, or of the file of a lazy one."""

DEFAULT_DECODERS: Mapping[str, Decoder] = {
    **dict.fromkeys(IMAGE_FORMATS, rgb),
    "cls": integer,
    "json": json.loads,
    "txt": text,
    "npy": npy,
    "npz": npz,
    "safetensors": safetensors,
    **dict.fromkeys(("pt", "pth"), torch_file),
}
_OF_BYTES = (*DEFAULT_DECODERS.values(), pixels)
_COMPRESSIONS = {"gz": "gzip", "bz2": "bzip2", "xz": "xz", "zst": "zstd"}
_LIMITS = CompressionLimits(max_decompressed_bytes=1 << 30)


def takes_files(decoder: Decoder) -> bool:
    """Return whether a decoder is given the file of a lazy member; those of this package that decode bytes are not."""
    return not isinstance(decoder, RgbAtLeast | _Decompressing) and not any(decoder is one for one in _OF_BYTES)


def decoder_of(extension: str, decoders: Mapping[str, Decoder]) -> Decoder | None:
    """Return the decoder of a member: of its extension, of the last part of it, or of what is compressed in it.

    Args:
        extension: in lower case.
        decoders: by extension.
    """
    first, _, last = extension.rpartition(".")
    found = decoders.get(extension) or decoders.get(last)
    if found is None and first and last in _COMPRESSIONS and (inner := decoder_of(first, decoders)) is not None:
        return _Decompressing(_COMPRESSIONS[last], inner)
    return found


@dataclass(frozen=True)
class _Decompressing:
    """Decompresses, within the limits of compressed shards and up to 1 GiB, and decodes."""

    compression: str
    decoder: Decoder

    def __call__(self, data: Any) -> Any:
        return self.decoder(decompressed_whole(bytes(data), name=self.compression, url="it", limits=_LIMITS))


def decode_error(sample: Mapping[str, Any], name: str, error: Exception) -> DecodeError:
    """Return the error to raise from the decoder's own: it names member, sample and shard."""
    value = sample[name]
    what = f"the {len(value):,} bytes of {name!r}" if isinstance(value, bytes | memoryview) else repr(name)
    if isinstance(value, MemberFile):
        what = f"{name!r}, a file of {value.size:,} bytes,"
    return DecodeError(
        f"{describe(sample)}: {what} cannot be decoded: {type(error).__name__}: {error}", url=sample_url(sample)
    )


def checked_decoders(decoders: Mapping[str, Decoder] | None) -> dict[str, Decoder]:
    """Return the decoders of a ``decoders=`` argument, by extension in lower case.

    Raises:
        TypeError: if it is not a dict of functions.
        ValueError: for an extension with a dot before it, which no member has, and for two that differ in case only.
    """
    if decoders is None:
        return {}
    if not isinstance(decoders, Mapping):
        raise check.marked(
            TypeError(
                'decoders must be a dict from extension to function such as {"jpg": decoders.rgb}, got '
                f"{check.shown(decoders)}."
            )
        )
    found: dict[str, Decoder] = {}
    for written, decoder in decoders.items():
        extension = check.extension("the extension of a decoder", written, example="jpg")
        if extension in found:
            raise check.marked(ValueError(f"decoders differ in case only: {' and '.join(map(repr, decoders))}."))
        found[extension] = check.function(f"decoders[{written!r}]", decoder, example="decoders.rgb")
    return found
