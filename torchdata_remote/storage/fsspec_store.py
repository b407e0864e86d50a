"""Every protocol that fsspec supports, by its blocking calls. S3 has a store of its own."""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import io
import math
import re
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import fsspec
import fsspec.core

from ..core.notices.slow_notice import QUIET_S, Wait
from ..core.object_version import same_etag
from ..core.options import StorageOptions
from ..core.urls import AZURE, GS, HTTP, LOCAL, join_url
from ..errors import ObjectNotFoundError, RemoteDataError, UrlError
from .error_tables import (
    KINDS_OF_VALUES,
    from_os,
    is_missing_on_webdav,
    unknown_scheme,
    unreadable_file,
    unusable_options,
)
from .errors import from_status, translate_errors
from .folder_walk import page_after
from .fsspec_quirks import (
    http_keywords,
    is_thread_safe,
    list_infos,
    make_folders,
    prepare,
    rename,
    renames,
    repeat_if_changed,
)
from .local.names import PARTIAL_SUFFIX
from .network_errors import mark_host_known, unusable_response
from .protocol import Answer, Entry, Page, normalized_etag, single_chunk

# An installed package has an entry point for this
fsspec.register_implementation(
    "datasets", "torchdata_remote.service.client.filesystem.DatasetsFileSystem", clobber=True
)
_PLAIN, _WEBDAV, _IN_URLS = {"memory", "ftp", "sftp", "ssh"}, {"webdav", "dav"}, frozenset("%#?;")
_WITHOUT_FOLDERS = {"gs", "gcs", "az", "abfs", "adl", "hf", *HTTP}
_SECRET = re.compile(r"pass|secret|token|auth|acct|pkey|credential|cookie|header|sas|_key$", re.IGNORECASE)
_MIN_SECRET = 4  # characters; shorter ones are parts of words
_SLOW_BYTES_PER_S = 1 << 20  # an upload that is faster is not reported as slow
_MODIFIED = ("modified", "LastModified", "last_modified", "mtime", "updated", "created")


class FsspecStore:
    """A bucket or host behind an fsspec filesystem, which one thread at a time uses unless it is known to be safe.

    Args:
        scheme: protocol as in the URL.
        bucket: bucket or host; empty for ``memory``.
        options: passed to the filesystem unchanged.
        read_timeout_s: seconds without a byte after which a request fails, if the filesystem has such an option.
    """

    may_ignore_ranges = False
    maps_files = False

    def __init__(self, scheme: str, bucket: str, options: StorageOptions, read_timeout_s: float) -> None:
        self._scheme, self._bucket, self._options = scheme, bucket, options
        self._read_timeout_s = read_timeout_s
        try:
            self._kind: Any = fsspec.get_filesystem_class(scheme)
        except (ValueError, ImportError) as error:
            raise unknown_scheme(scheme, bucket, error, fsspec.available_protocols()) from error
        self._renames, self._is_shared = renames(self._kind), is_thread_safe(self._kind)
        self._filesystem: Any = None  # until the first call, and after an error that may leave replies out of step
        self._lock: Any = contextlib.nullcontext() if self._is_shared else threading.RLock()
        self._publishing: Any = threading.RLock() if scheme == "memory" else contextlib.nullcontext()
        # Local paths are absolute; their protocol alone would mean the current working directory
        self._root = "" if scheme in LOCAL else self._full("").rstrip("/") + "/"

    @contextlib.contextmanager
    def _calls(self, path: str) -> Iterator[Any]:
        """Lock the filesystem for the calls of the block, and raise this package's errors."""
        with translate_errors(from_os, self._url(path), transient=True), self._lock:
            try:
                if self._filesystem is None:
                    self._filesystem = self._open()
                filesystem = self._filesystem
                prepare(filesystem)
                yield filesystem
            except (FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError) as error:
                if error.__cause__ is not None and not is_missing_on_webdav(error.__cause__):
                    self._drop()  # some filesystems report a missing object for every error
                raise
            except Exception as error:
                if not isinstance(error, RemoteDataError):
                    self._drop()
                    self._explain(error)
                raise
            mark_host_known(self._url(path))

    def _open(self) -> Any:
        scheme, keywords = self._scheme, dict(self._options)
        if scheme in HTTP:
            keywords = http_keywords(keywords, self._read_timeout_s)
        elif scheme == "ftp":
            keywords = {"timeout": self._read_timeout_s, **keywords}
        try:
            return fsspec.core.url_to_fs(join_url(scheme, self._bucket, ""), **keywords)[0]
        except ImportError as error:
            raise unknown_scheme(scheme, self._bucket, error, fsspec.available_protocols()) from error
        except (ValueError, TypeError, AttributeError) as error:
            self._explain(error)
            raise unusable_options(scheme, self._bucket, error, self._options) from error
        except (FileNotFoundError, PermissionError, IsADirectoryError) as error:
            if error.filename is None:
                raise
            raise unreadable_file(scheme, self._bucket, error) from None

    def _drop(self) -> None:
        if not self._is_shared:
            self._filesystem = None

    def _explain(self, error: Exception) -> None:
        """Change the message of an error that the options may have caused: a library may show their values."""
        text = str(error)
        secrets = (one for name in self._options if _SECRET.search(name) for one in _texts(self._options[name]))
        if any(len(secret) >= _MIN_SECRET and secret in text for secret in secrets):
            text = "its message is not shown, because it has a value of storage_options"
            error.args = (text,)
            error.__cause__, error.__suppress_context__ = None, True
        if self._options and isinstance(error, TypeError | AttributeError):
            error.args = (f"{text}. {KINDS_OF_VALUES} ({', '.join(sorted(self._options))})",)

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

    def _entry(self, info: dict[str, Any]) -> Entry:
        size = info.get("size")
        modified = next((info[name] for name in _MODIFIED if isinstance(info.get(name), dt.datetime | float)), None)
        if isinstance(modified, dt.datetime):
            modified = modified.timestamp()
        path = str(info["name"]).removeprefix(self._root)
        return Entry(path, None if size is None else int(size), self._etag(info), modified)

    def _etag(self, info: dict[str, Any]) -> str | None:
        """Return the etag as obstore names it: either may list what the other reads."""
        if self._scheme in GS:  # etags of the JSON API are others than those of the XML API, which are MD5 of the bytes
            md5 = None if info.get("kmsKeyName") or info.get("customerEncryption") else info.get("md5Hash")
            return None if md5 is None else f'"{base64.b64decode(md5).hex()}"'
        etag = info.get("ETag", info.get("etag"))
        if self._scheme in AZURE:
            return normalized_etag(etag)
        return etag if etag and isinstance(etag, str) else None

    def _list(self, folder: str, *, recursive: bool) -> list[dict[str, Any]]:
        with contextlib.suppress(ObjectNotFoundError), self._calls(folder) as filesystem:
            filesystem.invalidate_cache()
            return repeat_if_changed(lambda: list_infos(filesystem, self._full(folder), recursive=recursive))
        return []

    def list_page(self, prefix: str, *, recursive: bool, token: str | None, after: str = "") -> Page:
        entries, folders = list[Entry](), list[str]()
        for info in self._list(prefix[: prefix.rfind("/") + 1], recursive=recursive):
            entry = self._entry(info)
            if info.get("type", "file") == "directory":
                folders.append(entry.path.rstrip("/") + "/")
            elif not entry.path.endswith("/") and not self._is_partial(entry.path):
                entries.append(entry)
        return Page(entries, None, folders)

    def _is_partial(self, path: str) -> bool:
        """Whether a path is that of a file whose writer has not finished it."""
        name = path.rpartition("/")[2]
        return self._renames and name.startswith(".") and name.endswith(PARTIAL_SUFFIX)

    def find(self, path: str) -> Entry | None:
        try:
            return self.stat(path)
        except ObjectNotFoundError:
            return None

    def stat(self, path: str) -> Entry:
        with self._calls(path) as filesystem:
            filesystem.invalidate_cache()
            info = repeat_if_changed(lambda: filesystem.info(self._full(path)))
            if info.get("type") == "directory":
                raise IsADirectoryError(path)
            return self._entry(info)._replace(path=path)

    def read(self, path: str, start: int, end: int | None, etag: str | None) -> Answer:
        """Read, and stat after it: without If-Match the caller compares the version with the expected one."""
        before = None if end is not None and etag is not None else self.stat(path)
        if before is not None:
            size = before.size  # where it is not known, all is read
            end = size if size is None or end is None else min(end, size)
        data, url = b"", self._url(path)
        if end is None or start < end:
            with self._calls(path) as filesystem:
                data = filesystem.cat_file(self._full(path), start=start, end=end)
        entry = self.stat(path) if before is None or before.etag is not None else before
        if before is not None and not same_etag(before.etag, entry.etag):
            raise from_status(412, "", url)
        if entry.size is None and end is not None:
            raise unusable_response(url, "the store does not say how large the object is")
        total = start + len(data) if entry.size is None else entry.size
        if start and start >= total:
            raise from_status(416, "", url)
        return Answer(start, start + len(data), total, entry.etag, single_chunk(data))

    def create(self, path: str, *, overwrite: bool) -> _Writer:
        return _Writer(lambda data: self.publish(path, data, overwrite=overwrite))

    def publish(self, path: str, data: bytes, *, overwrite: bool) -> None:
        """Write an object in one call, and rename it where that call may leave a part of it."""
        then = f"It is ended by the library that fsspec uses for {self._scheme}, and not repeated."
        watch = Wait(self._url(path), lambda: then, quiet_s=QUIET_S + len(data) / _SLOW_BYTES_PER_S)
        with watch, self._publishing, self._calls(path) as filesystem:
            full = self._full(path)
            folder = full.rpartition("/")[0]
            if not overwrite and filesystem.exists(full):
                raise from_status(412, "", self._url(path), writing=True)
            if self._scheme not in _WITHOUT_FOLDERS and folder.strip("/"):
                make_folders(filesystem, folder)
            if not self._renames:
                filesystem.pipe_file(full, data)
                return
            hidden = (
                f"{folder}/.{uuid.uuid4().hex}{PARTIAL_SUFFIX}"  # found by ``_is_partial`` if the process is killed
            )
            try:
                filesystem.pipe_file(hidden, data)
                rename(filesystem, hidden, full, overwrite=overwrite)
            except BaseException:
                with contextlib.suppress(Exception):
                    filesystem.rm_file(hidden)
                raise

    def delete(self, path: str) -> None:
        with contextlib.suppress(ObjectNotFoundError), self._calls(path) as filesystem:
            filesystem.rm_file(self._full(path))

    def remove_leftovers(self, prefix: str, is_ours: Callable[[str], bool]) -> None:
        self._remove_partial(prefix[: prefix.rfind("/") + 1], recursive=False)

    def remove_old_leftovers(self, path: str, before_s: float) -> None:
        self._remove_partial(path, recursive=True, before_s=before_s)

    def _remove_partial(self, folder: str, *, recursive: bool, before_s: float = math.inf) -> None:
        for info in self._list(folder, recursive=recursive) if self._renames else ():
            entry = self._entry(info)
            if self._is_partial(entry.path) and (entry.modified_s or 0) < before_s:
                self.delete(entry.path)

    def list_after(self, prefix: str, *, recursive: bool, after: str, limit: int) -> Page:
        """Return a page of listings of whole folders: fsspec has no paging."""

        def pages_of(folder: str) -> list[Page]:
            return [self.list_page(folder, recursive=False, token=None)]

        return page_after(pages_of, prefix, after, recursive=recursive, limit=limit)

    def has_folder(self, path: str) -> bool:
        with self._calls(path) as filesystem:
            filesystem.invalidate_cache()
            return bool(repeat_if_changed(lambda: filesystem.isdir(self._full(path))))

    def make_folder(self, path: str) -> None:
        if self.has_folder(path):  # also a folder that exists by its files only, which makedirs may not see
            raise from_status(412, "", self._url(path), writing=True)
        with self._calls(path) as filesystem:
            filesystem.makedirs(self._full(path), exist_ok=False)

    def remove_folder(self, path: str) -> None:
        with contextlib.suppress(ObjectNotFoundError), self._calls(path) as filesystem:
            repeat_if_changed(lambda: filesystem.rm(self._full(path), recursive=True))


class _Writer:
    """Keeps the bytes in memory, and publishes them in one call."""

    def __init__(self, publish: Callable[[bytes], None]) -> None:
        self._publish, self._buffer = publish, io.BytesIO()

    def write(self, data: bytes) -> None:
        self._buffer.write(data)

    def commit(self) -> None:
        self._publish(self._buffer.getvalue())
        self.abort()

    def abort(self) -> None:
        self._buffer = io.BytesIO()


def _texts(value: Any) -> Iterator[str]:
    """Yield the strings in the value of an option."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, bytes):
        yield value.decode("latin-1")
    elif isinstance(value, Mapping | list | tuple):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(one)
