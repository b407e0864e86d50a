"""Folders of each kind of store and their objects, read without the package under test."""

from __future__ import annotations

import contextlib
import gzip
import io
import sys
import tarfile
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import fsspec

from tests.servers.s3 import S3Server

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

Files = Mapping[str, bytes]
PARTIAL_SUFFIX = ".torchdata_remote-partial"  # of files that listings leave out


class Place:
    """A folder of the local disk, of the memory, or of a bucket.

    Args:
        url: with a slash at its end.
        server: of a bucket.
    """

    def __init__(self, url: str, server: S3Server | None = None) -> None:
        self.url = url
        self.options = None if server is None else server.storage_options
        self._client: Any = None if server is None else server.client()

    def below(self, name: str) -> Place:
        """A folder in this one."""
        made = Place(f"{self.url}{name}/")
        made.options, made._client = self.options, self._client
        return made

    def template(self, ending: str = ".tar") -> str:
        return f"{self.url}{{shard:06d}}{ending}"

    @property
    def _bucket(self) -> tuple[str, str]:
        bucket, _, path = self.url.removeprefix("s3://").partition("/")
        return bucket, path

    def put(self, files: Files) -> str:
        """Store files; the URL of the folder."""
        for name, data in files.items():
            if self._client is not None:
                bucket, path = self._bucket
                self._client.put_object(Bucket=bucket, Key=path + name, Body=data)
            elif self.url.startswith("memory://"):
                fsspec.filesystem("memory").pipe(f"{self.url}{name}", data)
            else:
                path_of_file = Path(self.url, name)
                path_of_file.parent.mkdir(parents=True, exist_ok=True)
                whole = path_of_file.with_name(f".{uuid.uuid4().hex}{PARTIAL_SUFFIX}")  # a reader may be under way
                whole.write_bytes(data)
                whole.replace(path_of_file)
        return self.url

    def delete(self, name: str) -> None:
        if self._client is not None:
            bucket, path = self._bucket
            self._client.delete_object(Bucket=bucket, Key=path + name)
        elif self.url.startswith("memory://"):
            fsspec.filesystem("memory").rm(f"{self.url}{name}")
        else:
            Path(self.url, name).unlink()

    def files(self) -> dict[str, bytes]:
        """Path below the folder -> bytes of all files, hidden ones included."""
        if self._client is not None:
            bucket, path = self._bucket
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=path)
            keys = [found["Key"] for page in pages for found in page.get("Contents", ())]
            return {key[len(path) :]: self._client.get_object(Bucket=bucket, Key=key)["Body"].read() for key in keys}
        if self.url.startswith("memory://"):
            memory, root = fsspec.filesystem("memory"), self.url.removeprefix("memory:/")
            while True:
                with contextlib.suppress(RuntimeError):  # files come and go while they are listed
                    names = memory.find(root) if memory.exists(root) else []
                    break
            return {name.removeprefix(root): memory.cat_file(name) for name in names}
        folder = Path(self.url)
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def uploads(self) -> list[str]:
        """Keys of multipart uploads that were started and not ended."""
        if self._client is None:
            return []
        bucket, path = self._bucket
        found = self._client.list_multipart_uploads(Bucket=bucket, Prefix=path)
        return [upload["Key"] for upload in found.get("Uploads", ())]

    def shards(self) -> dict[str, list[tuple[str, bytes]]]:
        """The members of each shard, in order, as ``tarfile`` reads them."""
        files = self.files()
        return {
            name: members_of(name, files[name])
            for name in sorted(files)
            if ".tar" in name and not name.endswith((".idx", ".keys"))
        }

    def members(self) -> dict[str, bytes]:
        """The members of all shards, of which no two may have one name."""
        every = [member for members in self.shards().values() for member in members]
        made = dict(every)
        assert len(made) == len(every), "a member came twice"
        return made


def compressed_by_zstd(data: bytes) -> bytes:
    """One frame."""
    return bytes(zstd.compress(data))


def memory_place() -> Place:
    return Place(f"memory://{uuid.uuid4().hex}/")


def members_of(name: str, data: bytes) -> list[tuple[str, bytes]]:
    """What ``tarfile`` reads."""
    if name.endswith(".gz"):
        data = gzip.decompress(data)
    elif name.endswith(".zst"):
        data = zstd.decompress(data)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        found = []
        for info in archive:
            stream = archive.extractfile(info)
            assert stream is not None
            found.append((info.name, stream.read()))
        return found


def tar_of(files: Files | Iterable[tuple[str, bytes]], *, tar_format: int = tarfile.PAX_FORMAT) -> bytes:
    """A tar as ``tarfile`` writes it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tar_format) as archive:
        for name, data in files.items() if isinstance(files, Mapping) else files:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def some_files(num_samples: int, *, num_classes: int = 3, seed: int = 0) -> dict[str, bytes]:
    """Paths ``class-0/00000.txt`` to bytes that differ, sorted by path."""
    made = {}
    for index in range(num_samples):
        body = b"%d.%d " % (seed, index) * (1 + index * 7 % 50)
        made[f"class-{index * num_classes // num_samples}/{index:05d}.txt"] = body
    return made
