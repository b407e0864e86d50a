"""Every protocol that fsspec supports, by its blocking calls. S3 has a store of its own."""

from __future__ import annotations

import base64
import contextlib
import ftplib
import io
import re
import socket
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, cast

import fsspec
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations import ftp
from fsspec.implementations.memory import MemoryFileSystem

from ..core.notices import QUIET_S, Wait
from ..core.options import StorageOptions
from ..core.urls import AZURE, GS, LOCAL, join_url, same_etag
from ..errors import ObjectNotFoundError, UrlError
from .errors import (
    from_status,
    mark_host_known,
    translate_errors,
    unknown_scheme,
    unusable_options,
    unusable_response,
)
from .folder_walk import ByFolders
from .local.names import PARTIAL_SUFFIX
from .multipart import SLOW_BYTES_PER_S
from .protocol import Answer, Entry, ObjectWriter, Page, normalized_etag, single_chunk

# An installed package has an entry point for this
fsspec.register_implementation(
    "datasets", "torchdata_remote.service.client.filesystem.DatasetsFileSystem", clobber=True
)
_PLAIN, _WEBDAV, _IN_URLS = {"memory", "ftp", "sftp", "ssh"}, {"webdav", "dav"}, frozenset("%#?;")
_WITHOUT_FOLDERS = {*GS, *AZURE, "adl"}
_SECRET = re.compile(r"pass|secret|token|auth|acct|pkey|credential|cookie|header|sas|_key$", re.IGNORECASE)
_MIN_SECRET = 4  # characters; shorter ones are parts of words


class _Ftp(ftp.FTPFileSystem):  # type: ignore[misc]
    """Raises the refusal to list a folder, which fsspec takes for an empty one; and keeps no listing."""

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[dict[str, Any]]:
        """List a folder with details."""
        path = self._strip_protocol(path)
        try:
            found = list(self.ftp.mlsd(path))
        except ftplib.error_perm:
            self.ftp.cwd(path)  # fails for a file, which would be listed as a folder with this file
            found = ftp._mlsd2(self.ftp, path)
        infos = []
        for name, about in found:
            if about["type"] not in ("cdir", "pdir"):
                is_file = about["type"] == "file" and about.get("unix.mode", "-")[0] != "l"  # whose size is of its text
                kind = "directory" if about["type"] == "dir" else "file"
                size = int(about["size"]) if is_file and "size" in about else None
                infos.append({"name": f"{path.rstrip('/')}/{name.lstrip('/')}", "type": kind, "size": size})
        return infos


class FsspecStore(ByFolders):
    """A bucket or host behind an fsspec filesystem, which one thread at a time uses if it is a connection of its own.

    Args:
        scheme: protocol as in the URL.
        bucket: bucket or host; empty for ``memory``.
        options: passed to the filesystem unchanged.
        read_timeout_s: seconds without a byte after which a request fails, if the filesystem has such an option.
    """

    def __init__(self, scheme: str, bucket: str, options: StorageOptions, read_timeout_s: float) -> None:
        self._scheme, self._bucket, self._options = scheme, bucket, options
        self._limits = {"timeout": read_timeout_s} if scheme == "ftp" else {}
        try:
            kind: Any = _Ftp if scheme == "ftp" else fsspec.get_filesystem_class(scheme)
        except (ValueError, ImportError) as error:
            raise unknown_scheme(scheme, bucket, error, fsspec.available_protocols()) from error
        self._kind, self._is_shared = kind, issubclass(kind, AsyncFileSystem)
        self._is_flat = self._is_shared or kind.find is not fsspec.AbstractFileSystem.find
        # Others copy a file to move it, or write it in one request
        self._renames = scheme in _WEBDAV or not (self._is_shared or kind.mv is fsspec.AbstractFileSystem.mv)
        self._filesystem: Any = None  # until the first call, and after an error that may leave replies out of step
        # Of what is in memory, only the look for an object and its creation are one step
        self._publishing: Any = contextlib.nullcontext() if self._is_shared else threading.RLock()
        self._lock = contextlib.nullcontext() if issubclass(kind, MemoryFileSystem) else self._publishing
        # Local paths are absolute; their protocol alone would mean the current working directory
        self._root = "" if scheme in LOCAL else self._full("").rstrip("/") + "/"

    @contextlib.contextmanager
    def _calls(self, path: str) -> Iterator[Any]:
        """Lock the filesystem for the calls of the block, and raise this package's errors."""
        with translate_errors(self._url(path)), self._lock:
            try:
                if self._filesystem is None:
                    self._filesystem = self._open()
                yield self._filesystem
            except Exception as error:
                # Some filesystems report a missing object for every error, with its cause
                if not self._is_shared and not (isinstance(error, FileNotFoundError) and error.__cause__ is None):
                    self._filesystem = None
                self._hide_values(error)
                raise
            mark_host_known(self._url(path))

    def _open(self) -> Any:
        try:
            of_url = self._kind._get_kwargs_from_urls(self._url(""))
            filesystem = self._kind(**{"skip_instance_cache": True, **self._limits, **of_url, **self._options})
        except (ValueError, TypeError, AttributeError, OSError) as error:
            if isinstance(error, OSError) and error.filename is None:  # not of a local file, such as a private key
                raise
            self._hide_values(error)
            raise unusable_options(self._scheme, self._bucket, error, self._options) from error
        if self._scheme in ("sftp", "ssh"):  # else each 32 KiB wait for 40 ms
            filesystem.client.get_transport().sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return filesystem

    def _hide_values(self, error: Exception) -> None:
        """Change the message of an error that shows a secret of the options."""
        text = str(error)
        secrets = (one for name in self._options if _SECRET.search(name) for one in _texts(self._options[name]))
        if any(len(secret) >= _MIN_SECRET and secret in text for secret in secrets):
            error.args = ("its message is not shown, because it has a value of storage_options",)
            error.__cause__, error.__suppress_context__ = None, True

    def _url(self, path: str) -> str:
        return join_url(self._scheme, self._bucket, path)

    def _full(self, path: str) -> str:
        if self._scheme in _PLAIN:  # they take "?", "#" and "::" in a name for parts of a URL
            return "/" + path.strip("/")
        if self._scheme in _WEBDAV and not _IN_URLS.isdisjoint(path):
            url = self._url(path)
            raise UrlError(
                f"{url}: webdav4 takes %, #, ? and ; in a name for parts of a URL. Rename the file.", url=url
            )
        return str(self._kind._strip_protocol(self._url(path)))

    # Listings

    def _infos(self, folder: str, *, recursive: bool = False) -> list[dict[str, Any]]:
        """List a folder, and what is in its folders where the filesystem does that by itself.

        fsspec's generic ``find`` omits folders whose listing fails.
        """
        with self._calls(folder) as filesystem:
            filesystem.invalidate_cache()
            if recursive and self._is_flat:
                return list(filesystem.find(self._full(folder), detail=True).values())
            return list(filesystem.ls(self._full(folder), detail=True))

    def list_page(self, prefix: str, *, recursive: bool, token: str | None, after: str = "") -> Page:
        entries, folders = list[Entry](), list[str]()
        try:
            waiting = self._infos(prefix[: prefix.rfind("/") + 1], recursive=recursive)
        except ObjectNotFoundError:
            return Page([], None)
        while waiting:
            info = waiting.pop()
            entry = self._entry(info)
            if info.get("type", "file") == "directory":
                folders.append(entry.path.rstrip("/") + "/")
                waiting += self._infos(folders[-1]) if recursive else ()
            elif not entry.path.endswith("/") and not self._is_partial(entry.path):
                entries.append(entry)
        return Page(entries, None, () if recursive else folders)

    def _is_partial(self, path: str) -> bool:
        """Whether a path is that of a file whose writer has not finished it."""
        name = path.rpartition("/")[2]
        return self._renames and name.startswith(".") and name.endswith(PARTIAL_SUFFIX)

    def _entry(self, info: dict[str, Any]) -> Entry:
        size = info.get("size")
        path = str(info["name"]).removeprefix(self._root)
        return Entry(path, None if size is None else int(size), self._etag(info))

    def _etag(self, info: dict[str, Any]) -> str | None:
        """Return the etag as obstore names it: either may list what the other reads."""
        if self._scheme in GS:  # etags of the JSON API are others than those of the XML API, which are MD5 of the bytes
            md5 = None if info.get("kmsKeyName") or info.get("customerEncryption") else info.get("md5Hash")
            return None if md5 is None else f'"{base64.b64decode(md5).hex()}"'
        etag = info.get("ETag", info.get("etag"))
        return normalized_etag(etag) if self._scheme in AZURE else etag if etag and isinstance(etag, str) else None

    # Objects

    def stat(self, path: str) -> Entry:
        with self._calls(path) as filesystem:
            filesystem.invalidate_cache()
            info = filesystem.info(self._full(path))
            if info.get("type") == "directory":
                raise FileNotFoundError(path)
        if info.get("size") is None:
            raise unusable_response(self._url(path), "the store does not say how large the object is")
        return self._entry(info)._replace(path=path)

    def read(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        """Read, and stat after it: without If-Match the caller compares the version with the expected one."""
        before = self.stat(path) if etag is None or end is None else None
        if before is not None:
            end = before.size if end is None else min(end, before.size or 0)
        data, url = b"", self._url(path)
        if start < (end or 0):
            with self._calls(path) as filesystem:
                data = filesystem.cat_file(self._full(path), start=start, end=end)
        after = self.stat(path) if before is None or before.etag is not None else before
        if before is not None and not same_etag(before.etag, after.etag):
            raise from_status(412, "", url)
        total = after.size or 0
        if start and start >= total:
            raise from_status(416, "", url)
        return Answer(start, start + len(data), total, after.etag, single_chunk(data))

    def create(self, path: str, *, overwrite: bool) -> ObjectWriter:
        writer: Any = _Writer(partial(self.publish, path, overwrite=overwrite))
        return cast(ObjectWriter, writer)

    def publish(self, path: str, data: bytes, *, overwrite: bool) -> None:
        """Write an object in one call, and rename it where that call may leave a part of it."""
        then = f"It is ended by the library that fsspec uses for {self._scheme}, and not repeated."
        watch = Wait(self._url(path), then, QUIET_S + len(data) / SLOW_BYTES_PER_S)
        with watch, self._publishing:
            if not overwrite and self.find(path) is not None:
                raise from_status(412, "", self._url(path), writing=True)
            full = self._full(path)
            folder = full.rpartition("/")[0]
            with self._calls(path) as filesystem:
                if self._scheme not in _WITHOUT_FOLDERS and folder.strip("/"):
                    _make_folders(filesystem, folder)
                if not self._renames:
                    filesystem.pipe_file(full, data)
                    return
                hidden = f"{folder}/.{uuid.uuid4().hex}{PARTIAL_SUFFIX}"  # found by ``_is_partial`` if it is left
                try:
                    filesystem.pipe_file(hidden, data)
                    self._rename(filesystem, hidden, full, overwrite=overwrite)
                except BaseException:
                    with contextlib.suppress(Exception):
                        filesystem.rm_file(hidden)
                    raise

    def _rename(self, filesystem: Any, old: str, new: str, *, overwrite: bool) -> None:
        """Rename a file in one step."""
        if self._scheme in _WEBDAV:
            filesystem.client.move(old, new, overwrite=overwrite)  # its `mv` copies
            return
        filesystem.mv(old, new)

    def delete(self, path: str) -> None:
        with contextlib.suppress(ObjectNotFoundError), self._calls(path) as filesystem:
            filesystem.rm_file(self._full(path))

    def remove_leftovers(self, prefix: str, is_ours: Callable[[str], bool]) -> None:
        with contextlib.suppress(ObjectNotFoundError):
            for info in self._infos(prefix[: prefix.rfind("/") + 1]):
                if self._is_partial(path := self._entry(info).path):
                    self.delete(path)


class _Writer(io.BytesIO):
    """Keeps the bytes in memory, and publishes them in one call."""

    def __init__(self, publish: Callable[[bytes], None]) -> None:
        self._publish = publish

    def commit(self) -> None:
        self._publish(self.getvalue())
        self.close()

    abort = io.BytesIO.close


def _make_folders(filesystem: Any, folder: str) -> None:
    """Make a folder and those above it. One that another writer makes at the same time is no error."""
    try:
        filesystem.makedirs(folder, exist_ok=True)
    except Exception:
        if not filesystem.isdir(folder):
            raise


def _texts(value: Any) -> Iterator[str]:
    """Yield the strings in the value of an option."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, bytes):
        yield value.decode("latin-1")
    elif isinstance(value, Mapping | list | tuple):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(one)
