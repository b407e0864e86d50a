"""Loose files of a local folder, read by this package and by plain Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from measure import Job, Peer
from object_peers import OURS

BATCH = 64


def paths_of(job: Job) -> list[str]:
    return [f"{job.bucket}/{name}" for name in job.names]


def plain(job: Job) -> Iterator[int]:
    """``open`` and ``read``, one file after the other."""
    for path in paths_of(job):
        with open(path, "rb") as file:
            yield len(file.read())


def plain_batches(job: Job) -> Iterator[int]:
    """The same; the files of a batch are in memory together."""
    paths = paths_of(job)
    for start in range(0, len(paths), BATCH):
        batch = []
        for path in paths[start : start + BATCH]:
            with open(path, "rb") as file:
                batch.append(file.read())
        yield from map(len, batch)


def stream_files(job: Job) -> Iterator[int]:
    import torchdata_remote as tdr

    return (len(sample["jpg"]) for sample in tdr.stream_files(job.bucket, shuffle=False))


def list_of_paths(job: Job) -> Iterator[int]:
    from torch.utils.data.datapipes.iter import IterableWrapper

    pipe = IterableWrapper(paths_of(job)).async_prefetch().file_reader()
    return (len(sample["jpg"]) for sample in pipe)


def remote_files(make: Callable[[object, list[int]], list[tuple[str, bytes]]]) -> Callable[[Job], Iterator[int]]:
    def read(job: Job) -> Iterator[int]:
        import torchdata_remote as tdr

        dataset = tdr.RemoteFiles(job.bucket)
        for start in range(0, len(dataset), BATCH):
            found = make(dataset, list(range(start, min(start + BATCH, len(dataset)))))
            yield from (len(data) for _, data in found)

    return read


def batch(dataset: object, indices: list[int]) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = dataset.__getitems__(indices)  # type: ignore[attr-defined]
    return found


def items(dataset: object, indices: list[int]) -> list[tuple[str, bytes]]:
    return [dataset[index] for index in indices]  # type: ignore[index]


def _ours(read: Callable[[Job], Iterator[int]], shown: str) -> Peer:
    return Peer(OURS, read, shown, "torchdata_remote")


PEERS = {
    "stream-files": _ours(stream_files, "stream_files, listing included"),
    "paths": _ours(list_of_paths, "async_prefetch and file_reader over a list of paths"),
    "batches": _ours(remote_files(batch), "RemoteFiles, batches of 64, listing included"),
    "items": _ours(remote_files(items), "RemoteFiles, item by item, listing included"),
    "plain": Peer((), plain, "open and read", "torch"),
    "plain-batches": Peer((), plain_batches, "open and read, batches of 64", "torch"),
}
