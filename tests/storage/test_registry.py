"""Which transport reads which URL: the choice, its log message, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch.utils.data.datapipes.iter import IterableWrapper

from tests.servers.s3 import S3Server
from torchdata_remote import Backend, ShardWriter, stream_shards
from torchdata_remote.core.options import StorageOptions
from torchdata_remote.errors import UrlError
from torchdata_remote.storage import Connection, open_store
from torchdata_remote.storage.fsspec_store import FsspecStore
from torchdata_remote.storage.http_store import HttpStore
from torchdata_remote.storage.local.store import LocalStore
from torchdata_remote.storage.s3.store import S3Store

KEYS = {"key": "k", "secret": "canary-secret", "endpoint_url": "http://127.0.0.1:9"}
UNTRANSLATABLE = {**KEYS, "default_fill_cache": False}


@pytest.mark.parametrize(
    ("url", "options", "backend", "kind", "reason"),
    [
        ("s3://{}/a", KEYS, Backend.AUTOMATIC, S3Store, "is read by obstore (backend='automatic')"),
        ("s3://{}/a", KEYS, Backend.OBSTORE, S3Store, "is read by obstore (backend='obstore')"),
        ("s3://{}/a", KEYS, Backend.BOTOCORE, S3Store, "is read by botocore (backend='botocore')"),
        ("s3://{}/a", KEYS, Backend.FSSPEC, FsspecStore, "is read by fsspec (backend='fsspec')"),
        (
            "s3://{}/a",
            UNTRANSLATABLE,
            Backend.AUTOMATIC,
            FsspecStore,
            "is read by s3fs (no translation for 'default_fill_cache')",
        ),
        ("http://{}/a", {}, Backend.AUTOMATIC, HttpStore, "is read by obstore (backend='automatic')"),
        ("http://{}/a", {}, Backend.OBSTORE, HttpStore, "is read by obstore (backend='obstore')"),
        (
            "memory://{}/a",
            {"max_paths": 1},
            Backend.AUTOMATIC,
            FsspecStore,
            "is read by fsspec (the transport for all other URLs)",
        ),
        ("memory://{}/a", {"max_paths": 2}, Backend.FSSPEC, FsspecStore, "is read by fsspec (backend='fsspec')"),
    ],
)
def test_the_backend_is_chosen_by_url_and_options_and_logged_once(
    url: str,
    options: dict[str, Any],
    backend: Backend,
    kind: type,
    reason: str,
    caplog: pytest.LogCaptureFixture,
    request: pytest.FixtureRequest,
) -> None:
    """The log names the reason, and no secret."""
    target = url.format(f"bucket-{abs(hash(request.node.name))}")
    with caplog.at_level("INFO", "torchdata_remote"):
        stores = {id(open_store(target, StorageOptions(options), Connection(backend))[0]) for _ in range(3)}
    assert len(stores) == 1
    assert type(open_store(target, StorageOptions(options), Connection(backend))[0]) is kind
    lines = [record.getMessage() for record in caplog.records if " is read by " in record.getMessage()]
    assert [reason in line for line in lines if record_is_info(line)] == [True]
    assert "canary" not in caplog.text


def record_is_info(line: str) -> bool:
    return "slowly" not in line  # there is a warning about s3fs also


def test_local_files_are_read_without_fsspec_unless_it_is_chosen(tmp_path: Path) -> None:
    """A local path needs no library."""
    assert isinstance(open_store(f"{tmp_path}/a", StorageOptions())[0], LocalStore)
    assert isinstance(open_store(f"{tmp_path}/a", StorageOptions(), Connection(Backend.FSSPEC))[0], FsspecStore)


@pytest.mark.parametrize(
    ("url", "options", "backend"),
    [
        ("memory://a", {}, Backend.OBSTORE),
        ("/tmp/a", {}, Backend.BOTOCORE),
        ("http://host/a", {}, Backend.BOTOCORE),
        ("http://host/a", {"block_size": 5}, Backend.OBSTORE),
        ("s3://bucket/a", UNTRANSLATABLE, Backend.OBSTORE),
        ("s3://bucket/a", UNTRANSLATABLE, Backend.BOTOCORE),
    ],
)
def test_a_backend_that_cannot_read_a_url_is_refused(url: str, options: dict[str, Any], backend: Backend) -> None:
    """The error says which backend can; none is replaced silently."""
    with pytest.raises(UrlError, match=f"backend='{backend.value}' cannot read .*backend='automatic'") as caught:
        open_store(url, StorageOptions(options), Connection(backend))
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("backend", [*Backend, "botocore"])
def test_samples_do_not_depend_on_the_backend(moto: S3Server, backend: Any) -> None:
    """Each backend reads the same shards from a server."""
    folder = f"s3://{moto.new_bucket()}/shards"
    with ShardWriter(folder + "/{shard}.tar", storage_options=moto.storage_options) as writer:
        for number in range(20):
            writer.write({"__key__": f"{number}", "bin": bytes([number]) * 5_000})
    urls = IterableWrapper([folder + "/"]).list_remote(pattern="*.tar", storage_options=moto.storage_options)
    pipe = urls.async_prefetch(part_bytes=7_000, backend=backend, storage_options=moto.storage_options)
    expected = list(stream_shards(folder + "/", seed=None, storage_options=moto.storage_options))
    assert list(pipe.shard_tar_reader()) == expected
    assert len(expected) == 20


def test_files_of_other_names_are_other_options() -> None:
    """Although each path has the address of the one before, which was freed: a bucket keeps its own authorities."""
    paths = (Path(f"/{number}.pem") for number in range(50))
    assert len({StorageOptions({"client_kwargs": {"verify": path}}).identity() for path in paths}) == 50


def test_equal_files_are_equal_options() -> None:
    """Whether they are given as a text or a path."""
    one, other = ({"config_kwargs": {"client_cert": [kind("a.pem"), "a.key"]}} for kind in (str, Path))
    assert StorageOptions(one).identity() == StorageOptions(other).identity()
