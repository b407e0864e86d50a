"""``datasets://`` as an fsspec filesystem."""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
import io
import json
import logging
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

from fsspec import AbstractFileSystem
from fsspec.spec import AbstractBufferedFile

from ...core.options import RetryPolicy, StorageOptions
from ...core.retry import ConcurrencyLimit, call_with_retries
from ...core.urls import RemoteUrl
from ...errors import ObjectExistsError, ObjectNotFoundError
from ...fetch.ranges import ObjectReader
from ...storage import Entry, ObjectWriter, open_store
from ...storage.dataset_service.store import DATASETS, MAX_PAGE, DatasetsStore

T = TypeVar("T")
_log = logging.getLogger("torchdata_remote")


class DatasetsFileSystem(AbstractFileSystem):  # type: ignore[misc]  # fsspec carries no types
    """Dataset services as an fsspec filesystem. Paths are ``host:port/NAME/PATH``.

    A file becomes visible as a whole or not at all: it is not published if an exception leaves its ``with`` block, or
    if it is never closed. Listings are not cached. Copies within a service are not offered: get and put the files.

    Args:
        token: of the service. ``None`` takes ``TORCHDATA_REMOTE_TOKEN`` of the environment, for this machine and
            the hosts of ``TORCHDATA_REMOTE_TOKEN_HOSTS``; it is stored neither in pickles nor in JSON. One that
            is passed is in pickles, because other processes need it, and in ``storage_options``; ``repr`` and
            ``to_json`` omit it.
        secure: whether to use https.

    Example:
        >>> import fsspec
        >>> fsspec.filesystem("datasets", secure=False).unstrip_protocol("127.0.0.1:8080/photos/1.jpg")
        'datasets://127.0.0.1:8080/photos/1.jpg'
    """

    protocol = DATASETS
    root_marker = ""

    def __init__(self, *, token: str | None = None, secure: bool = False, **options: Any) -> None:
        super().__init__(**options)
        passed = {"token": token, "secure": secure}
        self._options = StorageOptions({name: value for name, value in passed.items() if value})

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._options!r})"

    def to_dict(self, *, include_password: bool = True) -> dict[str, Any]:
        """Without the token."""
        options = {name: value for name, value in self.storage_options.items() if name != "token"}
        return {"cls": f"{type(self).__module__}:{type(self).__name__}", "protocol": DATASETS, "args": [], **options}

    def to_json(self, *, include_password: bool = True) -> str:
        """Without the token."""
        return json.dumps(self.to_dict())

    def _at(self, path: str) -> tuple[DatasetsStore, str, str]:
        """Return the store, the prefix of its paths in this filesystem, and the path in the store."""
        stripped = self._strip_protocol(path)
        store, inside = open_store(f"{DATASETS}://{stripped}", self._options)
        assert isinstance(store, DatasetsStore)
        return store, stripped[: len(stripped) - len(inside)].rstrip("/") + "/", inside

    @staticmethod
    def _call(operation: Callable[..., T], *arguments: Any, **options: Any) -> T:
        return call_with_retries(lambda: operation(*arguments, **options), RetryPolicy())

    # Listings

    @staticmethod
    def _file(root: str, entry: Entry) -> dict[str, Any]:
        when = None if entry.modified_s is None else dt.datetime.fromtimestamp(entry.modified_s, tz=dt.timezone.utc)
        return {"name": root + entry.path, "size": entry.size, "type": "file", "etag": entry.etag, "mtime": when}

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        store, root, inside = self._at(path)
        if "/" in inside:
            if (found := self._call(store.find, inside)) is not None:
                return self._file(root, found)
            below = self._call(store.list_after, f"{inside}/", recursive=True, after="", limit=1)
            is_folder = bool(below.entries)
        else:
            is_folder = not inside or self._call(store.has_dataset, inside)
        if not is_folder:
            url = f"{DATASETS}://{root}{inside}"
            raise ObjectNotFoundError(f"{url}: no such file or dataset.", url=url)
        return {"name": (root + inside).rstrip("/"), "size": 0, "type": "directory"}

    def exists(self, path: str, **kwargs: Any) -> bool:
        """Whether a file or folder exists. Unlike in fsspec's own method, errors other than "not found" are raised."""
        return self._type(path) is not None

    def isfile(self, path: str) -> bool:
        return self._type(path) == "file"

    def isdir(self, path: str) -> bool:
        return self._type(path) == "directory"

    def _type(self, path: str) -> str | None:
        try:
            return str(self.info(path)["type"])
        except FileNotFoundError:
            return None

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        store, root, inside = self._at(path)
        found, after = list[dict[str, Any]](), cast(str | None, "")
        while after is not None:
            prefix = f"{inside}/" if inside else ""
            page = self._call(store.list_after, prefix, recursive=False, after=after, limit=MAX_PAGE)
            found += [self._file(root, entry) for entry in page.entries]
            found += [{"name": root + folder[:-1], "size": 0, "type": "directory"} for folder in page.folders]
            after = page.next_token
        if not found and (info := self.info(path))["type"] == "file":
            found = [info]
        found.sort(key=lambda info: str(info["name"]))
        return found if detail else [info["name"] for info in found]

    def walk(
        self,
        path: str,
        maxdepth: int | None = None,
        topdown: bool = True,
        on_error: str | Callable[[OSError], None] = "omit",
        **kwargs: Any,
    ) -> Iterator[Any]:
        """As fsspec's, but a folder that cannot be listed is an error, unless it does not exist."""

        def stop(error: OSError) -> None:
            if not isinstance(error, FileNotFoundError):
                raise error

        yield from super().walk(path, maxdepth, topdown, stop if on_error == "omit" else on_error, **kwargs)

    # Reading

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        with self.open(path, "rb", cache_type="none") as file:
            first, after, _ = slice(start, end).indices(file.size)
            data: bytes = file._fetch_range(first, after)
            return data

    def open(self, path: str, mode: str = "rb", *args: Any, compression: str | None = None, **kwargs: Any) -> Any:
        """Open a file as fsspec does, without compressing on writing: compressors do not close the file behind them."""
        if compression is not None and "r" not in mode:
            advice = f"use fsspec.open(url, {mode!r}, compression={compression!r}), which closes the compressed file"
            raise ValueError(f"{DATASETS}://{path}: {advice}.")
        return super().open(path, mode, *args, compression=compression, **kwargs)

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | str | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        store, _, inside = self._at(path)
        if mode == "xb" and self._call(store.find, inside) is not None:
            raise ObjectExistsError(f"{DATASETS}://{path} exists already.", url=f"{DATASETS}://{path}")
        if mode in ("wb", "xb"):
            return _WrittenFile(store.create(inside, overwrite=mode == "wb"), path, autocommit=autocommit)
        if mode != "rb":
            what = f"mode {mode!r} is not supported: files are read, or written as a whole"
            raise ValueError(f"{DATASETS}://{path}: {what}.")
        info = self.info(path)
        if info["type"] != "file":
            raise IsADirectoryError(path)
        options = {**kwargs, "size": info["size"], "details": info, "cache_options": cache_options}
        return _ReadFile(store, inside, self, path, mode, block_size=block_size or "default", **options)

    # Writing

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        with self.open(path, "xb" if mode == "create" else "wb") as file:
            file.write(value)

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        """Create a dataset. Folders in it exist as soon as they contain a file."""
        store, _, inside = self._at(path)
        name, slash, _ = inside.partition("/")
        if name and (create_parents or not slash):
            self._call(store.create_dataset, name, exist_ok=bool(slash))

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        with contextlib.suppress(*((ObjectExistsError,) if exist_ok else ())):
            self.mkdir(path)

    def rm_file(self, path: str) -> None:
        """Remove a file."""
        store, _, inside = self._at(path)
        if self.info(path)["type"] != "file":
            raise IsADirectoryError(errno.EISDIR, "a folder is removed with recursive=True", path)
        self._call(store.delete, inside)

    def rmdir(self, path: str) -> None:
        """Remove an empty dataset."""
        if self.ls(path):
            raise OSError(errno.ENOTEMPTY, "not empty", path)
        store, _, inside = self._at(path)
        self._call(store.remove_dataset, inside)

    def rm(self, path: str | list[str], recursive: bool = False, maxdepth: int | None = None) -> None:
        """Remove files; with ``recursive`` also all files below a folder, and datasets that are empty then."""
        for one in self.expand_path(path):
            for file in self.find(one, maxdepth=maxdepth) if recursive else [one]:
                self.rm_file(file)
            _, _, inside = self._at(one)
            if recursive and inside and "/" not in inside and maxdepth is None:
                self.rmdir(one)


class _ReadFile(AbstractBufferedFile):  # type: ignore[misc]  # fsspec carries no types
    """A file that is read by ranges, all of the version that existed when it was opened."""

    def __init__(self, store: DatasetsStore, inside: str, *arguments: Any, **options: Any) -> None:
        self._store, self._inside = store, inside
        super().__init__(*arguments, **options)

    def _fetch_range(self, start: int, end: int) -> bytes:
        url = RemoteUrl(f"{DATASETS}://{self.path}", self.size, self.details["etag"])
        reader = ObjectReader(url, self._store, self._inside, RetryPolicy(), ConcurrencyLimit(1, check=lambda: None))
        return reader.read(start, end) if start < end else b""


class _WrittenFile(io.RawIOBase):
    """A file that is open for writing. Closing it publishes it, unless an exception is the reason.

    ``fsspec.open`` and text wrappers close their files without the reason. So the exception that is being handled is
    compared with the one at the time of opening.

    Args:
        pending: receives the bytes.
        name: of the file, for messages.
        autocommit: whether closing publishes it; otherwise ``commit`` does (fsspec's transactions).
    """

    def __init__(self, pending: ObjectWriter, name: str, *, autocommit: bool) -> None:
        super().__init__()
        self._pending, self.path, self._autocommit = pending, name, autocommit
        self._before = sys.exc_info()[1]
        self._num_written = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._num_written

    def write(self, data: Any) -> int:
        if self.closed:
            raise ValueError(f"{self.path} is closed.")
        with memoryview(data) as view:
            self._pending.write(view.tobytes())
            self._num_written += view.nbytes
            return view.nbytes

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        now = sys.exc_info()[1]
        if now is not None and now is not self._before:
            _log.warning("%s is not published: it was closed while a %s was handled", self.path, type(now).__name__)
            self.discard()
        elif self._autocommit:
            self.commit()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def commit(self) -> None:
        """Publish the file."""
        try:
            self._pending.commit()
        except BaseException:
            self._pending.abort()
            raise

    def discard(self) -> None:
        """Discard what was written."""
        super().close()
        self._pending.abort()

    def __del__(self) -> None:
        if not self.closed:  # lost without a close, so it may be incomplete
            _log.warning("%s is not published: it was never closed", self.path)
            with contextlib.suppress(Exception):
                self.discard()
