"""A mounted folder, ``datasets://`` and ``s3://`` are one source: the same files are the same data."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import fsspec
import numpy as np
import pytest
from PIL import Image

import torchdata_remote as tdr
from tests.servers.s3 import S3Server
from tests.support.killed_jobs import running_jobs
from tests.support.shard_places import Place, some_files, tar_of
from torchdata_remote import labels
from torchdata_remote.testing import write_small_shards

NAME, CLASSES, PER_CLASS = "my_dataset", ["cat", "dog", "newt"], 4


class Source(NamedTuple):
    """The dataset in one of its places."""

    url: str
    options: dict[str, Any]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory, served: str, moto: S3Server) -> dict[str, Source]:
    """Images in class folders, and shards with their manifest, in three places."""
    mounted = tmp_path_factory.mktemp("datasets") / NAME
    chance = np.random.default_rng(0)
    for name in CLASSES:
        (mounted / "images" / name).mkdir(parents=True)
        for number in range(PER_CLASS):
            pixels = chance.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(mounted / "images" / name / f"photo {number} 50%.png")
    write_small_shards(f"{mounted}/shards", num_shards=3, samples_per_shard=5)
    files = Place(f"{mounted}/").files()
    bucket = Place(f"s3://{moto.new_bucket()}/{NAME}/", moto)
    bucket.put(files)
    fsspec.filesystem("datasets").pipe({f"datasets://{served}/{NAME}/{path}": data for path, data in files.items()})
    return {
        "mounted": Source(str(mounted), {}),
        "datasets": Source(f"datasets://{served}/{NAME}", {}),
        "s3": Source(bucket.url.rstrip("/"), moto.storage_options),
    }


def as_read(samples: Any) -> list[tuple[str, dict[str, Any]]]:
    """Key from the dataset's name on, and members."""
    return [
        (sample["__key__"].rpartition(f"{NAME}/")[2], {name: sample[name] for name in sample if name[:2] != "__"})
        for sample in samples
    ]


def loose(source: Source, **more: Any) -> Any:
    urls = tdr.IterableWrapper([f"{source.url}/images/"]).list_remote(pattern="*.png", storage_options=source.options)
    return urls.async_prefetch(storage_options=source.options, **more).file_reader().label_from_path(classes=CLASSES)


def shards(source: Source, listed: str = "shards/") -> Any:
    urls = tdr.IterableWrapper([f"{source.url}/{listed}"]).list_remote(pattern="*.tar", storage_options=source.options)
    return urls.async_prefetch(part_bytes=1000, storage_options=source.options).shard_tar_reader()


@pytest.mark.parametrize("other", ["datasets", "s3"])
def test_keys_labels_and_bytes_do_not_depend_on_where_the_data_lie(sources: dict[str, Source], other: str) -> None:
    mounted, source = sources["mounted"], sources[other]
    expected = as_read(loose(mounted))
    assert len(expected) == len(CLASSES) * PER_CLASS
    assert {(key.split("/")[1], sample["cls"]) for key, sample in expected} == set(zip(CLASSES, range(3), strict=True))
    assert as_read(loose(source)) == as_read(loose(source, backend="fsspec")) == expected
    packed = as_read(shards(mounted))
    assert len(packed) == 15
    assert as_read(shards(source)) == as_read(shards(source, "shards/index.json")) == packed

    def folder(of: Source) -> list[tuple[bytes, int]]:
        images = tdr.RemoteImageFolder(f"{of.url}/images", storage_options=of.options)
        assert images.classes == CLASSES
        return [(image.tobytes(), label) for image, label in images.__getitems__(range(len(images)))]

    assert folder(source) == folder(mounted)

    def streamed(of: Source) -> Any:
        return as_read(tdr.stream_files(f"{of.url}/images/", seed=None, storage_options=of.options))

    assert streamed(source) == streamed(mounted)


FORKING = """
import json, sys
from torch.utils.data import DataLoader
import torchdata_remote as tdr
pipe = tdr.stream_shards(sys.argv[1] + "/shards/", seed=None).to_tuple("__key__")
assert list(pipe)
loader = DataLoader(pipe, batch_size=None, num_workers=2, multiprocessing_context="fork", timeout=60)
print(json.dumps(sorted(key for (key,) in loader)))
"""


def test_forked_workers_read_each_sample_once_where_their_parent_has_read(sources: dict[str, Source]) -> None:
    """Then they do without obstore, and say so."""
    command = [sys.executable, "-c", FORKING, sources["datasets"].url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == sorted(key for key, _ in as_read(shards(sources["mounted"])))
    assert "datasets is read by urllib3, more slowly" in done.stderr


def files_of(url: str) -> dict[str, bytes]:
    fs, root = fsspec.core.url_to_fs(url)
    return {path.removeprefix(root): data for path, data in fs.cat(fs.find(root)).items()} if fs.find(root) else {}


def test_sharding_from_the_service_into_it_gives_the_bytes_of_a_folder(served: str, tmp_path: Path) -> None:
    local, remote = Place(f"{tmp_path}/in/"), f"datasets://{served}/in/"
    local.put(some_files(17))
    fsspec.filesystem("datasets").pipe({remote + name: data for name, data in some_files(17).items()})
    options: dict[str, Any] = {"max_shard_samples": 4, "progress": False, "labels": labels.parent_directory()}
    to = f"datasets://{served}/out"
    tdr.shard_dataset(local.url, f"{tmp_path}/out/{{shard:06d}}.tar", **options)
    tdr.shard_dataset(remote, f"{to}/{{shard:06d}}.tar", num_workers=2, **options)
    found, expected = files_of(to), files_of(f"{tmp_path}/out")
    manifests = [json.loads(one.pop("/index.json"))["shardlist"] for one in (found, expected)]
    assert found == expected
    assert manifests[0] == manifests[1]


@pytest.mark.parametrize("every", [29, pytest.param(1, marks=pytest.mark.slow)])
def test_a_job_killed_before_any_request_that_writes_is_continued_to_the_same_bytes(
    served: str, tmp_path: Path, every: int
) -> None:
    Place(f"{tmp_path}/").put({"all.tar": tar_of(some_files(17))})
    with running_jobs() as jobs:

        def run(name: str, **more: Any) -> Any:
            template = f"datasets://{served}/{name}/{{shard:06d}}.tar"
            return jobs.run(f"{tmp_path}/all.tar", template, folder="", max_shard_samples=4, provenance=True, **more)

        done = run(f"well-{every}")
        assert done.error is None
        expected = files_of(f"datasets://{served}/well-{every}")
        assert not [name for name in expected if "unfinished" in name]
        for step in range(2, len(done.steps) + 1, every):
            name = f"killed-{every}-{step}"
            killed = run(name, stop_at=step)
            if killed.status == -signal.SIGKILL:
                assert run(name).error is None
            assert files_of(f"datasets://{served}/{name}") == expected
