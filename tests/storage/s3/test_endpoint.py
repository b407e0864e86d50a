"""Where requests go at AWS, compared with its documentation: every host of AWS is a server that records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.servers.recording_s3 import Recorded, RecordingS3, Response
from tests.storage.s3.test_request_options import store_with
from tests.support.s3_stores import write
from torchdata_remote.errors import AccessDeniedError, StorageError
from torchdata_remote.storage.protocol import WrongRegionError
from torchdata_remote.storage.s3.store import S3Store

OPTIONS = {"key": "k", "secret": "s", "region": "us-west-2"}
ACCOUNT = "123456789012"
ACCELERATED = {"s3": {"use_accelerate_endpoint": True}}
ALIAS = "mine-hrzrlukc5m36ft7okagglf3gmwluquse1b-s3alias"
POINT = f"arn:aws:s3:us-west-2:{ACCOUNT}:accesspoint/mine"


def config(**more: Any) -> dict[str, Any]:
    return {"config_kwargs": more}


def hosts_of(aws: RecordingS3, store: S3Store) -> set[str]:
    """Send a request of each kind, and return the hosts that they went to."""
    write(store, "a", b"bytes")
    assert store.read("a", 1, 3, None).whole() == b"yt"
    assert store.read_without_obstore("a", 0, None, None).whole() == b"bytes"
    assert store.stat("a").size == 5
    assert [entry.path for entry in store.list_page("", recursive=True, token=None).entries] == ["a"]
    sent = aws.taken()
    assert [one.operation for one in sent if one.is_by_obstore] == ["GetObject"]
    return {one.host for one in sent}


@pytest.mark.parametrize(
    ("bucket", "options", "host"),
    [
        ("mine", {}, "mine.s3.us-west-2.amazonaws.com"),
        ("mine", {"region": "cn-north-1"}, "mine.s3.cn-north-1.amazonaws.com.cn"),
        ("mine", config(use_fips_endpoint=True), "mine.s3-fips.us-west-2.amazonaws.com"),
        ("mine", config(use_dualstack_endpoint=True), "mine.s3.dualstack.us-west-2.amazonaws.com"),
        ("mine", config(**ACCELERATED), "mine.s3-accelerate.amazonaws.com"),
        ("mine", config(**ACCELERATED, use_dualstack_endpoint=True), "mine.s3-accelerate.dualstack.amazonaws.com"),
        ("mine", config(s3={"addressing_style": "path"}), "s3.us-west-2.amazonaws.com"),
        ("with.dots", {}, "s3.us-west-2.amazonaws.com"),
        (POINT, {}, f"mine-{ACCOUNT}.s3-accesspoint.us-west-2.amazonaws.com"),
        (POINT, config(use_fips_endpoint=True), f"mine-{ACCOUNT}.s3-accesspoint-fips.us-west-2.amazonaws.com"),
        (ALIAS, {}, f"{ALIAS}.s3.us-west-2.amazonaws.com"),
    ],
    ids=["plain", "china", "fips", "dualstack", "accelerate", "both", "path", "dots", "point", "point-fips", "alias"],
)  # fmt: skip
def test_all_requests_go_to_the_host_of_the_bucket(
    aws: RecordingS3, bucket: str, options: dict[str, Any], host: str
) -> None:
    """By both transports.

    https://docs.aws.amazon.com/general/latest/gr/s3.html
    https://docs.aws.amazon.com/AmazonS3/latest/userguide/access-points-naming.html
    """
    assert hosts_of(aws, store_with({**OPTIONS, **options}, bucket)) == {host}


@pytest.mark.parametrize(
    ("variable", "host"),
    [
        ("AWS_USE_FIPS_ENDPOINT", "mine.s3-fips.us-west-2.amazonaws.com"),
        ("AWS_USE_DUALSTACK_ENDPOINT", "mine.s3.dualstack.us-west-2.amazonaws.com"),
    ],
)
def test_the_environment_selects_an_endpoint(
    aws: RecordingS3, variable: str, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For reads too, which botocore does not send."""
    monkeypatch.setenv(variable, "true")
    assert hosts_of(aws, store_with(OPTIONS, "mine")) == {host}


def test_a_directory_bucket_is_read_in_its_zone(aws: RecordingS3) -> None:
    """By sessions, whose token is sent as x-amz-s3session-token. botocore signs for s3express, obstore for s3.

    https://docs.aws.amazon.com/AmazonS3/latest/userguide/s3-express-create-session.html
    """
    bucket = "mine--usw2-az1--x-s3"
    store = store_with(OPTIONS, bucket)
    aws.objects["f/a"] = b"bytes"
    assert store.read("f/a", 1, 3, None).whole() == b"yt"
    assert store.read_without_obstore("f/a", 0, None, None).whole() == b"bytes"
    assert [entry.path for entry in store.list_page("f/", recursive=True, token=None).entries] == ["f/a"]
    sent = aws.taken()
    assert {one.host for one in sent} == {f"{bucket}.s3express-usw2-az1.us-west-2.amazonaws.com"}
    objects = [one for one in sent if one.operation in ("GetObject", "ListObjectsV2")]
    assert [one.headers["x-amz-s3session-token"] for one in objects] == ["of-session"] * 3
    assert {(one.is_by_obstore, *one.signed[:2]) for one in objects} == {
        (True, "us-west-2", "s3"),
        (False, "us-west-2", "s3express"),
    }
    assert {one.operation for one in sent} == {"CreateSession", "GetObject", "ListObjectsV2"}


def test_a_directory_bucket_is_listed_by_folders(aws: RecordingS3) -> None:
    """A prefix must end with a slash there, and a listing begins at its start.

    https://docs.aws.amazon.com/AmazonS3/latest/API/API_ListObjectsV2.html
    """
    store = store_with(OPTIONS, "mine--usw2-az1--x-s3")
    aws.objects |= {"f/a": b"1", "f/b": b"2"}
    store.list_page("f/a", recursive=True, token=None, after="f/a")
    assert store.find("f/a") is not None
    for one in aws.taken():
        if one.operation == "ListObjectsV2":
            assert one.query.get("prefix", "") in ("f/", "f/a/")
            assert "start-after" not in one.query


@pytest.mark.parametrize("anon", [False, True])
def test_the_region_of_a_bucket_is_found_once(aws: RecordingS3, anon: bool) -> None:
    """And it is read there by obstore from then on; AWS names the region in x-amz-bucket-region.

    https://docs.aws.amazon.com/AmazonS3/latest/API/API_HeadBucket.html
    """

    def elsewhere(request: Recorded) -> Response | None:
        if "eu-west-1" in request.host:
            return None
        body = b"<Error><Code>PermanentRedirect</Code><Endpoint>mine.s3.eu-west-1.amazonaws.com</Endpoint></Error>"
        return 301, {"x-amz-bucket-region": "eu-west-1"}, b"" if request.method == "HEAD" else body

    aws.objects["a"], aws.answer = b"bytes", elsewhere
    store = store_with({"anon": True, "region": "us-west-2"} if anon else OPTIONS, "mine")
    for _ in range(5):
        assert store.read("a", 1, 3, None).whole() == b"yt"
    sent = aws.taken()
    wrong = [one for one in sent if "eu-west-1" not in one.host]
    assert len(wrong) <= 2
    assert len([one for one in sent if one.operation == "HeadBucket"]) <= 2
    right = [one for one in sent if one not in wrong and one.operation == "GetObject"]
    assert [one.is_by_obstore for one in right] == [True] * 5
    assert {one.signed[0] for one in right} == {"" if anon else "eu-west-1"}


def test_what_obstore_cannot_sign_is_an_error_or_read_by_botocore(aws: RecordingS3) -> None:
    """Multi-region access points need SigV4a; S3 Object Lambda has a signature of its own.

    https://docs.aws.amazon.com/AmazonS3/latest/userguide/MultiRegionAccessPointRequests.html
    """
    aws.objects["a"] = b"bytes"
    lambda_point = f"arn:aws:s3-object-lambda:us-west-2:{ACCOUNT}:accesspoint/mine"
    store = store_with(OPTIONS, lambda_point)
    assert store.read("a", 0, None, None).whole() == b"bytes"
    [request] = [one for one in aws.taken() if one.operation == "GetObject"]
    assert (request.signed[1], request.is_by_obstore) == ("s3-object-lambda", False)
    with pytest.raises((StorageError, AccessDeniedError), match=r"(?i)awscrt|crt|sigv4a"):
        store_with(OPTIONS, f"arn:aws:s3::{ACCOUNT}:accesspoint/mine.mrap").stat("a")


def elsewhere(status: int, code: bytes, region: str | None) -> Any:
    """Answer like AWS to a request that is signed for another region than eu-west-1."""

    def answer(request: Recorded) -> Response | None:
        if request.signed[0] == "eu-west-1":
            return None
        body = b"<Error><Code>" + code + b"</Code>" + b"<Region>eu-west-1</Region>" * (status == 400) + b"</Error>"
        headers = {} if region is None else {"x-amz-bucket-region": region}
        return status, headers, b"" if request.method == "HEAD" else body

    return answer


@pytest.mark.parametrize("address", ["s3.amazonaws.com", "s3.us-west-2.amazonaws.com", "s3-us-west-2.amazonaws.com"])
@pytest.mark.parametrize(("status", "code"), [(301, b"PermanentRedirect"), (400, b"AuthorizationHeaderMalformed")])
def test_the_region_is_found_where_an_address_of_aws_is_given(
    aws: RecordingS3, address: str, status: int, code: bytes
) -> None:
    """It is usual in settings for other servers too. obstore goes on reading there."""
    aws.objects["a"], aws.answer = b"bytes", elsewhere(status, code, "eu-west-1")
    store = store_with({**OPTIONS, "endpoint_url": f"https://{address}"}, "mine")
    for _ in range(3):
        assert store.read("a", 1, 3, None).whole() == b"yt"
    right = [one for one in aws.taken() if one.operation == "GetObject" and one.signed[0] == "eu-west-1"]
    assert [one.is_by_obstore for one in right] == [True] * 3


@pytest.mark.parametrize(("status", "code"), [(301, b"PermanentRedirect"), (400, b"AuthorizationHeaderMalformed")])
def test_a_region_that_is_not_named_is_asked_for_once(aws: RecordingS3, status: int, code: bytes) -> None:
    """botocore would repeat HEAD until Python's stack overflows; the error is that of the read."""
    aws.objects["a"], aws.answer = b"bytes", elsewhere(status, code, None)
    with pytest.raises(WrongRegionError, match="The bucket is in "):
        store_with(OPTIONS, "mine").read("a", 0, None, None)
    assert len(aws.taken()) < 6


def test_the_addressing_style_of_the_configuration_file_holds_for_obstore_too(
    recorder: RecordingS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some servers know one style only. The server answers each host, as it is every host's proxy."""
    (tmp_path / "config").write_text("[default]\ns3 =\n    addressing_style = virtual\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    options = {**recorder.storage_options, "endpoint_url": "http://store.test"}
    proxies = {"config_kwargs": {"proxies": {"http": recorder.url}}}
    store = store_with({**options, **proxies}, "mine")
    recorder.answer = lambda _: (403, {}, b"")
    for attempt in (store.read, store.read_without_obstore):
        with pytest.raises(AccessDeniedError):
            attempt("a", 0, None, None)
    assert {one.host for one in recorder.taken()} == {"mine.store.test"}
