"""Listings of dataset services in fsspec's terms."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

from fsspec import AbstractFileSystem

from ...core.options import RetryPolicy, StorageOptions
from ...core.retry import call_with_retries
from ...errors import ObjectNotFoundError, StorageError
from ...storage import Entry
from ...storage.dataset_service.store import DATASETS, MAX_PAGE, DatasetsStore
from .connect import open_service

T = TypeVar("T")
_RETRY = RetryPolicy()


class DatasetsTree(AbstractFileSystem):  # type: ignore[misc]  # fsspec carries no types
    """Listings of dataset services, never cached.

    Args:
        options: ``token`` and ``secure``.
        **more: options of all fsspec filesystems.
    """

    def __init__(self, options: StorageOptions, **more: Any) -> None:
        super().__init__(**more)
        self._options = options

    # Paths

    def _open_store(self, path: str) -> tuple[DatasetsStore, str, str]:
        """Return the store, the prefix of its paths in this filesystem, and the path in the store."""
        stripped = self._strip_protocol(path)
        store, inside = open_service(f"{DATASETS}://{stripped}", self._options)
        return store, stripped[: len(stripped) - len(inside)].rstrip("/") + "/", inside

    @staticmethod
    def _call(operation: Callable[[], T]) -> T:
        return call_with_retries(operation, _RETRY)

    @staticmethod
    def _info(root: str, entry: Entry) -> dict[str, Any]:
        when = None if entry.modified_s is None else dt.datetime.fromtimestamp(entry.modified_s, tz=dt.timezone.utc)
        return {"name": root + entry.path, "size": entry.size, "type": "file", "etag": entry.etag, "mtime": when}

    @staticmethod
    def _folder(name: str) -> dict[str, Any]:
        return {"name": name.rstrip("/"), "size": 0, "type": "directory"}

    def _listed(self, path: str, *, recursive: bool) -> Iterator[dict[str, Any]]:
        """List a folder; all files below it, and no folders, if ``recursive``."""
        store, root, inside = self._open_store(path)
        prefix, after = f"{inside}/" if inside else "", ""
        while True:
            ask = partial(store.list_after, prefix, recursive=recursive, after=after, limit=MAX_PAGE)
            page = self._call(ask)
            yield from (self._info(root, entry) for entry in page.entries)
            yield from (self._folder(root + folder) for folder in page.folders)
            if page.next_token is None:
                return
            after = page.next_token

    # Listings

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        store, root, inside = self._open_store(path)
        found = self._call(lambda: store.find(inside)) if inside else None
        if found is not None:
            return self._info(root, found)
        if not inside or self._call(lambda: store.has_folder(inside + "/")):
            return self._folder(root + inside)
        raise ObjectNotFoundError(
            f"{DATASETS}://{root}{inside}: no such file or dataset.", url=f"{DATASETS}://{root}{inside}"
        )

    def exists(self, path: str, **kwargs: Any) -> bool:
        """Whether a file or folder exists. Unlike in fsspec's own method, errors other than "not found" are raised."""
        try:
            self.info(path)
        except FileNotFoundError:
            return False
        return True

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
        found = list(self._listed(path, recursive=False))
        if not found:
            info = self.info(path)
            found = [info] if info["type"] == "file" else []
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

    def find(
        self, path: str, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **kwargs: Any
    ) -> Any:
        if maxdepth is not None and maxdepth < 1:
            raise ValueError("maxdepth must be at least 1")
        top = self._open_store(path)[1:]
        whole = "".join(top).rstrip("/")
        found = {info["name"]: info for info in self._listed(path, recursive=maxdepth != 1)}
        if not found:
            try:
                info = self.info(path)
            except FileNotFoundError:
                return {} if detail else []
            found = {info["name"]: info} if info["type"] == "file" or withdirs else {}
        elif maxdepth != 1 and withdirs:
            for name in list(found):
                while (name := name.rpartition("/")[0]) and name not in found and len(name) > len(whole):
                    found[name] = self._folder(name)
            if not top[1]:  # empty datasets are in no file's path
                found = {**{info["name"]: info for info in self._listed(path, recursive=False)}, **found}
        if withdirs and whole not in found:
            found[whole] = self._folder(whole)
        kept = {
            name: found[name]
            for name in sorted(found)
            if (withdirs or found[name]["type"] == "file")
            and (maxdepth is None or name[len(whole) + 1 :].count("/") < maxdepth)
        }
        return kept if detail else list(kept)

    def modified(self, path: str) -> dt.datetime:
        """Return when the file was written, in UTC."""
        when = self.info(path).get("mtime")
        if when is None:
            raise StorageError(f"{DATASETS}://{path}: the service does not report when this was written.", url=path)
        assert isinstance(when, dt.datetime)
        return when

    created = modified  # files are replaced, never changed
