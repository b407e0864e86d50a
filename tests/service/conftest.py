"""Services that tests share: each is a process of ``torchdata-remote serve``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.s3 import S3Server
from tests.servers.service import running_service
from tests.servers.watched import Proxy, running_proxy
from tests.support.service_clients import Dataset

NO_RESERVE = ("--min-free-bytes", "0")


@pytest.fixture(scope="session")
def served_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the datasets of ``served``."""
    return tmp_path_factory.mktemp("served")


@pytest.fixture(scope="session")
def served(served_root: Path) -> Iterator[str]:
    """``host:port`` of a service on a local folder."""
    with running_service(served_root, *NO_RESERVE) as address:
        yield address


@pytest.fixture(scope="session")
def served_bucket(moto: S3Server) -> Iterator[str]:
    """``host:port`` of a service on a part of a bucket, whose files it sends itself."""
    options = ("--storage-options", json.dumps(moto.storage_options), "--pass-through")
    with running_service(f"s3://{moto.new_bucket()}/d/", *options) as address:
        yield address


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dataset]:
    """The dataset of a service whose files may have 20,000 bytes."""
    root = tmp_path_factory.mktemp("small")
    with running_service(root, *NO_RESERVE, "--max-file-bytes", "20000") as address:
        yield Dataset(address, root=root)


@pytest.fixture
def dataset(served: str, served_root: Path) -> Dataset:
    """A new dataset in a local folder."""
    return Dataset(served, root=served_root)


@pytest.fixture(params=["local", "bucket"])
def anywhere(request: pytest.FixtureRequest) -> Dataset:
    """A new dataset on each kind of store in turn."""
    if request.param == "local":
        made: Dataset = request.getfixturevalue("dataset")
        return made
    return Dataset(request.getfixturevalue("served_bucket"))


@pytest.fixture
def proxy(served: str) -> Iterator[Proxy]:
    """A proxy in front of ``served``."""
    with running_proxy(served) as running:
        yield running


TOKEN = "correct-horse-battery:+/="


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """``host:port`` of a service that requires ``TOKEN``."""
    folder = tmp_path_factory.mktemp("guarded")
    (folder / "token").write_text(f" {TOKEN}\n")
    with running_service(folder / "root", *NO_RESERVE, token_file=folder / "token") as address:
        yield address
