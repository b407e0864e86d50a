"""Multipart uploads that killed processes left behind."""

from __future__ import annotations

from tests.servers.s3 import S3Server
from tests.support.s3_stores import store_of


def test_unfinished_uploads_of_chosen_keys_are_aborted(s3: S3Server, bucket: str) -> None:
    """In one folder only, chosen by the key's base name; complete objects stay."""
    client = s3.client()
    client.put_object(Bucket=bucket, Key="d/t-1.tar", Body=b"1")
    keys = ["d/t-1.tar", "d/t-1.tar", "d/t-2.tar", "d/t-x.tar", "d/t-/1.tar", "d/u-1.tar", "e/t-1.tar"]
    uploads = [client.create_multipart_upload(Bucket=bucket, Key=key)["UploadId"] for key in keys]
    client.upload_part(Bucket=bucket, Key=keys[0], UploadId=uploads[0], PartNumber=1, Body=b"1")
    seen: list[str] = []

    def is_ours(name: str) -> bool:
        seen.append(name)
        return name[2:-4].isdigit()

    store = store_of(s3, bucket)
    for _ in range(2):
        store.remove_leftovers("d/t-", is_ours)
    left = [upload["Key"] for upload in client.list_multipart_uploads(Bucket=bucket)["Uploads"]]
    assert sorted(left) == ["d/t-/1.tar", "d/t-x.tar", "d/u-1.tar", "e/t-1.tar"]
    assert set(seen) == {"t-1.tar", "t-2.tar", "t-x.tar"}
    assert client.get_object(Bucket=bucket, Key="d/t-1.tar")["Body"].read() == b"1"
