"""Messages of the service, without the place of its datasets."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("starlette", reason="the service's libraries are not installed")

from torchdata_remote.service.server.http.private_paths import without_root

SEGMENTS = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"], exclude_characters="/'\"\\"), min_size=1)
PATHS = st.lists(SEGMENTS.filter(lambda one: one not in (".", "..")), min_size=1, max_size=4).map("/".join)


@given(path=PATHS, before=st.sampled_from(["", "[Errno 13] denied: '", "No such file ", "("]))
@pytest.mark.parametrize("root", ["/srv/data/", "/srv/data", "file:///srv/data/", "local:///srv/data"])
def test_a_local_path_begins_below_the_root(root: str, before: str, path: str) -> None:
    """As a URL and as a path, anywhere in a sentence."""
    for spelled in ("/srv/data/", "file:///srv/data/"):
        assert without_root(f"{before}{spelled}{path}: no", root) == f"{before}{path}: no"


@given(path=PATHS)
@pytest.mark.parametrize("root", ["s3://bucket/deep/", "s3://bucket", "memory://x/"])
def test_a_url_of_a_bucket_begins_below_the_root(root: str, path: str) -> None:
    url = root.rstrip("/")
    assert without_root(f"{url}/{path}: no", root) == f"{path}: no"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("/srv/data is full.", "the service's root is full."),
        ("/srv/data/ is full", "the service's root is full"),
        ("file:///srv/data: no", "the service's root: no"),
        ("It is at /srv/data.", "It is at the service's root."),
        ("/srv/database/a", "/srv/database/a"),
        ("/mnt/srv/data/a", "/mnt/srv/data/a"),
        ("nothing", "nothing"),
    ],
)
def test_only_the_root_is_replaced(message: str, expected: str) -> None:
    """Not what begins or ends like it."""
    assert without_root(message, "/srv/data") == expected


def test_the_target_of_a_link_is_replaced(tmp_path: Path) -> None:
    """Errors of the system may have it."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "root").symlink_to("disk")
    assert without_root(f"{tmp_path}/disk/pets/1: no", str(tmp_path / "root")) == "pets/1: no"
