"""What sdist and wheel contain: everything to run the tests, and what users read about the package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from email.message import Message
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.paths import ROOT

for module in ("build", "setuptools"):
    pytest.importorskip(module, reason="in the extra dev")

GENERATED = re.compile(r"PKG-INFO|[^/]*\.egg-info/.*")
NOT_KEPT = ("__pycache__", "*.py[cod]", "*.egg-info", "build", "dist", ".*_cache", ".hypothesis", "site")


class Built(NamedTuple):
    """Both archives, and the files of which they were made."""

    files: set[str]
    sdist: Path
    wheel: Path


def _files() -> list[str]:
    """What git has, or would have; in an unpacked sdist all files."""
    if (ROOT / ".git").exists():
        git = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
        return [name for name in names if (ROOT / name).is_file()]
    found = [path.relative_to(ROOT) for path in ROOT.rglob("*") if path.is_file()]
    return [str(path) for path in found if not any(fnmatch(part, one) for part in path.parts for one in NOT_KEPT)]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Built from a copy, without network: the wheel from the sdist, as ``nox -s release`` does."""
    folder, files = tmp_path_factory.mktemp("distribution"), _files()
    for name in files:
        (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / "source" / name)
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder)],
        cwd=folder / "source", env={**os.environ, "PYTHONPATH": ""}, capture_output=True, check=True, timeout=200,
    )  # fmt: skip
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return Built(set(files), sdist, wheel)


@pytest.fixture(scope="module")
def metadata(built: Built) -> Message:
    with zipfile.ZipFile(built.wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_bytes(archive.read(name))


def test_sdist_has_every_file_of_the_repository(built: Built) -> None:
    """Tests, examples, benchmarks, the manual, constraints, CI: nothing is left out, and nothing else is in it."""
    with tarfile.open(built.sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive if member.isfile()}
    missing, unknown = built.files - names, names - built.files
    assert not missing
    assert not {name for name in unknown if not GENERATED.fullmatch(name)}


def test_wheel_has_the_package_alone(built: Built) -> None:
    """With the mark of a typed package, the licence and the service's page, and without tests."""
    with zipfile.ZipFile(built.wheel) as archive:
        names = {name for name in archive.namelist() if not name.partition("/")[0].endswith(".dist-info")}
        assert any(name.endswith(".dist-info/licenses/LICENSE") for name in archive.namelist())
    package = {name for name in built.files if name.startswith("torchdata_remote/")}
    assert names == package
    assert {"torchdata_remote/py.typed", "torchdata_remote/service/server/page/index.html"} <= names


def test_metadata_name_licence_addresses_and_keywords(metadata: Message) -> None:
    """The licence as an SPDX expression, whose classifier would contradict it (PEP 639)."""
    assert metadata["License-Expression"] == "BSD-3-Clause"
    assert metadata["License"] is None
    classifiers = metadata.get_all("Classifier", [])
    assert not [one for one in classifiers if one.startswith("License")]
    assert {f"Programming Language :: Python :: 3.{minor}" for minor in range(10, 15)} <= set(classifiers)
    assert "Typing :: Typed" in classifiers
    assert {"pytorch", "datapipes", "webdataset", "s3"} <= set(metadata["Keywords"].split(","))
    addresses = [metadata["Home-page"], *(url.partition(", ")[2] for url in metadata.get_all("Project-URL", []))]
    assert all(url.startswith("https://pypi.org/project/torchdata-remote/") for url in addresses)


def test_s3fs_and_aiobotocore_are_dependencies(metadata: Message) -> None:
    """Not of an extra."""
    required = {
        re.split(r"[ <>=!;\[]", line)[0] for line in metadata.get_all("Requires-Dist", []) if "extra" not in line
    }
    assert {"torch", "obstore", "fsspec", "s3fs", "aiobotocore"} <= required
