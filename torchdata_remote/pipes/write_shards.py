"""``write_shards``: write samples into tar shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from ..core.iter_datapipe import IterDataPipe, functional_datapipe
from ..core.options import StorageOptions
from ..core.world import detect_world
from ..errors import ShardWriteError
from ..formats.limits import MAX_MEMBER_BYTES
from ..formats.manifest import ShardInfo
from ..formats.sample import Sample
from ..writing import DEFAULT_MAX_SHARD_BYTES, DEFAULT_MAX_SHARD_SAMPLES, ShardWriter
from .datapipe import SourcePipe
from .env import Env
from .passes import Pass, PipePass

_ABORT_TIMEOUT_S = 2.0


@functional_datapipe("write_shards")
class WriteShards(SourcePipe[ShardInfo]):
    """Write samples into tar shards while it is iterated (functional name: ``write_shards``).

    Equal samples give equal bytes. A shard is stored completely or not at all. It is uploaded while the next one is
    packed, and the manifest ``index.json`` is written after the last one. If iteration stops early, the complete shards
    remain, without a manifest. Memory is bounded as in ``ShardWriter``.

    Args:
        source_datapipe: samples. ``str``, ``int``, ``PIL.Image``, arrays (``npy``) and JSON values (``json``) are
            encoded by extension; ``bytes`` stay as they are.
        url_template: URL with one ``{shard}`` field in its base name, such as ``s3://b/train/{shard:06d}.tar``, or
            ``.tar.gz``, ``.tgz``, ``.tar.zst`` for compressed shards. The folder must not be used for anything else.
        max_shard_bytes: maximum size of a shard in bytes, with headers and padding, before compression. A single sample
            that is larger is written to a shard of its own.
        max_shard_samples: maximum number of samples in a shard.
        max_member_bytes: maximum size of a member; a larger one is an error, here and by default in readers.
        overwrite: replace all shards of this template. Otherwise an existing one is an error.
        storage_options: for the store, in fsspec's vocabulary.

    Yields:
        ShardInfo: URL, number of samples, bytes and MD5 of each shard, once it is stored, in order.

    Raises:
        ObjectExistsError: if a shard or a manifest exists already.
        ShardWriteError: for an invalid template or sample, if there is no sample, or in several DataLoader workers.
        EncodeError: for a member that has no encoding under its extension.

    Example:
        >>> samples = IterableWrapper([{"__key__": f"{i}", "cls": i} for i in range(3)])
        >>> pipe = WriteShards(samples, "memory://numbers/{shard}.tar", max_shard_samples=2, overwrite=True)
        >>> [(shard.url, shard.num_samples) for shard in pipe]
        [('memory://numbers/0.tar', 2), ('memory://numbers/1.tar', 1)]
    """

    def __init__(
        self,
        source_datapipe: IterDataPipe[Sample],
        url_template: str,
        *,
        max_shard_bytes: int = DEFAULT_MAX_SHARD_BYTES,
        max_shard_samples: int = DEFAULT_MAX_SHARD_SAMPLES,
        max_member_bytes: int = MAX_MEMBER_BYTES,
        overwrite: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(source_datapipe, "samples")
        self.writer: Callable[[], ShardWriter] = partial(
            ShardWriter,
            url_template,
            max_shard_bytes=max_shard_bytes,
            max_shard_samples=max_shard_samples,
            max_member_bytes=max_member_bytes,
            overwrite=overwrite,
            storage_options=StorageOptions(storage_options),
        )
        self.writer()  # raises for an invalid template

    def open(self, env: Env) -> Pass[ShardInfo]:
        return _WritingPass(self, env.open(self.source_datapipe))


class _WritingPass(PipePass[ShardInfo]):
    def items(self) -> Iterator[ShardInfo]:
        num_workers = detect_world().num_workers
        if num_workers > 1:
            raise ShardWriteError(
                f"write_shards runs in {num_workers} DataLoader workers, each of which would write every shard under "
                "the same names. Iterate it in one process, or give each process a template of its own."
            )
        writer = self._pipe.writer()
        try:
            for sample in self.sources[0]:
                finished = writer.write(sample)
                if finished is not None:
                    yield finished
        except GeneratorExit:
            # This may run as a finalizer, in a thread that holds a lock which the writer's threads wait for.
            writer.abort(_ABORT_TIMEOUT_S)
            raise
        except BaseException:
            writer.abort()
            raise
        yield from writer.close()
