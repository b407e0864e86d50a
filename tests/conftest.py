"""Servers and small datasets that tests share."""

from __future__ import annotations

import multiprocessing
import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.servers.azurite import AzuritePlace, azurite_server
from tests.servers.foreign_s3 import juicefs_server, rclone_server, s3rver_server
from tests.servers.gcs import GcsServer, gcs_is_installed, gcs_server
from tests.servers.s3 import S3Server, ceph_is_installed, ceph_server, moto_server, temporary_folder
from tests.support.shard_places import Place, memory_place

settings.register_profile(
    "default",
    deadline=None,  # and examples may be slow to make: the machine may be busy
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile("fast", settings.get_profile("default"), max_examples=20)  # as nox -s test runs them
settings.load_profile("default")

# A packet to the name server that is lost costs a second, and not five: tests of unknown hosts have time limits.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:5")

# Marked as ``system``, which a developer's fast run leaves out: what starts servers, frameworks or many processes.
SYSTEM_FIXTURES = {
    "azurite",
    "ceph",
    "gcs",
    "moto",
    "recorder",
    "juicefs",
    "rclone",
    "s3rver",
    "s3",
    "start_method",
    "proxy",
}
SYSTEM_FOLDERS = ("conformance", "integration", "trainers", "repository", "service", "sharding/workers")
SYSTEM_MODULES = (
    "cli/test_cli.py",
    "cli/test_ls.py",
    "cli/test_serve.py",
    "core/notices/test_slow_notice.py",
    "core/test_iter_datapipe.py",
    "core/processes/test_main_guard.py",
    "core/processes/test_parent_watch.py",
    "core/processes/test_worker_errors.py",
    "core/processes/test_worker_start.py",
    "core/test_shared_columns.py",
    "core/test_shared_memory_receivers.py",
    "core/threads/test_pool.py",
    "datasets/test_prefetching_loader.py",
    "datasets/test_shared_tables.py",
    "datasets/test_split_of_prefetching_loader.py",
    "fetch/cache/test_disk_cache.py",
    "fetch/test_reading_at_exit.py",
    "loaders/listing/test_listings.py",
    "loaders/test_loader.py",
    "loaders/thread/test_thread_at_exit.py",
    "pipes/base/test_split_guard.py",
    "storage/test_misbehaviour.py",
    "storage/test_unreachable.py",
    "test_imports.py",
    "writing/test_background_upload.py",
    "writing/test_claim.py",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of ``tests/trainers`` and ``tests/mistakes``."""
    parser.addoption("--table", action="store_true", help="run all rows of tables, and print the results as Markdown")


def pytest_configure() -> None:
    """Tests send Ctrl-C, which a shell makes ignored by what it starts in the background, and by their children."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of the whole system."""
    tests = Path(__file__).parent
    paths = [tests / name for name in (*SYSTEM_FOLDERS, *SYSTEM_MODULES)]
    assert all(path.exists() for path in paths), "the list of SYSTEM_MODULES names a file that has moved"
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if not SYSTEM_FIXTURES.isdisjoint(fixtures) or any(item.path.is_relative_to(path) for path in paths):
            item.add_marker(pytest.mark.system)


# Workers are forked from a server that has imported torch, rather than each import it.
multiprocessing.set_forkserver_preload(
    ["torchdata_remote.loaders", "torchdata_remote.datasets", "torchdata_remote.testing"]
)


@pytest.fixture(scope="session", autouse=True)
def _no_credentials_from_outside() -> Iterator[None]:
    """Hide the AWS environment and credential files of the machine from the tests."""
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith(("AWS_", "AZURE_", "GOOGLE_", "GCE_METADATA_", "STORAGE_EMULATOR_")) or name in (
                "RANK",
                "WORLD_SIZE",
            ):
                patch.delenv(name)
        patch.setenv("AWS_CONFIG_FILE", "/nonexistent/config")
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent/credentials")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("CLOUDSDK_CONFIG", "/nonexistent/gcloud")
        patch.setenv("NO_GCE_CHECK", "true")
        yield


@pytest.fixture(scope="session")
def moto() -> Iterator[S3Server]:
    with temporary_folder() as folder, moto_server(folder) as server:
        yield server


@pytest.fixture(scope="session")
def ceph() -> Iterator[S3Server]:
    if not ceph_is_installed():
        pytest.skip("Ceph is not installed: apt-get install radosgw ceph-mon ceph-osd")
    with temporary_folder() as folder, ceph_server(folder) as server:
        yield server


@pytest.fixture(scope="session")
def azurite() -> Iterator[AzuritePlace]:
    with temporary_folder() as folder, azurite_server(folder) as server:
        yield server


@pytest.fixture(scope="session")
def gcs() -> Iterator[GcsServer]:
    if not gcs_is_installed():
        pytest.skip("fake-gcs-server is not installed, or has no program for this machine")
    with temporary_folder() as folder, gcs_server(folder) as server:
        yield server


@pytest.fixture(scope="session")
def juicefs() -> Iterator[S3Server]:
    with temporary_folder() as folder, juicefs_server(folder) as server:
        yield server


@pytest.fixture(scope="session")
def rclone() -> Iterator[S3Server]:
    with temporary_folder() as folder, rclone_server(folder) as server:
        yield server


@pytest.fixture(scope="session")
def s3rver() -> Iterator[S3Server]:
    with temporary_folder() as folder, s3rver_server(folder) as server:
        yield server


@pytest.fixture(params=["moto", pytest.param("ceph", marks=pytest.mark.ceph)])
def s3(request: pytest.FixtureRequest) -> S3Server:
    """Each S3 server in turn."""
    server: S3Server = request.getfixturevalue(request.param)
    return server


@pytest.fixture
def bucket(s3: S3Server) -> str:
    """A new bucket on each S3 server in turn."""
    return s3.new_bucket()


@pytest.fixture
def memory_folder() -> str:
    """A ``memory://`` folder that no other test uses."""
    return f"memory://{uuid.uuid4().hex}"


@pytest.fixture(params=["local", "memory", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty folder in each kind of store."""
    if request.param == "memory":
        return memory_place()
    if request.param == "local":
        return Place(f"{tmp_path}/d/")
    server: S3Server = request.getfixturevalue("moto")
    return Place(f"s3://{server.new_bucket()}/d/", server)


@pytest.fixture(params=["fork", "forkserver", "spawn"])
def start_method(request: pytest.FixtureRequest) -> str:
    """How worker processes are started."""
    assert request.param in multiprocessing.get_all_start_methods()
    method: str = request.param
    return method
