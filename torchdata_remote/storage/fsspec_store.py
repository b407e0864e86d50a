"""Every protocol that fsspec supports, by its blocking calls."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import fsspec
import fsspec.core

from ..core.notices.slow_notice import QUIET_S, Wait
from ..core.options import StorageOptions
from ..core.urls import HTTP, LOCAL, S3, join_url
from ..errors import AccessDeniedError, ObjectNotFoundError, RemoteDataError, UrlError
from .error_tables import from_os, unknown_scheme, unreadable_file, unusable_options
from .errors import from_status, translate_errors
from .fsspec_info import entry_of
from .http_guards import guarded
from .multipart import SLOW_BYTES_PER_S
from .network_errors import mark_host_known
from .protocol import Answer, Entry, Page, single_chunk
from .s3.credential_source import source_of_options
from .s3.session import options_for_s3fs
from .serial_filesystem import Filesystem, list_files, list_infos, repeat_if_changed, with_timeout
from .whole_files import BufferedWriter, is_partial, make_folders, renames, write_whole

# An installed package has an entry point for this
fsspec.register_implementation(
    "datasets", "torchdata_remote.service.client.filesystem.DatasetsFileSystem", clobber=True
)
_ONE_REQUEST: dict[str, Any] = {"retries": {"mode": "standard", "total_max_attempts": 1}}
# Each filesystem has its own name for it
_PLAIN, _WEBDAV, _IN_URLS = {"memory", "ftp", "sftp", "ssh"}, {"webdav", "dav"}, frozenset("%#?;")
_WITHOUT_FOLDERS = {"s3", "s3a", "gs", "gcs", "az", "abfs", "adl", "hf", *HTTP}


class FsspecStore:
    """A bucket or host behind an fsspec filesystem.

    Args:
        scheme: protocol as in the URL.
        bucket: bucket or host; empty for ``memory``.
        options: passed to the filesystem unchanged, except that ``region`` becomes its ``client_kwargs`` entry, and
            that s3fs does not retry and gets the fallback credentials only if there are no others.
        read_timeout_s: seconds without a byte after which a request fails, if the filesystem has such an option (s3).
    """

    may_ignore_ranges = False
    maps_files = False

    def __init__(self, scheme: str, bucket: str, options: StorageOptions, read_timeout_s: float) -> None:
        keywords = dict(options)
        if scheme in S3:
            keywords = options_for_s3fs(options, f"s3://{bucket}")
            keywords = {
                **keywords,
                "config_kwargs": {**_ONE_REQUEST, "read_timeout": read_timeout_s}
                | dict(keywords.get("config_kwargs") or {}),
                "skip_instance_cache": True,
            }
        if "region" in keywords:
            keywords["client_kwargs"] = {"region_name": keywords.pop("region")} | keywords.get("client_kwargs", {})
        keywords = guarded(scheme, keywords)
        keywords = with_timeout(scheme, keywords, read_timeout_s)
        self._scheme, self._bucket = scheme, bucket
        self._credentials = source_of_options(options) if scheme in S3 else ""

        def make() -> Any:
            try:
                filesystem = fsspec.core.url_to_fs(join_url(scheme, bucket, ""), **keywords)[0]
            except (FileNotFoundError, PermissionError, IsADirectoryError) as error:
                if error.filename is None:
                    raise
                raise unreadable_file(scheme, bucket, error) from None
            if scheme in S3:
                filesystem.retries = 1  # s3fs's own, above botocore's
            return filesystem

        try:
            self._kind: Any = fsspec.get_filesystem_class(scheme)
        except (ValueError, ImportError) as error:
            raise unknown_scheme(scheme, bucket, error, fsspec.available_protocols()) from error
        self._renames = renames(self._kind)
        try:
            self._opened = Filesystem(self._kind, make, options)
        except ImportError as error:
            raise unknown_scheme(scheme, bucket, error, fsspec.available_protocols()) from error
        except RemoteDataError:
            raise
        except ValueError as error:
            raise unusable_options(scheme, bucket, error, options) from error
        self._publishing = threading.RLock() if scheme == "memory" else contextlib.nullcontext()
        # Local paths are absolute; their protocol alone would mean the current working directory
        self._root = "" if scheme in LOCAL else self._full("").rstrip("/") + "/"

    @property
    def _filesystem(self) -> Any:
        """The current one; ``None`` after an error."""
        return self._opened.current

    @contextlib.contextmanager
    def _calls(self, path: str) -> Iterator[Any]:
        """Lock the filesystem for the calls of the block, and raise this package's errors."""
        try:
            with translate_errors(from_os, self._url(path), transient=True), self._opened.use() as filesystem:
                yield filesystem
                mark_host_known(self._url(path))
        except AccessDeniedError as error:
            error.args = (f"{error}{self._credentials}",)
            raise

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

    def list_page(self, prefix: str, *, recursive: bool, token: str | None, after: str = "") -> Page:
        entries = self._entries(prefix[: prefix.rfind("/") + 1], recursive=recursive)
        return Page([entry for entry in entries if not self._is_hidden(entry.path)], None)

    def _is_hidden(self, path: str) -> bool:
        return path.endswith("/") or (self._renames and is_partial(path))

    def _entries(self, folder: str, *, recursive: bool) -> list[Entry]:
        found: dict[str, Any] = {}
        with contextlib.suppress(ObjectNotFoundError), self._calls(folder) as filesystem:
            filesystem.invalidate_cache()
            found = repeat_if_changed(lambda: list_files(filesystem, self._full(folder), recursive=recursive))
        with translate_errors(from_os, self._url(folder), transient=True):
            return [self._entry(info) for info in found.values() if info.get("type", "file") == "file"]

    def _entry(self, info: dict[str, Any]) -> Entry:
        return entry_of(info, self._scheme, self._root)

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
        if etag is not None and end is not None:
            return self._read_version(path, start, end)
        entry = self.stat(path)
        if start and entry.size is not None and start >= entry.size:
            raise from_status(416, "", self._url(path))
        with self._calls(path) as filesystem:
            if entry.size is None:
                data = filesystem.cat_file(self._full(path))
                return Answer(0, len(data), len(data), entry.etag, single_chunk(data))
            stop = entry.size if end is None else min(end, entry.size)
            data = b"" if stop == start else filesystem.cat_file(self._full(path), start=start, end=stop)
        return Answer(start, start + len(data), entry.size, entry.etag, single_chunk(data))

    def _read_version(self, path: str, start: int, end: int) -> Answer:
        """Read, then stat: without If-Match the caller compares the version after the read with the expected one."""
        with self._calls(path) as filesystem:
            data = filesystem.cat_file(self._full(path), start=start, end=end)
        entry = self.stat(path)
        if entry.size is None:
            raise from_status(412, "", self._url(path))
        if start and start >= entry.size:
            raise from_status(416, "", self._url(path))
        return Answer(start, start + len(data), entry.size, entry.etag, single_chunk(data))

    def create(self, path: str, *, overwrite: bool) -> BufferedWriter:
        return BufferedWriter(lambda data: self.publish(path, data, overwrite=overwrite))

    def publish(self, path: str, data: bytes, *, overwrite: bool) -> None:
        """Write an object in one call, and rename it where that call may leave a part of it."""
        expected_s = len(data) / SLOW_BYTES_PER_S
        then = f"It is ended by the library that fsspec uses for {self._scheme}, and not repeated."
        watch = Wait(self._url(path), lambda: then, quiet_s=QUIET_S + expected_s)
        with watch, self._publishing, self._calls(path) as filesystem:
            full = self._full(path)
            if not overwrite and filesystem.exists(full):
                raise from_status(412, "", self._url(path), writing=True)
            if self._scheme not in _WITHOUT_FOLDERS and "/" in full.strip("/"):
                make_folders(filesystem, full.rpartition("/")[0])
            if self._renames:
                write_whole(filesystem, full, data, overwrite=overwrite)
            else:
                filesystem.pipe_file(full, data)

    def delete(self, path: str) -> None:
        with contextlib.suppress(ObjectNotFoundError), self._calls(path) as filesystem:
            filesystem.rm_file(self._full(path))

    def remove_leftovers(self, prefix: str, is_ours: Callable[[str], bool]) -> None:
        self._remove_partial(prefix[: prefix.rfind("/") + 1], recursive=False, before_s=None)

    def remove_old_leftovers(self, path: str, before_s: float) -> None:
        self._remove_partial(path, recursive=True, before_s=before_s)

    def _remove_partial(self, folder: str, *, recursive: bool, before_s: float | None) -> None:
        if self._renames:
            for entry in self._entries(folder, recursive=recursive):
                if is_partial(entry.path) and (before_s is None or (entry.modified_s or before_s) < before_s):
                    self.delete(entry.path)

    def list_after(self, prefix: str, *, recursive: bool, after: str, limit: int) -> Page:
        """Return a page of a complete listing: fsspec has no paging."""
        folder = prefix[: prefix.rfind("/") + 1]
        found: dict[str, Entry | None] = {
            entry.path: entry for entry in self.list_page(folder, recursive=recursive, token=None).entries
        }
        if not recursive:
            with contextlib.suppress(ObjectNotFoundError), self._calls(folder) as filesystem:
                for info in repeat_if_changed(lambda: list_infos(filesystem, self._full(folder))):
                    if info.get("type") == "directory":
                        found[self._entry(info).path.rstrip("/") + "/"] = None
        paths = sorted(path for path in found if path.startswith(prefix) and path > after)
        entries = [entry for path in paths[:limit] if (entry := found[path]) is not None]
        folders = [path for path in paths[:limit] if found[path] is None]
        return Page(entries, paths[limit - 1] if len(paths) > limit else None, folders)

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
