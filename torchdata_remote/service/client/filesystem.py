"""``datasets://`` as an fsspec filesystem, on :class:`DatasetsStore`."""

from __future__ import annotations

import errno
import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from ...core.options import StorageOptions
from ...errors import ObjectExistsError, ObjectNotFoundError
from ...storage.dataset_service.store import DATASETS
from .directory_tree import DatasetsTree
from .file import READ_BYTES, ReadFile, WrittenFile, read_checked

_IN_FLIGHT = 16


class DatasetsFileSystem(DatasetsTree):
    """Dataset services as an fsspec filesystem. Paths are ``host:port/NAME/PATH``.

    A file becomes visible as a whole or not at all: it is not published if an exception leaves its ``with`` block, or
    if it is never closed. Listings are not cached.

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
        options_of_service = {"token": token, "secure": secure}
        super().__init__(
            StorageOptions({name: value for name, value in options_of_service.items() if value}), **options
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._options!r})"

    def to_dict(self, *, include_password: bool = True) -> dict[str, Any]:
        """Without the token."""
        options = {name: value for name, value in self.storage_options.items() if name != "token"}
        return {"cls": f"{type(self).__module__}:{type(self).__name__}", "protocol": DATASETS, "args": [], **options}

    def to_json(self, *, include_password: bool = True) -> str:
        """Without the token."""
        return json.dumps(self.to_dict())

    # Reading

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        store, _, inside = self._open_store(path)
        if (start or 0) < 0 or (end or 0) < 0:
            size = int(self.info(path)["size"])
            start, end = slice(start, end).indices(size)[:2]
        return read_checked(store, inside, start or 0, end)

    def cat_ranges(
        self,
        paths: list[str],
        starts: int | list[int],
        ends: int | list[int],
        max_gap: int | None = None,
        on_error: str = "return",
        **kwargs: Any,
    ) -> list[Any]:
        """Read many ranges concurrently."""
        if max_gap is not None:
            raise NotImplementedError("max_gap")
        firsts = starts if isinstance(starts, list) else [starts] * len(paths)
        afters = ends if isinstance(ends, list) else [ends] * len(paths)
        if not len(paths) == len(firsts) == len(afters):
            raise ValueError(f"{len(paths)} paths, {len(firsts)} starts and {len(afters)} ends")

        def one(path: str, start: int, end: int) -> Any:
            try:
                return self.cat_file(path, start, end)
            except Exception as error:
                if on_error != "return":
                    raise
                return error

        with ThreadPoolExecutor(_IN_FLIGHT, thread_name_prefix="cat") as pool:
            return list(pool.map(one, paths, firsts, afters))

    def open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        cache_options: dict[str, Any] | None = None,
        compression: str | None = None,
        **kwargs: Any,
    ) -> Any:
        """Open a file as fsspec does, without compressing on writing: compressors do not close the file behind them."""
        if compression is not None and "r" not in mode:
            raise ValueError(
                f"{DATASETS}://{path}: use fsspec.open(url, {mode!r}, compression={compression!r}), which closes "
                "the file behind the compressor."
            )
        return super().open(path, mode, block_size, cache_options, compression, **kwargs)

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | str | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        store, _, inside = self._open_store(path)
        if mode == "xb" and self._call(lambda: store.find(inside)) is not None:
            raise ObjectExistsError(f"{DATASETS}://{path} exists already.", url=f"{DATASETS}://{path}")
        if mode in ("wb", "xb"):
            return WrittenFile(store.create(inside, overwrite=mode == "wb"), path, autocommit=autocommit)
        if mode != "rb":
            raise ValueError(
                f"{DATASETS}://{path}: mode {mode!r} is not supported: files are read, or written as a whole."
            )
        info = self.info(path)
        if info["type"] != "file":
            raise IsADirectoryError(path)
        chosen = {"block_size": block_size or "default", "cache_options": cache_options}
        return ReadFile(store, inside, self, path, mode, size=info["size"], details=info, **chosen, **kwargs)

    # Writing

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        with self.open(path, "xb" if mode == "create" else "wb") as file:
            file.write(value)

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        if self.isdir(path1):
            self.makedirs(path2, exist_ok=True)
            return
        with self.open(path1, "rb", cache_type="none") as source, self.open(path2, "wb") as target:
            while data := source.read(READ_BYTES):
                target.write(data)

    def mkdir(self, path: str, create_parents: bool = True, **kwargs: Any) -> None:
        """Create a dataset. Folders in it exist as soon as they contain a file."""
        store, _, inside = self._open_store(path)
        if "/" in inside and create_parents:
            self._call(lambda: store.create_dataset(inside.partition("/")[0]))
        elif inside and "/" not in inside:
            self._call(lambda: store.make_folder(inside))

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        try:
            self.mkdir(path)
        except ObjectExistsError:
            if not exist_ok:
                raise

    def rm_file(self, path: str) -> None:
        store, _, inside = self._open_store(path)
        if self._call(lambda: store.find(inside)) is None:
            raise ObjectNotFoundError(f"{DATASETS}://{path}: no such file.", url=f"{DATASETS}://{path}")
        self._call(lambda: store.delete(inside))

    def rmdir(self, path: str) -> None:
        """Remove an empty dataset."""
        if self.ls(path):
            raise OSError(errno.ENOTEMPTY, "not empty", path)
        store, _, inside = self._open_store(path)
        self._call(lambda: store.remove_folder(inside))

    def rm(self, path: str | list[str], recursive: bool = False, maxdepth: int | None = None) -> None:
        """Remove files; with ``recursive`` also datasets, and all files below a folder."""
        for one in self.expand_path(path):
            store, _, inside = self._open_store(one)
            if self.info(one)["type"] == "file":
                self._call(partial(store.delete, inside))
            elif not recursive:
                raise IsADirectoryError(errno.EISDIR, "a folder is removed with recursive=True", one)
            elif maxdepth is None and inside and "/" not in inside:
                self._call(partial(store.remove_folder, inside))
            else:
                with ThreadPoolExecutor(_IN_FLIGHT, thread_name_prefix="rm") as pool:
                    list(pool.map(self.rm_file, self.find(one, maxdepth=maxdepth)))
