"""S3 as a store: every promise holds against each server."""

from __future__ import annotations

import functools
import gc
import io
import json
import os
import pathlib
import uuid
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import urllib3
from botocore import exceptions as boto
from botocore.response import StreamingBody
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.servers.s3 import S3Server, free_port
from tests.support.read_once import read_once
from torchdata_remote.core.options import RetryPolicy, StorageOptions
from torchdata_remote.errors import (
    AccessDeniedError,
    ObjectChangedError,
    ObjectExistsError,
    ObjectNotFoundError,
    StorageError,
    TransientStorageError,
    UrlError,
)
from torchdata_remote.storage import multipart as _multipart
from torchdata_remote.storage.fsspec_store import FsspecStore
from torchdata_remote.storage.registry import RangeNotSatisfiableError, Store, open_store
from torchdata_remote.storage.s3.obstore import s3_reader
from torchdata_remote.storage.s3.settings import make_client, make_session, s3_settings
from torchdata_remote.storage.s3.store import S3Store
from torchdata_remote.storage.s3.upload import S3Writer

MIB = 1 << 20
ODD_KEYS = [
    "a b/c d.bin",
    "%20.bin",
    "a%2Fb.bin",
    "a#b.bin",
    "a?b=c.bin",
    "a+b.bin",
    "a&b=c;d,e.bin",
    "a*b[0-9]{1,2}.bin",
    "å/日本/😀.bin",
    "e\u0301 is not \u00e9.bin",
    "dir//x.bin",
    "a/../b.bin",
    "a/./b.bin",
    "../b.bin",
    "'quotes\" and \\ and |.bin",
    "~tilde(1)!.bin",
    "/begins/with/a/slash.bin",
    "ends/with/a/slash/",
    "x" * 900,
]


@functools.cache
def client_of(server: S3Server) -> Any:
    """A client that is independent of the package under test; making one takes a tenth of a second."""
    return server.client()


@pytest.fixture
def bucket(s3: S3Server) -> str:
    """A new bucket on each server in turn."""
    return new_bucket(s3)


def new_bucket(server: S3Server) -> str:
    name = f"test-{uuid.uuid4().hex[:12]}"
    client_of(server).create_bucket(Bucket=name)
    return name


def store_of(server: S3Server, bucket: str, **more: Any) -> Store:
    return open_store(f"s3://{bucket}", StorageOptions({**server.storage_options, **more}))[0]


def s3_store(server: S3Server, bucket: str, *, read_by_obstore: bool) -> S3Store:
    settings_of_s3 = s3_settings(StorageOptions(server.storage_options))
    assert settings_of_s3 is not None
    return S3Store(bucket, settings_of_s3, read_by_obstore=read_by_obstore)


@functools.cache
def shared_stores(server: S3Server) -> tuple[str, Store, Store, Store]:
    """A bucket that tests share, and the three ways to read it."""
    bucket = new_bucket(server)
    by_obstore, by_botocore = (s3_store(server, bucket, read_by_obstore=flag) for flag in (True, False))
    return bucket, by_obstore, by_botocore, store_of(server, bucket, default_fill_cache=False)


def write(store: Store, path: str, data: bytes, *, overwrite: bool = False) -> None:
    pending = store.create(path, overwrite=overwrite)
    pending.write(data)
    pending.commit()


def read(store: Store, path: str, etag: str | None = None) -> bytes:
    return store.read(path, 0, None, etag).whole()


def uploads_left(server: S3Server, bucket: str) -> list[Any]:
    return list(client_of(server).list_multipart_uploads(Bucket=bucket).get("Uploads", []))


def shown(error: BaseException) -> str:
    """All that a user might see of an error: its text, its attributes and its causes."""
    told = ""
    link: BaseException | None = error
    while link is not None:
        told += f"{link} {link!r} {vars(link)}"
        link = link.__cause__ or link.__context__
    return told


@pytest.fixture(params=["obstore", "botocore", "s3fs"])
def any_store(request: pytest.FixtureRequest, s3: S3Server, bucket: str) -> Store:
    """Each way to read S3, on each server."""
    if request.param == "s3fs":
        return store_of(s3, bucket, default_fill_cache=False)
    return s3_store(s3, bucket, read_by_obstore=request.param == "obstore")


def test_reads_back_what_was_written(any_store: Store) -> None:
    """Bytes, size and etag of an object are what was written, whatever the transport."""
    pending = any_store.create("a/b.bin", overwrite=False)
    pending.write(b"01234")
    pending.write(b"56789")
    pending.commit()
    answer = any_store.read("a/b.bin", 2, 5, None)
    assert answer.whole() == b"234"
    assert answer.total_bytes == 10
    entry = any_store.stat("a/b.bin")
    assert entry == any_store.find("a/b.bin")
    assert (entry.path, entry.size) == ("a/b.bin", 10)
    assert answer.etag
    assert answer.etag == entry.etag
    [listed] = any_store.list_page("a/", recursive=True, token=None).entries
    assert listed == entry


@pytest.mark.parametrize(("start", "end"), [(0, 1), (0, 9), (0, 10), (0, 99), (3, 4), (3, 99), (9, 10), (9, 11)])
def test_range_is_a_slice(any_store: Store, start: int, end: int) -> None:
    """A range gives the bytes that a slice would, also beyond the end."""
    write(any_store, "a.bin", b"0123456789")
    answer = any_store.read("a.bin", start, end, None)
    assert (answer.whole(), answer.total_bytes) == (b"0123456789"[start:end], 10)


@pytest.mark.parametrize("start", [10, 11])
def test_range_behind_the_end_is_an_error(any_store: Store, start: int) -> None:
    """A range that holds no byte of the object is told apart from an empty answer."""
    write(any_store, "a.bin", b"0123456789")
    with pytest.raises(RangeNotSatisfiableError):
        any_store.read("a.bin", start, start + 5, None)


def test_empty_object(any_store: Store) -> None:
    """An object without bytes can be written, found and read."""
    write(any_store, "empty", b"")
    answer = any_store.read("empty", 0, None, None)
    assert (answer.whole(), answer.total_bytes) == (b"", 0)
    assert any_store.stat("empty").size == 0


@pytest.mark.parametrize("key", ODD_KEYS)
def test_odd_keys(any_store: Store, s3: S3Server, bucket: str, key: str) -> None:
    """A key means exactly itself: the bytes lie under that key, and no other comes with them."""
    try:
        client_of(s3).put_object(Bucket=bucket, Key=key, Body=b"before")
        assert client_of(s3).get_object(Bucket=bucket, Key=key)["Body"].read() == b"before"
    except boto.ClientError as error:
        pytest.skip(f"{s3.name} does not take the key: {error}")
    if isinstance(any_store, FsspecStore) and (key.startswith("/") or key.endswith("/")):
        pytest.skip("s3fs strips slashes at the ends of a key")
    assert read(any_store, key) == b"before"
    write(any_store, key, b"after", overwrite=True)
    assert read(any_store, key) == b"after"
    assert any_store.stat(key).size == 5
    assert [found["Key"] for found in client_of(s3).list_objects_v2(Bucket=bucket)["Contents"]] == [key]
    any_store.delete(key)
    assert "Contents" not in client_of(s3).list_objects_v2(Bucket=bucket)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(key=st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cn"]), min_size=1, max_size=40))
def test_any_key(ceph: S3Server, key: str) -> None:
    """Whatever text the key is, obstore and botocore read the object under exactly that key."""
    bucket, by_obstore, by_botocore, _ = shared_stores(ceph)
    client_of(ceph).put_object(Bucket=bucket, Key=key, Body=key.encode())
    assert read(by_obstore, key) == key.encode()
    assert read(by_botocore, key) == key.encode()


def test_delete(any_store: Store) -> None:
    """A deleted object is gone; deleting what is not there is fine."""
    write(any_store, "a", b"1")
    any_store.delete("a")
    assert any_store.find("a") is None
    any_store.delete("a")


def test_find_needs_the_whole_key(any_store: Store) -> None:
    """``find`` is exact: neither longer keys nor folders count."""
    for path in ("dir/a.bin", "dir2", "b", "bb"):
        write(any_store, path, b"1")
    assert any_store.find("dir") is None
    assert any_store.find("dir/a") is None
    assert any_store.find("b") == any_store.stat("b")


def test_never_overwrites_unless_told_to(any_store: Store) -> None:
    """Without ``overwrite`` what is there stays, and the error says so."""
    write(any_store, "a", b"first")
    with pytest.raises(ObjectExistsError, match="/a exists already") as caught:
        write(any_store, "a", b"second")
    assert isinstance(caught.value, FileExistsError)
    assert read(any_store, "a") == b"first"
    write(any_store, "a", b"third", overwrite=True)
    assert read(any_store, "a") == b"third"


def test_nothing_appears_before_commit(any_store: Store) -> None:
    """What is being written is not visible, and an aborted object never becomes so."""
    pending = any_store.create("a", overwrite=False)
    pending.write(b"12345")
    assert any_store.find("a") is None
    pending.abort()
    assert any_store.find("a") is None
    pending.abort()


def test_old_version_is_refused(any_store: Store, s3: S3Server, bucket: str) -> None:
    """Reading with the etag of a version that was replaced is an error, not a mixture."""
    write(any_store, "a", b"first version")
    etag = any_store.stat("a").etag
    assert read(any_store, "a", etag) == b"first version"
    client_of(s3).put_object(Bucket=bucket, Key="a", Body=b"other version")
    with pytest.raises(ObjectChangedError, match="a"):
        read_once(any_store, "a", 0, 5, etag)


def test_listed_version_is_refused_once_replaced(any_store: Store, s3: S3Server, bucket: str) -> None:
    """The etag of a listing is as good as the etag of a stat: no cache of the listing stands in for the store."""
    client_of(s3).put_object(Bucket=bucket, Key="a/b", Body=b"first version")
    [entry] = any_store.list_page("a/", recursive=True, token=None).entries
    client_of(s3).put_object(Bucket=bucket, Key="a/b", Body=b"other version")
    with pytest.raises(ObjectChangedError):
        read_once(any_store, "a/b", 0, 5, entry.etag)


def test_replaced_between_two_requests(s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where reading takes a stat and a GET, a version that comes between them is not taken for the one before."""
    store = store_of(s3, bucket, default_fill_cache=False)
    write(store, "a", b"first version")
    etag = store.stat("a").etag
    assert isinstance(store, FsspecStore)
    cat_file = store._filesystem.cat_file

    def replaced_before(*arguments: Any, **keywords: Any) -> Any:
        client_of(s3).put_object(Bucket=bucket, Key="a", Body=b"other version")
        return cat_file(*arguments, **keywords)

    monkeypatch.setattr(store._filesystem, "cat_file", replaced_before)
    with pytest.raises(ObjectChangedError):
        read_once(store, "a", 0, 5, etag)


@pytest.mark.parametrize("more", [{}, {"default_fill_cache": False}])
def test_a_forked_child_leaves_the_parents_stores_alone(moto: S3Server, more: dict[str, Any]) -> None:
    """A child makes stores of its own and ends none of its parent's: closing a connection there may hang."""
    bucket = new_bucket(moto)
    store = store_of(moto, bucket, **more)
    write(store, "a", b"1")
    assert read(store, "a") == b"1"
    inherited = weakref.ref(store)
    del store
    child = os.fork()
    if child == 0:
        gc.collect()
        os._exit(7 if inherited() is not None else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert store_of(moto, bucket, **more) is inherited()


def test_stat_is_fresh(any_store: Store, s3: S3Server, bucket: str) -> None:
    """``stat`` asks the store each time."""
    client_of(s3).put_object(Bucket=bucket, Key="a/b", Body=b"1")
    any_store.list_page("a/", recursive=True, token=None)
    assert any_store.stat("a/b").size == 1
    client_of(s3).put_object(Bucket=bucket, Key="a/b", Body=b"22")
    assert any_store.stat("a/b").size == 2
    client_of(s3).delete_object(Bucket=bucket, Key="a/b")
    assert any_store.find("a/b") is None


def test_no_such_key(any_store: Store, bucket: str) -> None:
    """A key that is not there is a FileNotFoundError that names the URL."""
    for attempt in (lambda: any_store.stat("no/such.tar"), lambda: any_store.read("no/such.tar", 0, 10, None)):
        with pytest.raises(ObjectNotFoundError, match=f"s3://{bucket}/no/such.tar") as caught:
            attempt()
        assert isinstance(caught.value, FileNotFoundError)
        assert caught.value.url == f"s3://{bucket}/no/such.tar"
    assert any_store.find("no/such.tar") is None


@pytest.mark.parametrize("transport", ["obstore", "botocore", "s3fs"])
def test_no_such_bucket(s3: S3Server, transport: str) -> None:
    """A bucket that is not there is a FileNotFoundError that names it, whatever is asked of it."""
    bucket = f"none-{uuid.uuid4().hex}"
    store: Store
    if transport == "s3fs":
        store = store_of(s3, bucket, default_fill_cache=False)
    else:
        store = s3_store(s3, bucket, read_by_obstore=transport == "obstore")
    attempts: list[Callable[[], object]] = [
        lambda: store.list_page("", recursive=True, token=None),
        lambda: store.stat("a"),
        lambda: store.read("a", 0, 10, None),
        lambda: write(store, "a", b"1"),
    ]
    for number, attempt in enumerate(attempts):
        if transport == "s3fs" and number == 0:
            continue  # its listing of nothing is empty
        with pytest.raises(ObjectNotFoundError, match=f"s3://{bucket}"):
            attempt()


def test_bucket_is_named_in_the_message(s3: S3Server) -> None:
    """A listing tells a missing bucket from an empty one."""
    bucket = f"none-{uuid.uuid4().hex}"
    with pytest.raises(ObjectNotFoundError, match=f"s3://{bucket}/x: no such bucket"):
        store_of(s3, bucket).list_page("x", recursive=True, token=None)


@pytest.mark.parametrize("transport", ["translated", "botocore", "s3fs"])
def test_wrong_secret(ceph: S3Server, transport: str) -> None:
    """A wrong secret is an AccessDeniedError that names the URL and never the secret."""
    bucket = new_bucket(ceph)
    client_of(ceph).put_object(Bucket=bucket, Key="a", Body=b"1")
    wrong = S3Server("ceph", ceph.endpoint_url, ceph.key, "Sup3rS3cretCanary")
    store: Store
    if transport == "botocore":
        store = s3_store(wrong, bucket, read_by_obstore=False)
    else:
        store = store_of(wrong, bucket, **({"default_fill_cache": False} if transport == "s3fs" else {}))
    attempts: list[Callable[[], object]] = [
        lambda: store.list_page("", recursive=True, token=None),
        lambda: store.stat("a"),
        lambda: store.read("a", 0, 10, None),
        lambda: write(store, "b", b"1"),
        lambda: store.delete("a"),
    ]
    for attempt in attempts:
        with pytest.raises(AccessDeniedError, match=f"s3://{bucket}/") as caught:
            attempt()
        assert isinstance(caught.value, PermissionError)
        assert "Sup3rS3cretCanary" not in shown(caught.value)
    assert client_of(ceph).get_object(Bucket=bucket, Key="a")["Body"].read() == b"1"


def test_secrets_are_not_in_reprs(s3: S3Server, bucket: str) -> None:
    """No object of a store shows key or secret."""
    store = s3_store(s3, bucket, read_by_obstore=True)
    write(store, "a", b"1")
    read(store, "a")
    shown_by = f"{store!r} {store._settings!r} {store._obstore!r} {StorageOptions(s3.storage_options)!r}"
    assert s3.secret not in shown_by
    assert s3.key not in shown_by


def test_no_credentials(s3: S3Server, bucket: str) -> None:
    """Without credentials anywhere the error says where they could come from."""
    store, _ = open_store(f"s3://{bucket}", StorageOptions({"endpoint_url": s3.endpoint_url}))
    attempts: list[Callable[[], object]] = [
        lambda: store.list_page("", recursive=True, token=None),
        lambda: store.read("a", 0, 10, None),
    ]
    for attempt in attempts:
        with pytest.raises(AccessDeniedError, match="AWS_ACCESS_KEY_ID"):
            attempt()


@pytest.mark.parametrize("lone", [{"key": "k"}, {"secret": "s"}, {"token": "t"}])
def test_half_of_the_credentials(s3: S3Server, bucket: str, lone: dict[str, str]) -> None:
    """A key without its secret, or a token without either, is refused rather than dropped."""
    with pytest.raises(AccessDeniedError, match=bucket):
        open_store(f"s3://{bucket}", StorageOptions({"endpoint_url": s3.endpoint_url, **lone}))


def test_credentials_from_the_environment(s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are enough."""
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    store, path = open_store(f"s3://{bucket}/a", StorageOptions())
    write(store, path, b"12")
    assert read(store, path) == b"12"
    assert store.find(path) is not None


def test_credentials_that_come_later(s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a refusal for want of credentials, setting them in the environment is enough to go on."""
    client_of(s3).put_object(Bucket=bucket, Key="a", Body=b"12")
    options = StorageOptions({"endpoint_url": s3.endpoint_url})
    with pytest.raises(AccessDeniedError):
        read(open_store(f"s3://{bucket}", options)[0], "a")
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    assert read(open_store(f"s3://{bucket}", options)[0], "a") == b"12"


def test_credentials_from_a_profile(
    s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """``profile`` names a section of the config file, for listing and for reading."""
    config = tmp_path / "config"
    config.write_text(
        f"[profile lab]\naws_access_key_id = {s3.key}\naws_secret_access_key = {s3.secret}\n"
        f"endpoint_url = {s3.endpoint_url}\nregion = eu-central-1\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    store, path = open_store(f"s3://{bucket}/a", StorageOptions({"profile": "lab"}))
    assert isinstance(store, S3Store)
    assert store.client.meta.region_name == "eu-central-1"
    write(store, path, b"12")
    assert read(store, path) == b"12"
    with pytest.raises(AccessDeniedError, match="nobody"):
        open_store(f"s3://{bucket}/a", StorageOptions({"profile": "nobody"}))


@pytest.mark.parametrize("transport", ["translated", "s3fs"])
def test_anon_reads_a_public_bucket(ceph: S3Server, monkeypatch: pytest.MonkeyPatch, transport: str) -> None:
    """``anon`` reads without a signature what everybody may read, even where credentials are at hand."""
    bucket = new_bucket(ceph)
    client = client_of(ceph)
    client.put_bucket_acl(Bucket=bucket, ACL="public-read")
    client.put_object(Bucket=bucket, Key="a/public", Body=b"12", ACL="public-read")
    client.put_object(Bucket=bucket, Key="a/private", Body=b"34")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "wrong")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    more = {"default_fill_cache": False} if transport == "s3fs" else {}
    options = StorageOptions({"endpoint_url": ceph.endpoint_url, "anon": True, **more})
    store, _ = open_store(f"s3://{bucket}", options)
    listed = store.list_page("a/", recursive=True, token=None).entries
    assert sorted(entry.path for entry in listed) == ["a/private", "a/public"]
    assert read(store, "a/public") == b"12"
    with pytest.raises(AccessDeniedError, match=f"s3://{bucket}/a/private"):
        read(store, "a/private")


@pytest.mark.parametrize("options", [{"region": "eu-west-3"}, {"client_kwargs": {"region_name": "eu-west-3"}}])
@pytest.mark.parametrize("more", [{}, {"default_fill_cache": False}])
def test_region(s3: S3Server, bucket: str, options: dict[str, Any], more: dict[str, Any]) -> None:
    """The region comes by its own option and, as in s3fs, through ``client_kwargs``."""
    store = store_of(s3, bucket, **options, **more)
    write(store, "a", b"12")
    assert read(store, "a") == b"12"
    if isinstance(store, S3Store):
        assert store.client.meta.region_name == "eu-west-3"
    else:
        assert isinstance(store, FsspecStore)
        assert store._filesystem.client_kwargs["region_name"] == "eu-west-3"


def test_client_kwargs_are_translated(s3: S3Server, bucket: str) -> None:
    """Endpoint and credentials may come in s3fs's ``client_kwargs`` too."""
    given_by = {
        "endpoint_url": s3.endpoint_url,
        "aws_access_key_id": s3.key,
        "aws_secret_access_key": s3.secret,
    }
    store, _ = open_store(f"s3://{bucket}", StorageOptions({"client_kwargs": given_by}))
    assert isinstance(store, S3Store)
    write(store, "a", b"12")
    assert read(store, "a") == b"12"


@pytest.mark.parametrize("more", [{"default_fill_cache": False}, {"client_kwargs": {"use_ssl": False}}])
def test_option_without_translation_selects_s3fs(s3: S3Server, bucket: str, more: dict[str, Any]) -> None:
    """An option that only s3fs knows is not dropped: s3fs gets it, and everything still works."""
    store = store_of(s3, bucket, **more)
    assert isinstance(store, FsspecStore)
    for name, value in more.items():
        assert store._filesystem.storage_options[name] == value
    write(store, "a/b", b"12")
    assert read(store, "a/b") == b"12"


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(size=st.integers(0, 300), start=st.integers(0, 300), length=st.integers(1, 300))
def test_transports_give_the_same(moto: S3Server, size: int, start: int, length: int) -> None:
    """obstore, botocore and s3fs answer every range alike."""
    bucket, *stores = shared_stores(moto)
    data, key = os.urandom(size), uuid.uuid4().hex
    client_of(moto).put_object(Bucket=bucket, Key=key, Body=data)
    for store in stores:
        if start >= size and size:
            with pytest.raises(RangeNotSatisfiableError):
                store.read(key, start, start + length, None)
        elif start < size:
            answer = store.read(key, start, start + length, store.stat(key).etag)
            assert answer.whole() == data[start : start + length]
            assert answer.total_bytes == size


def test_large_upload_appears_whole(s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object of several upload parts appears at once, with the bytes in order."""
    monkeypatch.setattr(_multipart, "UPLOAD_PART_BYTES", 5 * MIB)
    store, data = store_of(s3, bucket), os.urandom(17 * MIB + 123)
    pending = store.create("big", overwrite=False)
    for start in range(0, len(data), 3 * MIB):
        pending.write(data[start : start + 3 * MIB])
        assert store.find("big") is None
    assert len(uploads_left(s3, bucket)) == 1
    pending.commit()
    pending.abort()  # safe after a commit, and takes nothing away
    assert read(store, "big") == data
    assert uploads_left(s3, bucket) == []


def test_aborted_upload_leaves_nothing(s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither an object nor a multipart upload is left of one that is given up."""
    monkeypatch.setattr(_multipart, "UPLOAD_PART_BYTES", 5 * MIB)
    store = store_of(s3, bucket)
    pending = store.create("big", overwrite=False)
    pending.write(bytes(12 * MIB))
    assert len(uploads_left(s3, bucket)) == 1
    pending.abort()
    assert uploads_left(s3, bucket) == []
    assert store.find("big") is None
    pending.abort()


def test_large_upload_never_overwrites(s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A multipart upload keeps what is there too, and can be given up after it was refused."""
    monkeypatch.setattr(_multipart, "UPLOAD_PART_BYTES", 5 * MIB)
    store = store_of(s3, bucket)
    pending = store.create("big", overwrite=False)
    pending.write(bytes(6 * MIB))
    write(store, "big", b"first")
    with pytest.raises(ObjectExistsError, match=f"s3://{bucket}/big exists already"):
        pending.commit()
    pending.abort()
    assert read(store, "big") == b"first"
    assert uploads_left(s3, bucket) == []
    pending = store.create("big", overwrite=True)
    pending.write(bytes(6 * MIB))
    pending.commit()
    assert read(store, "big") == bytes(6 * MIB)


def test_failed_part_is_raised(moto: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that the store refuses comes out of ``write`` or ``commit``, and nothing is left."""
    monkeypatch.setattr(_multipart, "UPLOAD_PART_BYTES", 5 * MIB)
    bucket = new_bucket(moto)
    store = s3_store(moto, bucket, read_by_obstore=True)

    def refuse(**request: Any) -> Any:
        raise boto.ClientError({"Error": {"Code": "AccessDenied"}, "ResponseMetadata": {"HTTPStatusCode": 403}}, "Put")

    monkeypatch.setattr(store.client, "upload_part", refuse)
    pending = store.create("big", overwrite=False)

    def write_all() -> None:
        for _ in range(4):
            pending.write(bytes(5 * MIB))
        pending.commit()

    with pytest.raises(AccessDeniedError, match=f"s3://{bucket}/big"):
        write_all()
    pending.abort()
    assert uploads_left(moto, bucket) == []
    assert store.find("big") is None


def lose_first_answer(call: Callable[..., Any]) -> Callable[..., Any]:
    """The request arrives and works, but the connection breaks before the first answer does."""
    calls = []

    def lossy(**request: Any) -> Any:
        answer = call(**request)
        calls.append(request)
        if len(calls) == 1:
            raise boto.ConnectionClosedError(endpoint_url="http://store")
        return answer

    return lossy


def test_lost_answer_to_a_put(s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A PUT whose answer was lost is repeated safely: our own object is no reason to refuse it."""
    store = s3_store(s3, bucket, read_by_obstore=True)
    monkeypatch.setattr(store.client, "put_object", lose_first_answer(store.client.put_object))
    write(store, "a", b"12345")
    assert read(store, "a") == b"12345"


def test_lost_answer_to_a_completion(s3: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a multipart upload whose answer was lost is repeated safely."""
    monkeypatch.setattr(_multipart, "UPLOAD_PART_BYTES", 5 * MIB)
    store = s3_store(s3, bucket, read_by_obstore=True)
    complete = lose_first_answer(store.client.complete_multipart_upload)
    monkeypatch.setattr(store.client, "complete_multipart_upload", complete)
    data = os.urandom(6 * MIB)
    write(store, "a", data)
    assert read(store, "a") == data
    assert uploads_left(s3, bucket) == []


def test_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused connection is worth a repetition, by every transport; the error names the URL."""
    nowhere = S3Server("nowhere", f"http://127.0.0.1:{free_port()}", "k", "Sup3rS3cretCanary")
    for read_by_obstore in (True, False):
        store = s3_store(nowhere, "bucket", read_by_obstore=read_by_obstore)
        with pytest.raises(TransientStorageError, match="s3://bucket/a") as caught:
            store.read("a", 0, 10, None)
        assert "Sup3rS3cretCanary" not in shown(caught.value)


def test_writes_repeat_passing_faults(moto: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A 503 on a PUT is repeated below ``commit``."""
    store = s3_store(moto, new_bucket(moto), read_by_obstore=True)
    put, faults = store.client.put_object, [503, 500]

    def faulty(**request: Any) -> Any:
        if faults:
            status = faults.pop()
            raise boto.ClientError({"Error": {"Code": "x"}, "ResponseMetadata": {"HTTPStatusCode": status}}, "Put")
        return put(**request)

    monkeypatch.setattr(store.client, "put_object", faulty)
    pending = store.create("a", overwrite=False)
    assert isinstance(pending, S3Writer)
    pending._retry = RetryPolicy(first_wait_s=0, max_wait_s=0)
    pending.write(b"12")
    pending.commit()
    assert faults == []
    assert read(store, "a") == b"12"


@pytest.mark.parametrize("url", ["s3://", "s3:///a", "s3://me:pw@bucket/a"])
def test_no_bucket(url: str, moto: S3Server) -> None:
    """A URL without a bucket, or with a password, is a UrlError before anything is asked."""
    with pytest.raises(UrlError) as caught:
        open_store(url, StorageOptions(moto.storage_options))
    assert "pw" not in shown(caught.value)


def test_no_key(s3: S3Server, bucket: str) -> None:
    """A bucket is not an object."""
    for read_by_obstore in (True, False):
        store = s3_store(s3, bucket, read_by_obstore=read_by_obstore)
        with pytest.raises(UrlError, match=f"s3://{bucket}/"):
            store.read("", 0, 10, None)


@pytest.mark.parametrize("endpoint", ["not a url", "127.0.0.1:9000", ""])
def test_endpoint_that_is_no_url(endpoint: str) -> None:
    """A broken endpoint is named as what is wrong."""
    with pytest.raises(UrlError, match="endpoint"):
        open_store("s3://bucket/a", StorageOptions({"endpoint_url": endpoint, "key": "k", "secret": "s"}))


@pytest.mark.parametrize(
    "endpoint",
    [
        "https://bucket.vpce-1a2b3c4d-5e6f.s3.us-east-1.vpce.amazonaws.com",
        "https://s3.dualstack.eu-west-1.amazonaws.com",
        "https://s3-fips.us-east-1.amazonaws.com",
        "http://127.0.0.1:9000",
        "http://127.0.0.1:9000/prefix",
    ],
)
def test_endpoint_is_the_same_for_every_transport(endpoint: str) -> None:
    """What is read goes to the endpoint that the listing goes to, also where that belongs to AWS."""
    settings_of_s3 = s3_settings(StorageOptions({"endpoint_url": endpoint, "key": "k", "secret": "s"}))
    assert settings_of_s3 is not None
    session = make_session(settings_of_s3, "s3://bucket")
    client = make_client(settings_of_s3, session, "s3://bucket")
    reader = s3_reader("bucket", settings_of_s3, session, lambda: client)
    assert client.meta.endpoint_url == endpoint
    config: dict[str, Any] = getattr(reader._store, "config")  # noqa: B009  # not in obstore's stubs for all stores
    assert config.get("endpoint") == endpoint


def test_token_is_sent(moto: S3Server) -> None:
    """A session token goes along with key and secret, in every transport."""
    settings_of_s3 = s3_settings(StorageOptions({**moto.storage_options, "token": "session-token"}))
    assert settings_of_s3 is not None
    session = make_session(settings_of_s3, "s3://bucket")
    assert session.get_credentials().get_frozen_credentials().token == "session-token"
    reader = s3_reader("bucket", settings_of_s3, session, lambda: make_client(settings_of_s3, session, ""))
    provider: Any = getattr(reader._store, "credential_provider")  # noqa: B009
    assert provider()["token"] == "session-token"


def raw_body(data: bytes) -> StreamingBody:
    """A body as botocore gives it."""
    return StreamingBody(urllib3.HTTPResponse(io.BytesIO(data), preload_content=False), len(data))


def test_read_answers_are_checked(moto: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body that is not the range asked for is never taken for it."""
    store = s3_store(moto, new_bucket(moto), read_by_obstore=False)
    lies: list[tuple[int, dict[str, str], bytes]] = [
        (206, {"content-length": "4", "content-range": "bytes 0-3/10"}, b"234"),
        (206, {"content-length": "3", "content-range": "bytes 2-4/10"}, b"234"),
        (206, {"content-length": "4", "content-range": "bytes 3-6/10"}, b"3456"),
        (206, {"content-length": "10"}, b"0123456789"),
        (200, {"content-length": "10"}, b"01234567"),
    ]
    for status, headers, body in lies:
        answer = {
            "ETag": '"e"',
            "Body": raw_body(body),
            "ResponseMetadata": {"HTTPStatusCode": status, "HTTPHeaders": headers},
        }
        monkeypatch.setattr(store.client, "get_object", lambda answer=answer, **request: answer)
        with pytest.raises(TransientStorageError):
            read_once(store, "a", 2, 6)


def test_one_store_per_bucket_and_options(s3: S3Server) -> None:
    """Stores, and with them connections, are kept per process; other options are another store."""
    one = store_of(s3, "bucket")
    assert one is store_of(s3, "bucket")
    assert one is not store_of(s3, "bucket", region="eu-west-1")
    assert one is not store_of(s3, "bucket2")


def test_policy_errors_keep_the_stores_words(moto: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the store answered, as status and code, is in the message, and the cause is kept."""
    store = s3_store(moto, "bucket", read_by_obstore=False)

    def refuse(**request: Any) -> Any:
        answer = {"Error": {"Code": "InvalidRange"}, "ResponseMetadata": {"HTTPStatusCode": 400}}
        raise boto.ClientError(json.loads(json.dumps(answer)), "GetObject")

    monkeypatch.setattr(store.client, "get_object", refuse)
    with pytest.raises(StorageError, match="s3://bucket/a: the store answered 400 InvalidRange") as caught:
        store.read("a", 0, 1, None)
    assert isinstance(caught.value.__cause__, boto.ClientError)


def test_anon_is_a_truth_value(s3: S3Server, bucket: str) -> None:
    """The str "false" would be true: unsigned requests, without a word."""
    with pytest.raises(UrlError, match="anon"):
        open_store(f"s3://{bucket}", StorageOptions({"endpoint_url": s3.endpoint_url, "anon": "false"}))


def test_leftovers_are_uploads_of_chosen_keys(s3: S3Server, bucket: str) -> None:
    """Uploads that were begun and never ended go, in this folder only, by the key's base name; objects stay."""
    client = s3.client()
    client.put_object(Bucket=bucket, Key="d/t-1.tar", Body=b"1")
    keys = ["d/t-1.tar", "d/t-1.tar", "d/t-2.tar", "d/t-x.tar", "d/t-/1.tar", "d/u-1.tar", "e/t-1.tar"]
    uploads = [client.create_multipart_upload(Bucket=bucket, Key=key)["UploadId"] for key in keys]
    client.upload_part(Bucket=bucket, Key=keys[0], UploadId=uploads[0], PartNumber=1, Body=b"1")
    asked: list[str] = []

    def is_ours(name: str) -> bool:
        asked.append(name)
        return name[2:-4].isdigit()

    store, path = open_store(f"s3://{bucket}/d/t-", StorageOptions(s3.storage_options))
    for _ in range(2):
        store.remove_leftovers(path, is_ours)
    left = [upload["Key"] for upload in client.list_multipart_uploads(Bucket=bucket)["Uploads"]]
    assert sorted(left) == ["d/t-/1.tar", "d/t-x.tar", "d/u-1.tar", "e/t-1.tar"]
    assert set(asked) == {"t-1.tar", "t-2.tar", "t-x.tar"}
    assert client.get_object(Bucket=bucket, Key="d/t-1.tar")["Body"].read() == b"1"


@pytest.mark.parametrize("key", ["a\tb", "a\x01b", "a\x7fb", "a\x80b"])
def test_keys_with_control_characters(moto: S3Server, key: str) -> None:
    """obstore refuses such keys with a ValueError: botocore reads them."""
    bucket = moto.new_bucket()
    moto.client().put_object(Bucket=bucket, Key=key, Body=b"123")
    store, path = open_store(f"s3://{bucket}/{key}", StorageOptions(moto.storage_options))
    assert store.read(path, 0, 2, None).whole() == b"12"


def test_one_description_of_s3_serves_all_buckets() -> None:
    """A bucket more costs a client of 0.5 MB, not 14 MB and 0.2 s for a description of S3's operations of its own."""
    unreachable = S3Server("none", f"http://127.0.0.1:{free_port()}", "key", "secret")
    gc.collect()
    stores = [s3_store(unreachable, "first", read_by_obstore=False)]
    assert stores[0].client is not None
    before = len(gc.get_objects())
    for number in range(5):
        stores.append(s3_store(unreachable, f"bucket-{number}", read_by_obstore=False))
        assert stores[-1].client is not None
    gc.collect()
    assert len(gc.get_objects()) - before < 5 * 10_000  # 37,000 each with a description of its own
