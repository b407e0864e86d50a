"""What is done before the first request, and every hour."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the service's libraries are not installed")

from tests.support.service_clients import LIMITS, below
from torchdata_remote.errors import ServiceError
from torchdata_remote.service.server.context import ServiceContext
from torchdata_remote.service.server.datasets.dataset_root import DatasetRoot
from torchdata_remote.service.server.maintenance import Maintenance, exclusive_lock

PARTIAL = ".torchdata_remote-partial"


def context_at(root: Path) -> ServiceContext:
    return ServiceContext.at(DatasetRoot(str(root)), LIMITS)


def test_leftovers_are_removed_and_files_are_kept(tmp_path: Path) -> None:
    """Incomplete files, folders half removed, and temporary folders."""
    left = [f"d/.x{PARTIAL}", f"d/deep/.y{PARTIAL}", f".d{PARTIAL}/a", ".torchdata_remote/unnamed/1/file"]
    left += [".torchdata_remote/unpacking/1/archive"]
    for name in [*left, "d/a", "d/deep/b", "d/.hidden", "beside.txt"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"1")
    Maintenance(context_at(tmp_path)).step()
    assert below(tmp_path) == {"d/a", "d/deep/b", "d/.hidden", "beside.txt"}
    Maintenance(context_at(tmp_path)).step()


def test_an_archive_for_a_removed_dataset_is_dropped(tmp_path: Path) -> None:
    """And the service starts."""
    aside = tmp_path / ".torchdata_remote" / "unpacking" / "1"
    aside.mkdir(parents=True)
    (aside / "archive").write_bytes(b"\0" * 1024)
    for name in ("gone", "../up", "\udcff"):
        (aside / "committed").write_bytes(name.encode("utf-8", "surrogateescape"))
        (aside / "archive").write_bytes(b"\0" * 1024)
        Maintenance(context_at(tmp_path)).step()
        assert below(tmp_path) == set()
        aside.mkdir()


def test_a_second_service_on_a_root_is_refused(tmp_path: Path) -> None:
    """Until the first one has ended."""
    refused = pytest.raises(ServiceError, match="served by another process")
    with exclusive_lock(context_at(tmp_path)), refused, exclusive_lock(context_at(tmp_path)):
        pass
    with exclusive_lock(context_at(tmp_path)):
        pass
