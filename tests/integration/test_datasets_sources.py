"""A folder that is mounted, ``datasets://`` and ``s3://``: the same files are the same data, and are written alike."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import fsspec
import numpy as np
import pytest
from PIL import Image
from torch.utils.data import DataLoader
from torch.utils.data.datapipes.iter import IterableWrapper

import torchdata_remote as tdr
from tests.servers.s3 import S3Server
from tests.servers.service import running_service
from tests.support.killed_jobs import running_jobs
from tests.support.shard_places import Place, some_files, tar_of
from torchdata_remote import labels
from torchdata_remote.sharding.shard_dataset import shard_dataset
from torchdata_remote.testing import write_small_shards

NAME = "my_dataset"
CLASSES = ["cat", "dog", "newt"]
PER_CLASS = 4
NUM_SHARDS, PER_SHARD = 3, 5


class Source(NamedTuple):
    """The dataset in one of its places."""

    url: str
    options: dict[str, Any]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_service(tmp_path_factory.mktemp("service")) as running:
        yield running


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory, host: str, moto: S3Server) -> dict[str, Source]:
    """Images in class folders, and shards with their manifest, in three places."""
    mounted = tmp_path_factory.mktemp("datasets") / NAME
    chance = np.random.default_rng(0)
    for name in CLASSES:
        (mounted / "images" / name).mkdir(parents=True)
        for number in range(PER_CLASS):
            pixels = chance.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(mounted / "images" / name / f"photo {number} 50%.png")
    write_small_shards(f"{mounted}/shards", num_shards=NUM_SHARDS, samples_per_shard=PER_SHARD)
    files = {str(path.relative_to(mounted)): path.read_bytes() for path in mounted.rglob("*") if path.is_file()}
    assert "shards/index.json" in files
    bucket, client = moto.new_bucket(), moto.client()
    for path, data in files.items():
        client.put_object(Bucket=bucket, Key=f"{NAME}/{path}", Body=data)
    fsspec.filesystem("datasets").pipe({f"datasets://{host}/{NAME}/{path}": data for path, data in files.items()})
    return {
        "mounted": Source(str(mounted), {}),
        "datasets": Source(f"datasets://{host}/{NAME}", {}),
        "s3": Source(f"s3://{bucket}/{NAME}", moto.storage_options),
    }


def as_read(samples: Any) -> list[tuple[str, dict[str, Any]]]:
    """Key from the dataset's name on, and members."""
    return [
        (sample["__key__"].rpartition(f"{NAME}/")[2], {name: sample[name] for name in sample if name[:2] != "__"})
        for sample in samples
    ]


def loose(source: Source, **more: Any) -> Any:
    urls = IterableWrapper([f"{source.url}/images/"]).list_remote(pattern="*.png", storage_options=source.options)
    return urls.async_prefetch(storage_options=source.options, **more).file_reader().label_from_path(classes=CLASSES)


def shards(source: Source, listed: str = "shards/", **more: Any) -> Any:
    urls = IterableWrapper([f"{source.url}/{listed}"]).list_remote(pattern="*.tar", storage_options=source.options)
    return urls.async_prefetch(part_bytes=1000, storage_options=source.options, **more).shard_tar_reader()


@pytest.mark.parametrize("other", ["datasets", "s3"])
def test_three_sources_are_one(sources: dict[str, Source], other: str) -> None:
    """Keys, labels and bytes do not depend on where the data lie, in whichever way they are read."""
    mounted, source = sources["mounted"], sources[other]
    expected = as_read(loose(mounted))
    assert len(expected) == len(CLASSES) * PER_CLASS
    assert {(key.split("/")[1], sample["cls"]) for key, sample in expected} == set(zip(CLASSES, range(3), strict=True))
    assert as_read(loose(source)) == expected
    assert as_read(loose(source, backend="fsspec")) == expected

    packed = as_read(shards(mounted))
    assert len(packed) == NUM_SHARDS * PER_SHARD
    assert as_read(shards(source)) == packed
    assert as_read(shards(source, "shards/index.json")) == packed

    def folder(of: Source) -> list[tuple[bytes, int]]:
        images = tdr.RemoteImageFolder(f"{of.url}/images", storage_options=of.options)
        assert images.classes == CLASSES
        return [(image.tobytes(), label) for image, label in (images[index] for index in range(len(images)))]

    assert folder(source) == folder(mounted)

    def streamed(of: Source) -> list[tuple[str, dict[str, Any]]]:
        return as_read(tdr.stream_files(f"{of.url}/images/", seed=None, storage_options=of.options))

    assert streamed(source) == streamed(mounted)


@pytest.fixture(scope="module")
def keys(sources: dict[str, Source]) -> list[str]:
    """Of all samples in the shards, sorted."""
    return sorted(key for key, _ in as_read(shards(sources["mounted"])))


def test_in_workers(sources: dict[str, Source], keys: list[str]) -> None:
    """Workers of a DataLoader read each sample once."""
    pipe = tdr.stream_shards(f"{sources['datasets'].url}/shards/", seed=None).to_tuple("__key__")
    loader: DataLoader[Any] = DataLoader(
        pipe, batch_size=None, num_workers=2, multiprocessing_context="forkserver", timeout=60
    )
    assert sorted(key for (key,) in loader) == keys


FORKING = """
import json, sys
from torch.utils.data import DataLoader
import torchdata_remote as tdr
pipe = tdr.stream_shards(sys.argv[1] + "/shards/", seed=None).to_tuple("__key__")
if sys.argv[2] == "reads":
    assert list(pipe)
loader = DataLoader(pipe, batch_size=None, num_workers=2, multiprocessing_context="fork", timeout=60)
print(json.dumps(sorted(key for (key,) in loader)))
"""


@pytest.mark.parametrize("parent", ["reads", "does not read"])
def test_in_forked_workers(sources: dict[str, Source], keys: list[str], parent: str) -> None:
    """So do those that are forked, also where their parent has read by obstore: then they do without it, and say so."""
    command = [sys.executable, "-c", FORKING, sources["datasets"].url, parent]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == keys
    assert ("datasets is read by urllib3, more slowly" in done.stderr) == (parent == "reads")


def test_write_shards(sources: dict[str, Source], host: str, tmp_path: Path) -> None:
    """Shards written to a dataset are those written to a folder, byte for byte, with manifest and indexes."""
    written = {}
    for place in (f"{tmp_path}/out", f"datasets://{host}/written/out"):
        pipe = loose(sources["datasets"]).write_shards(f"{place}/{{shard:03d}}.tar", max_shard_samples=5)
        assert sum(info.num_samples for info in pipe) == len(CLASSES) * PER_CLASS
        fs, root = fsspec.core.url_to_fs(place)
        written[place] = {path.removeprefix(root): data for path, data in fs.cat(fs.find(root)).items()}
    first, second = written.values()
    assert first.keys() == second.keys() >= {"/000.tar", "/002.tar", "/index.json"}
    assert first == second


@pytest.mark.parametrize("num_workers", [0, 2])
def test_shard_dataset(host: str, tmp_path: Path, num_workers: int) -> None:
    """Sharding from a dataset into a dataset gives the bytes of sharding from a folder into a folder."""
    files = some_files(17)
    local = Place(f"{tmp_path}/in/")
    local.put(files)
    remote = f"datasets://{host}/in-{num_workers}/"
    fs = fsspec.filesystem("datasets")
    fs.pipe({remote + name: data for name, data in files.items()})
    template = "{shard:06d}.tar"
    options: dict[str, Any] = {"max_shard_samples": 4, "progress": False, "labels": labels.parent_directory()}
    shard_dataset(local.url, f"{tmp_path}/out/{template}", **options)
    to = f"datasets://{host}/out-{num_workers}/"
    shard_dataset(remote, to + template, num_workers=num_workers, **options)
    root = fs._strip_protocol(to) + "/"
    found = {path.removeprefix(root): data for path, data in fs.cat(fs.find(to)).items()}
    expected = Place(f"{tmp_path}/out/").files()
    own, others = json.loads(found.pop("index.json")), json.loads(expected.pop("index.json"))
    assert found == expected
    assert own["shardlist"] == others["shardlist"]


@pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_half_way(host: str, tmp_path: Path, every: int) -> None:
    """A job that was killed before any request that writes goes on, and ends in the same bytes and nothing else."""
    Place(f"{tmp_path}/").put({"all.tar": tar_of(some_files(17))})
    source, fs = f"{tmp_path}/all.tar", fsspec.filesystem("datasets")

    def files(name: str) -> dict[str, bytes]:
        root = f"{host}/{name}"
        return {path.removeprefix(root): data for path, data in fs.cat(fs.find(root)).items()} if fs.find(root) else {}

    with running_jobs() as jobs:

        def run(name: str, **more: Any) -> Any:
            template = f"datasets://{host}/{name}/{{shard:06d}}.tar"
            return jobs.run(source, template, folder="", max_shard_samples=4, provenance=True, **more)

        done = run(f"well-{every}")
        assert done.error is None
        expected = files(f"well-{every}")
        assert not [name for name in expected if "unfinished" in name]
        for step in range(2, len(done.steps) + 1, every):
            name = f"killed-{every}-{step}"
            assert run(name, stop_at=step).status == -signal.SIGKILL
            again = run(name)
            assert again.error is None
            assert files(name) == expected
