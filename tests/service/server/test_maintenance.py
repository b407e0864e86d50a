"""What is done before the first request, and every hour."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the service's libraries are not installed")

from tests.service.clients import LIMITS, below
from torchdata_remote.errors import ServiceError
from torchdata_remote.service.server import maintenance as housekeeping
from torchdata_remote.service.server.context import ServiceContext
from torchdata_remote.service.server.dataset_root import DatasetRoot

PARTIAL = ".torchdata_remote-partial"


def hosting_at(root: Path) -> ServiceContext:
    return ServiceContext.at(DatasetRoot(str(root)), LIMITS)


def test_leftovers_go_and_files_stay(tmp_path: Path) -> None:
    """Half written files, folders half removed, and what was set aside."""
    left = [f"d/.x{PARTIAL}", f"d/deep/.y{PARTIAL}", f".d{PARTIAL}/a", ".torchdata_remote/unnamed/1/file"]
    left += [".torchdata_remote/unpacking/1/archive"]
    for name in [*left, "d/a", "d/deep/b", "d/.hidden", "beside.txt"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"1")
    housekeeping.begin(hosting_at(tmp_path))
    assert below(tmp_path) == {"d/a", "d/deep/b", "d/.hidden", "beside.txt"}
    housekeeping.begin(hosting_at(tmp_path))


def test_a_committed_archive_for_a_dataset_that_is_gone(tmp_path: Path) -> None:
    """It is dropped, and the service starts."""
    aside = tmp_path / ".torchdata_remote" / "unpacking" / "1"
    aside.mkdir(parents=True)
    (aside / "archive").write_bytes(b"\0" * 1024)
    for name in ("gone", "../up", "\udcff"):
        (aside / "committed").write_bytes(name.encode("utf-8", "surrogateescape"))
        (aside / "archive").write_bytes(b"\0" * 1024)
        housekeeping.begin(hosting_at(tmp_path))
        assert below(tmp_path) == set()
        aside.mkdir()


def test_one_service_at_a_time(tmp_path: Path) -> None:
    """The second one is told so, and may begin when the first has ended."""
    refused = pytest.raises(ServiceError, match="served by another process")
    with housekeeping.alone(hosting_at(tmp_path)), refused, housekeeping.alone(hosting_at(tmp_path)):
        pass
    with housekeeping.alone(hosting_at(tmp_path)):
        pass
