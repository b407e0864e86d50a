"""S3 servers that implement reading, writing and listing only."""

from __future__ import annotations

import logging
import time

import pytest
from torch.utils.data.datapipes.iter import IterableWrapper

from tests.servers.limited_s3 import limited
from tests.servers.s3 import S3Server
from tests.support.s3_stores import shared_bucket, store_of
from tests.support.shard_places import Place, some_files
from torchdata_remote import ShardTarReader, ShardWriter, shard_dataset
from torchdata_remote.errors import ObjectExistsError
from torchdata_remote.storage import FolderStore


def _is_listing_of_uploads(method: str, target: str) -> bool:
    return method == "GET" and "uploads" in target.partition("?")[2].split("&")


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@pytest.fixture(autouse=True)
def _parts_of_5_mib(monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest that S3 accepts."""
    monkeypatch.setattr("torchdata_remote.storage.multipart.UPLOAD_PART_BYTES", 5 << 20)


@pytest.mark.parametrize(
    ("status", "code"),
    [(501, "NotImplemented"), (405, "MethodNotAllowed"), (403, "AccessDenied"), (400, "NotImplemented")],
)
def test_a_store_that_cannot_list_uploads_is_warned_of_once(
    moto: S3Server, status: int, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Leftovers that cannot be removed are no error."""

    def refuses(method: str, target: str, headers: dict[str, str]) -> tuple[int, str] | None:
        return (status, code) if _is_listing_of_uploads(method, target) else None

    with limited(moto, refuses) as server, caplog.at_level(logging.WARNING, "torchdata_remote"):
        store = store_of(server, shared_bucket(moto))
        assert isinstance(store, FolderStore)
        store.remove_leftovers("a", lambda name: True)
        store.remove_old_leftovers("", time.time())
    (message,) = _warnings(caplog)
    assert "multipart uploads" in message
    assert str(status) in message


def test_a_job_runs_on_a_store_that_cannot_list_uploads(moto: S3Server, caplog: pytest.LogCaptureFixture) -> None:
    """A new one, and one that replaces its shards."""

    def refuses(method: str, target: str, headers: dict[str, str]) -> tuple[int, str] | None:
        return (501, "NotImplemented") if _is_listing_of_uploads(method, target) else None

    with limited(moto, refuses) as server, caplog.at_level(logging.WARNING, "torchdata_remote"):
        place = Place(f"s3://{server.new_bucket()}/d/", server)
        source = place.below("from").put(some_files(7))
        for overwrite in (False, True):
            shard_dataset(
                source,
                place.below("to").template(),
                max_shard_samples=3,
                overwrite=overwrite,
                storage_options=place.options,
                progress=False,
            )
        assert len(place.below("to").members()) == 7
    assert len(_warnings(caplog)) == 1


def test_a_store_that_cannot_abort_uploads_is_warned_of_once(moto: S3Server, caplog: pytest.LogCaptureFixture) -> None:
    """The writer is aborted without an error, twice, and the next job runs."""

    def refuses(method: str, target: str, headers: dict[str, str]) -> tuple[int, str] | None:
        return (501, "NotImplemented") if method == "DELETE" and "uploadId" in target else None

    with limited(moto, refuses) as server, caplog.at_level(logging.WARNING, "torchdata_remote"):
        place = Place(f"s3://{server.new_bucket()}/d/", server)
        for _ in range(2):
            writer = ShardWriter(place.template(), overwrite=True, storage_options=place.options)
            for number in range(3):
                writer.write({"__key__": f"{number}", "bin": bytes(2 << 20)})
            writer.abort()
        assert place.files() == {}
        shard_dataset(
            place.below("from").put(some_files(3)), place.template(), storage_options=place.options, progress=False
        )
    (message,) = _warnings(caplog)
    assert "multipart uploads" in message


@pytest.mark.parametrize(("status", "sample_bytes"), [(501, 10), (400, 2 << 20)])
def test_existing_objects_are_kept_on_a_store_without_conditional_writes(
    moto: S3Server, status: int, sample_bytes: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether an object exists is checked before it is written, in one request or in parts; this is warned of once."""

    def refuses(method: str, target: str, headers: dict[str, str]) -> tuple[int, str] | None:
        return (status, "NotImplemented") if "if-none-match" in headers else None

    with limited(moto, refuses) as server, caplog.at_level(logging.WARNING, "torchdata_remote"):
        place = Place(f"s3://{server.new_bucket()}/d/", server)
        with ShardWriter(place.template(), storage_options=place.options) as writer:
            for number in range(3):
                writer.write({"__key__": f"{number}", "bin": bytes(sample_bytes)})
        read = ShardTarReader(IterableWrapper([f"{place.url}000000.tar"]), storage_options=place.options)
        assert [sample["__key__"] for sample in read] == ["0", "1", "2"]
        with pytest.raises(ObjectExistsError), ShardWriter(place.template(), storage_options=place.options):
            pytest.fail("it was entered")
        later = ShardWriter(f"{place.below('later').url}{{shard}}.tar", storage_options=place.options)
        later.write({"__key__": "a", "txt": b""})
        place.below("later").put({"0.tar": b"of another"})
        with pytest.raises(ObjectExistsError, match=r"0\.tar"):
            later.close()
        assert place.below("later").files() == {"0.tar": b"of another"}
    (message,) = _warnings(caplog)
    assert "If-None-Match" in message
