"""``torchdata-remote serve``."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the service's libraries are not installed")

from tests.servers.service import Service, running_service
from tests.support.service_clients import ask, new_dataset
from torchdata_remote import cli


def test_serve_creates_the_root_and_prints_its_address_once_it_listens(tmp_path: Path) -> None:
    """It is printed once connections are taken, and the root is made."""
    with running_service(tmp_path / "new" / "root") as address:
        assert ask(address, "GET", "/datasets")[:2] == (200, b'{"datasets":[]}\n')
        assert (tmp_path / "new" / "root").is_dir()


def test_serve_limits_reach_the_service(tmp_path: Path) -> None:
    """Those of the command line are the service's."""
    with running_service(tmp_path, "--max-file-bytes", "10", "--min-free-bytes", "0") as address:
        name = new_dataset(address)
        assert ask(address, "PUT", f"/datasets/{name}/files/a", b"x" * 10)[0] == 200
        assert ask(address, "PUT", f"/datasets/{name}/files/a", b"x" * 11)[0] == 413


def test_serve_token_protects_a_public_address(tmp_path: Path) -> None:
    """With a token any address will do."""
    (tmp_path / "token").write_text("0123456789abcdef")
    service = Service(tmp_path / "root", "--host", "0.0.0.0", "--token-file", str(tmp_path / "token"))
    try:
        address = service.address.replace("0.0.0.0", "127.0.0.1")
        assert ask(address, "GET", "/datasets")[0] == 401
        assert ask(address, "GET", "/datasets", headers={"Authorization": "Bearer 0123456789abcdef"})[0] == 200
    finally:
        assert service.stop() == 0


def test_serve_on_a_public_address_without_token_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 1, and the option that is missing."""
    assert cli.main(["serve", "--root", str(tmp_path), "--host", "0.0.0.0", "--port", "0"]) == 1
    assert "--token-file" in capsys.readouterr().err
