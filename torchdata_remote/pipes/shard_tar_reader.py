"""``shard_tar_reader``: tar shards to samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import IterDataPipe, functional_datapipe

from ..errors import ShardReadError
from ..options import FetchOptions, StorageOptions
from ..sample import KEY, URL, Sample, is_meta, naming_fault, split_key
from ..streams import parts_of, streams_of
from ..tar import read_members
from ..urls import redact


@functional_datapipe("shard_tar_reader")
class ShardTarReader(IterDataPipe[Sample]):
    """Read samples from tar shards (functional name: ``shard_tar_reader``).

    Members that lie next to each other and share a key are one sample. The key ends at the first dot of the base name,
    the extension is the rest, in lower case; a leading ``./`` is dropped. Directories, links, devices and members named
    like ``__this__`` are passed over.

    Args:
        source_datapipe: ``(url, file_like)`` pairs, binary; or bare URLs, which are fetched ahead with the default
            options of ``async_prefetch``.
        storage_options: for bare URLs, in fsspec's vocabulary.

    Yields:
        dict: ``"__key__"`` (str), ``"__url__"`` (str), and one ``bytes`` for each member under its extension.

    Raises:
        ShardReadError: for a shard that is cut short or damaged, a member without key or extension, an extension
            twice in a sample, a key that comes back later in the shard, or a path that leaves its folder.

    Example:
        >>> from torchdata_remote import ShardWriter
        >>> with ShardWriter("memory://doc/{shard}.tar", overwrite=True) as writer:
        ...     _ = writer.write({"__key__": "cat/1", "txt": "miaow", "cls": 3})
        >>> list(ShardTarReader(IterableWrapper(["memory://doc/0.tar"])))
        [{'__key__': 'cat/1', '__url__': 'memory://doc/0.tar', 'cls': b'3', 'txt': b'miaow'}]
    """

    def __init__(self, source_datapipe: IterDataPipe[Any], *, storage_options: Mapping[str, Any] | None = None) -> None:
        self.source_datapipe = source_datapipe
        self._storage_options = StorageOptions(storage_options)

    def __iter__(self) -> Iterator[Sample]:
        for url, stream in streams_of(self.source_datapipe, FetchOptions(), self._storage_options):
            try:
                yield from _samples(str(url), stream)
            finally:
                stream.close()


def _samples(url: str, stream: Any) -> Iterator[Sample]:
    url = redact(url)
    seen: set[str] = set()
    sample: Sample = {KEY: None}
    num_bytes = getattr(stream, "num_bytes", None)
    for path, data in read_members(parts_of(url, stream), url=url, num_bytes=num_bytes):
        name = path[2:] if path.startswith("./") else path
        if is_meta(name):
            continue
        fault = naming_fault(name)
        if fault is not None:
            raise ShardReadError(
                f"{url}: member {path!r} cannot be part of a sample: {fault}. A sample's members are named "
                "key.extension, such as train/000017.jpg.",
                url=url,
            )
        key, extension = split_key(name)
        if key != sample[KEY]:
            if sample[KEY] is not None:
                yield sample
            if key in seen:
                raise ShardReadError(
                    f"{url}: member {path!r}: the sample {key!r} was already read. Its members must lie next "
                    "to each other: write the shard again, sorted by name.",
                    url=url,
                )
            seen.add(key)
            sample = {KEY: key, URL: url}
        if extension in sample:
            raise ShardReadError(
                f"{url}: member {path!r}: the sample {key!r} has {extension!r} twice (extensions are compared "
                "in lower case). Write the shard again with other names.",
                url=url,
            )
        sample[extension] = data
    if sample[KEY] is None:
        raise ShardReadError(
            f"{url}: a tar without a single sample. An object of zeros, as a crashed disk leaves it, is one too: write "
            "the shard again, or remove it.",
            url=url,
        )
    yield sample
