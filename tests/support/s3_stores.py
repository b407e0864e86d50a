"""S3 stores for tests: each transport of this package, on any server."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tests.servers.s3 import S3Server
from torchdata_remote.core.options import StorageOptions
from torchdata_remote.storage import Store, open_store
from torchdata_remote.storage.s3.settings import s3_settings
from torchdata_remote.storage.s3.store import S3Store

TRANSPORTS = ("obstore", "botocore", "s3fs")
BY_S3FS = {"default_fill_cache": False}  # an option without a translation, which selects s3fs


@functools.cache
def shared_bucket(server: S3Server) -> str:
    """A bucket in which each test has a folder of its own."""
    return server.new_bucket()


@functools.cache
def shared_store(server: S3Server, transport: str) -> Store:
    """The store of :func:`shared_bucket`; opening one takes a tenth of a second to one second."""
    return store_by(transport, server, shared_bucket(server))


def store_by(transport: str, server: S3Server, bucket: str) -> Store:
    if transport == "s3fs":
        return store_of(server, bucket, **BY_S3FS)
    return s3_store(server, bucket, read_by_obstore=transport == "obstore")


def store_of(server: S3Server, bucket: str, **more: Any) -> Store:
    return open_store(f"s3://{bucket}", StorageOptions({**server.storage_options, **more}))[0]


def s3_store(server: S3Server, bucket: str, *, read_by_obstore: bool) -> S3Store:
    settings = s3_settings(StorageOptions(server.storage_options))
    assert settings is not None
    return S3Store(bucket, settings, read_by_obstore=read_by_obstore)


def write(store: Store, path: str, data: bytes, *, overwrite: bool = False) -> None:
    writer = store.create(path, overwrite=overwrite)
    writer.write(data)
    writer.commit()


def read(store: Store, path: str, etag: str | None = None) -> bytes:
    return store.read(path, 0, None, etag).whole()


def put(server: S3Server, bucket: str, key: str, data: bytes) -> None:
    """Write an object without the package under test."""
    server.client().put_object(Bucket=bucket, Key=key, Body=data)


def uploads_left(server: S3Server, bucket: str, prefix: str = "") -> list[Any]:
    return list(server.client().list_multipart_uploads(Bucket=bucket, Prefix=prefix).get("Uploads", []))


def text_of(error: BaseException) -> str:
    """All that a user might see of an error: its text, its attributes and its causes."""
    text = ""
    link: BaseException | None = error
    while link is not None:
        text += f"{link} {link!r} {vars(link)}"
        link = link.__cause__ or link.__context__
    return text


def raises_of(attempts: list[Callable[[], object]], kind: type[BaseException]) -> list[BaseException]:
    """The errors of all attempts, each of which fails with an error of this kind."""
    errors: list[BaseException] = []
    for attempt in attempts:
        try:
            attempt()
        except kind as error:
            errors.append(error)
    assert len(errors) == len(attempts), errors
    return errors
