"""Servers and small datasets that tests share."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import random
import re
import signal
import uuid
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.servers.azurite import AzuritePlace
from tests.servers.gcs import GcsServer
from tests.servers.s3 import S3Server, ceph_is_installed
from tests.servers.shared import shared_server
from tests.support.shard_places import Place, memory_place

settings.register_profile(
    "landing",
    deadline=None,  # and examples may be slow to make: the machine may be busy
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    max_examples=20,
    derandomize=True,  # the long run looks for new examples
)
settings.register_profile("long", settings.get_profile("landing"), max_examples=500, derandomize=False)
settings.load_profile("landing")

# A packet to the name server that is lost costs a second, and not five.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:5")

# Marked as ``system``, which a developer's fast run leaves out: what starts servers, frameworks or many processes.
SYSTEM_FIXTURES = {"azurite", "ceph", "gcs", "moto", "juicefs", "rclone", "s3", "start_method"}
SYSTEM_FOLDERS = ("stores", "trainers", "service", "processes", "package")

# Workers are forked from a server that has imported torch, rather than each import it.
multiprocessing.set_forkserver_preload(["torchdata_remote.pipes", "torchdata_remote.testing"])


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of all tests."""
    parser.addoption("--table", action="store_true", help="run all rows of tables, and print the results as Markdown")
    parser.addoption("--slow-sample", type=int, default=0, help="run so many of the slow tests, too")
    parser.addoption("--slow-seed", default="0", help="which")


def pytest_configure() -> None:
    """Tests send Ctrl-C, which a shell makes ignored by what it starts in the background, and by their children."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests of the whole system, and leave out slow ones but for a sample."""
    tests = Path(__file__).parent
    for item in items:
        folder = item.path.relative_to(tests).parts[0] if item.path.is_relative_to(tests) else ""
        if folder in SYSTEM_FOLDERS or not SYSTEM_FIXTURES.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.system)
    if not config.option.markexpr:  # `-m` says itself what runs
        slow = [item for item in items if item.get_closest_marker("slow")]
        draw = random.Random(config.option.slow_seed)
        left_out = set(slow) - set(draw.sample(slow, min(config.option.slow_sample, len(slow))))
        config.hook.pytest_deselected(items=[item for item in slow if item in left_out])
        items[:] = [item for item in items if item not in left_out]


# By the interpreter, by this package and its commands, by starlette and fsspec
_MISSING = re.compile(r"(?:No module named '?|needs |requires the |Install |pip install 'torchdata_remote\[)(\w+)")
_RAISED = ("E ", "UNEXPECTED EXCEPTION", "ModuleNotFoundError", "ImportError", "torchdata_remote.")
IN_TEST_ALL = {
    "accelerate", "asyncssh", "atheris", "av", "azure", "basedpyright", "distributed",
    "google", "httpx", "httpx2", "huggingface_hub", "jedi", "kubernetes_validate",
    "lightning", "matplotlib", "mpi4py", "mypy", "pandas", "paramiko", "polars", "proxy", "pyftpdlib", "ray",
    "safetensors", "schemathesis", "scipy", "selenium", "simplejpeg", "sklearn", "transformers", "webdataset",
    "webdav4", "wids", "wsgidav",
}  # fmt: skip


def _without_extra(report: pytest.CollectReport | pytest.TestReport, path: Path) -> None:
    """Skip what needs a package that is not installed; nothing but the extra has it."""
    lines = f"{report.longrepr}\n{report.capstderr}".splitlines() if report.failed else []
    said = "\n".join(line for line in lines if line.startswith(_RAISED))  # and not what a test's source contains
    missing = IN_TEST_ALL.intersection("azure" if name == "az" else name for name in _MISSING.findall(said))
    if any(importlib.util.find_spec(name) is None for name in missing):
        report.outcome = "skipped"
        report.longrepr = (str(path), 0, f"Skipped: {', '.join(missing)} is in the extra test-all")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Skip modules whose packages are not installed."""
    report = yield
    _without_extra(report, collector.path)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Skip tests whose packages are not installed."""
    report = yield
    _without_extra(report, item.path)
    return report


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
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of this run have in common."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(scope="session")
def moto(shared_folder: Path) -> Iterator[S3Server]:
    with shared_server("tests.servers.s3:moto_server", shared_folder) as server:
        yield server


@pytest.fixture(scope="session")
def ceph(shared_folder: Path) -> Iterator[S3Server]:
    if not ceph_is_installed():
        pytest.skip("Ceph is not installed: apt-get install radosgw ceph-mon ceph-osd")
    with shared_server("tests.servers.s3:ceph_server", shared_folder) as server:
        yield server


@pytest.fixture(scope="session")
def azurite(shared_folder: Path) -> Iterator[AzuritePlace]:
    with shared_server("tests.servers.azurite:azurite_server", shared_folder) as server:
        yield server


@pytest.fixture(scope="session")
def gcs(shared_folder: Path) -> Iterator[GcsServer]:
    with shared_server("tests.servers.gcs:gcs_server", shared_folder) as server:
        yield server


@pytest.fixture(scope="session")
def juicefs(shared_folder: Path) -> Iterator[S3Server]:
    with shared_server("tests.servers.foreign_s3:juicefs_server", shared_folder) as server:
        yield server


@pytest.fixture(scope="session")
def rclone(shared_folder: Path) -> Iterator[S3Server]:
    with shared_server("tests.servers.foreign_s3:rclone_server", shared_folder) as server:
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
