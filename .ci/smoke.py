"""Import, chain every pipe, read with workers, stop and resume: in seconds, with nothing but the package.

Usage: python .ci/smoke.py
"""

from __future__ import annotations

import sys
import tempfile
import warnings
import zipfile
from importlib.metadata import version
from typing import Any

# What torch prepares to remove is an error where this package uses it, and nowhere else.
for category in (DeprecationWarning, FutureWarning):
    warnings.filterwarnings("error", category=category, module=r"(torchdata_remote|__main__)\b")

import torchdata_remote as tdr  # noqa: E402  # after the filters

NUM_SAMPLES = 48
SHOWN = ("torch", "torchdata", "numpy", "fsspec", "s3fs", "aiobotocore", "obstore", "pillow", "urllib3")


def number(sample: Any) -> int:
    """What was written into a sample."""
    return int(sample[0])


def chain(folder: str) -> Any:
    """Every pipe but the readers of zips and of files and the writer, which have chains of their own."""
    shards = tdr.IterableWrapper([f"{folder}/index.json"]).list_remote().shuffle_shards(seed=1).sharding_filter_rank()
    samples = shards.async_prefetch().shard_tar_reader().equalize_ranks(mode="drop")
    samples = samples.shuffle_samples(buffer_size=10).label_from_path(classes=["cat", "dog"]).decode_sample()
    return samples.to_tuple("txt", "cls").map(number)


def check_loaders(folder: str, workers: dict[str, Any]) -> None:
    """A pass, and a stopped pass with its rest, hand out each sample once."""
    whole = [int(item) for batch in tdr.stateful_loader(chain(folder), batch_size=5, **workers) for item in batch]
    assert sorted(whole) == list(range(NUM_SAMPLES)), whole
    stopped = tdr.stateful_loader(chain(folder), batch_size=5, **workers)
    batches = iter(stopped)
    received = [int(item) for _ in range(3) for item in next(batches)]
    resumed = tdr.stateful_loader(chain(folder), batch_size=5, **workers)
    resumed.load_state_dict(stopped.state_dict())
    received += [int(item) for batch in resumed for item in batch]
    assert received == whole, (received, whole)


def main() -> None:
    """Write, read, resume."""
    from torch.utils.data import DataLoader

    with tempfile.TemporaryDirectory() as folder:
        source = [{"__key__": f"{('cat', 'dog')[i % 2]}/{i}", "txt": str(i)} for i in range(NUM_SAMPLES)]
        infos = tdr.IterableWrapper(source).write_shards(f"{folder}/{{shard}}.tar", max_shard_samples=6)
        assert len(list(infos)) == NUM_SAMPLES // 6
        files = tdr.stream_files(f"{folder}/", pattern="*.tar").to_tuple("tar")
        assert len(list(files)) == NUM_SAMPLES // 6
        with zipfile.ZipFile(f"{folder}/a.zip", "w") as archive:
            archive.writestr("0.txt", "zipped")
        zipped = tdr.IterableWrapper([f"{folder}/a.zip"]).shard_zip_reader().to_tuple("txt")
        assert list(zipped) == [(b"zipped",)]
        for num_workers in (0, 2):
            context = "forkserver" if num_workers else None
            loader = DataLoader(chain(folder), 5, num_workers=num_workers, multiprocessing_context=context)
            assert sorted(int(item) for batch in loader for item in batch) == list(range(NUM_SAMPLES))
            check_loaders(folder, {"num_workers": num_workers})
    shown = ", ".join(f"{name} {version(name)}" for name in SHOWN)
    print(f"smoke: Python {sys.version.split()[0]}, {shown}: passed")


if __name__ == "__main__":
    main()
