"""The test Hub speaks what huggingface_hub expects of the Hub."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import HfApi, HfFileSystem
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from tests.servers.hub import TOKEN, Hub, running_hub

FILES = {
    "README.md": b"# About\n",
    "data/train-0.tar": b"\1" * 5000,
    "data/train-1.tar": b"\2" * 7000,
    "a b/ü.txt": b"x",
}


@pytest.fixture
def hub() -> Iterator[Hub]:
    with running_hub() as server:
        yield server


@pytest.fixture
def api(hub: Hub) -> HfApi:
    hub.repository("tests/official").commit(FILES)
    return HfApi(endpoint=hub.url, token=TOKEN)


def test_the_official_client_lists_and_downloads(hub: Hub, api: HfApi, tmp_path: Path) -> None:
    """In pages, with sizes and the names of contents; from the CDN without the token."""
    hub.page_size = 2
    listed = {one.path: one for one in api.list_repo_tree("tests/official", recursive=True, repo_type="dataset")}
    assert {path: one.size for path, one in listed.items() if hasattr(one, "size")} == {
        path: len(data) for path, data in FILES.items()
    }
    for path, data in FILES.items():
        at = api.hf_hub_download("tests/official", path, repo_type="dataset", local_dir=tmp_path)
        assert Path(at).read_bytes() == data
    assert hub.count("cdn") == 2
    assert not any(one.has_token for one in hub.requests if one.host == "cdn")


def test_the_official_filesystem_reads_ranges(hub: Hub, api: HfApi) -> None:
    """Of files in LFS and of others; at a commit too."""
    filesystem = HfFileSystem(endpoint=hub.url, token=TOKEN, skip_instance_cache=True)
    commit = hub.repository("tests/official").branches["main"]
    for root in ("datasets/tests/official", f"datasets/tests/official@{commit}"):
        assert sorted(filesystem.find(root)) == [f"{root}/{path}" for path in sorted(FILES)]
        for path, data in FILES.items():
            assert filesystem.cat_file(f"{root}/{path}", start=1, end=4) == data[1:4]
            assert filesystem.info(f"{root}/{path}")["size"] == len(data)


def test_the_official_client_tells_failures_apart(hub: Hub, api: HfApi) -> None:
    """A repository, a revision, a file that do not exist, and a gated repository."""
    root = f"{hub.url}/datasets/tests/official/resolve/main"
    with pytest.raises(RepositoryNotFoundError):
        api.dataset_info("tests/missing")
    with pytest.raises(RevisionNotFoundError):
        api.dataset_info("tests/official", revision="missing")
    with pytest.raises(EntryNotFoundError):
        api.get_hf_file_metadata(url=f"{root}/missing.tar")
    hub.repository("tests/official").is_gated = True
    with pytest.raises(GatedRepoError):
        api.get_hf_file_metadata(url=f"{root}/README.md")
