"""S3 servers that lack what S3 has beside reading, writing and listing."""

from __future__ import annotations

import logging

import pytest
from torch.utils.data.datapipes.iter import IterableWrapper

from tests.servers.limited_s3 import limited
from tests.servers.s3 import S3Server
from tests.support.shard_places import Place, some_files
from torchdata_remote import ShardTarReader, ShardWriter, shard_dataset
from torchdata_remote.errors import ObjectExistsError

REFUSALS = pytest.mark.parametrize(
    ("status", "code"),
    [(501, "NotImplemented"), (405, "MethodNotAllowed"), (403, "AccessDenied"), (400, "NotImplemented")],
)


def _is_listing_of_uploads(method: str, target: str) -> bool:
    return method == "GET" and "uploads" in target.partition("?")[2].split("&")


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@REFUSALS
def test_a_store_that_does_not_list_uploads_takes_a_job(
    moto: S3Server, status: int, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    """What cannot be cleaned up is said once."""

    def refuses(method: str, target: str, headers: dict[str, str]) -> tuple[int, str] | None:
        return (status, code) if _is_listing_of_uploads(method, target) else None

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
    (said,) = _warnings(caplog)
    assert "multipart uploads" in said
    assert str(status) in said


def test_a_store_that_does_not_abort_uploads_keeps_them(moto: S3Server, caplog: pytest.LogCaptureFixture) -> None:
    """What led to the abort is raised, and the rest is said once."""

    def refuses(method: str, target: str, headers: dict[str, str]) -> tuple[int, str] | None:
        return (501, "NotImplemented") if method == "DELETE" and "uploadId" in target else None

    with limited(moto, refuses) as server, caplog.at_level(logging.WARNING, "torchdata_remote"):
        place = Place(f"s3://{server.new_bucket()}/d/", server)
        for _ in range(2):
            writer = ShardWriter(place.template(), overwrite=True, storage_options=place.options)
            for number in range(3):
                writer.write({"__key__": f"{number}", "bin": bytes(9 << 20)})
            writer.abort()
        assert place.files() == {}
        shard_dataset(
            place.below("from").put(some_files(3)), place.template(), storage_options=place.options, progress=False
        )
    (said,) = _warnings(caplog)
    assert "multipart uploads" in said


@pytest.mark.parametrize(("status", "code"), [(501, "NotImplemented"), (400, "NotImplemented")])
@pytest.mark.parametrize("sample_bytes", [10, 9 << 20])
def test_a_store_without_conditional_writes_still_replaces_nothing(
    moto: S3Server, status: int, code: str, sample_bytes: int, caplog: pytest.LogCaptureFixture
) -> None:
    """It is looked first whether an object is there, which is said once; parts of large objects too."""

    def refuses(method: str, target: str, headers: dict[str, str]) -> tuple[int, str] | None:
        return (status, code) if "if-none-match" in headers else None

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
    (said,) = _warnings(caplog)
    assert "If-None-Match" in said
