"""Serialise calls of fsspec filesystems that are not thread-safe, and replace a filesystem after an error.

fsspec's ftp has one control connection, whose replies go to the thread that reads first. Existing files then seem to be
missing, or a reply never arrives. After a time-out the replies stay out of step, so the filesystem is not used again.
"""

from __future__ import annotations

import contextlib
import ftplib  # its classes of errors
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import fsspec
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from ..core.urls import HTTP
from ..errors import RemoteDataError
from .errors import KINDS_OF_VALUES, is_missing_on_webdav
from .protocol import CONNECT_TIMEOUT_S

_TIMEOUTS = {"ftp": "timeout"}  # the option that limits the time without a byte
_SECRET = re.compile(r"pass|secret|token|auth|acct|pkey|credential|cookie|header|sas|_key$", re.IGNORECASE)
_MIN_SECRET = 4  # characters; shorter ones are parts of words
_MAX_AGAIN = 100
_KNOWN_MODULES = ("huggingface_hub", "torchdata_remote", "fsspec.implementations.arrow")

T = TypeVar("T")


def _texts(value: Any) -> Iterator[str]:
    """Yield the strings in the value of an option."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, bytes):
        yield value.decode("latin-1")
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _texts(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _texts(one)


def is_thread_safe(kind: type) -> bool:
    """Whether several threads may use a filesystem of this class: those on asyncio, and a few known ones."""
    kinds = kind.__mro__
    if any(one.__name__ in ("AsyncFileSystemWrapper", "DirFileSystem") for one in kinds):
        return False  # the wrapped filesystem may not be
    if issubclass(kind, AsyncFileSystem | LocalFileSystem | MemoryFileSystem):
        return True
    return kind.__module__.startswith(_KNOWN_MODULES)


def with_timeout(scheme: str, keywords: dict[str, Any], read_timeout_s: float) -> dict[str, Any]:
    """Add the time-out option of a filesystem that has one, unless it is set."""
    if scheme in HTTP:
        from aiohttp import ClientTimeout

        limits = ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=read_timeout_s)
        return {**keywords, "client_kwargs": {"timeout": limits, **(keywords.get("client_kwargs") or {})}}
    name = _TIMEOUTS.get(scheme)
    return keywords if name is None else {name: read_timeout_s, **keywords}


def repeat_if_changed(call: Callable[[], T]) -> T:
    """Call again if a finalizer or another thread wrote to ``memory://`` meanwhile: listings end with an error then."""
    for _ in range(_MAX_AGAIN):
        try:
            return call()
        except RuntimeError as error:  # noqa: PERF203  # rare
            if "changed" not in str(error) or "during iteration" not in str(error):  # size, or keys
                raise
    return call()


class NoDataConnectionError(ConnectionError):
    """A server of ftp refuses passive mode, or its reply has no address. fsspec takes that for an empty folder."""


class Filesystem:
    """An fsspec filesystem, used by one thread at a time unless it is known to be thread-safe.

    Args:
        kind: its class.
        make: makes one. Called again after an error that may leave a connection out of step.
        options: of the user, for errors of Python's types: libraries do not check their values. Those that are
            secrets are cut from errors.
    """

    def __init__(self, kind: type, make: Callable[[], Any], options: Mapping[str, Any]) -> None:
        self._make, self._options = make, sorted(options)
        self._secrets = {
            text
            for name in options
            if _SECRET.search(name)
            for text in _texts(options[name])
            if len(text) >= _MIN_SECRET
        }
        self.is_shared = is_thread_safe(kind)
        self._lock: contextlib.AbstractContextManager[Any] = (
            contextlib.nullcontext() if self.is_shared else threading.RLock()
        )
        self.current: Any = None
        try:
            self.current = make()
        except (ValueError, TypeError, ImportError) as error:
            self._explain(error)
            raise  # wrong options, or a missing package
        except Exception:  # noqa: BLE001  # an unreachable server: the first call tries again
            self.current = None

    @contextlib.contextmanager
    def use(self) -> Iterator[Any]:
        """Lock the filesystem for one or several calls."""
        with self._lock:
            try:
                if self.current is None:
                    self.current = self._make()
                _prepare(self.current)
                yield self.current
            except (RemoteDataError, GeneratorExit):
                raise
            except (FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError) as error:
                cause = error.__cause__
                if cause is not None and not is_missing_on_webdav(cause):
                    self._drop()  # some filesystems report a missing object for every error
                raise
            except Exception as error:
                self._drop()
                self._explain(error)
                raise

    def _explain(self, error: Exception) -> None:
        """Change the message of an error that the options may have caused: a library may show their values."""
        text = str(error)
        if self._secrets and any(secret in text for secret in self._secrets):
            text = "its message is not shown, because it has a value of storage_options"
            error.args = (text,)
            error.__cause__, error.__suppress_context__ = None, True
        if self._options and isinstance(error, TypeError | AttributeError):
            error.args = (f"{text}. {KINDS_OF_VALUES} ({', '.join(self._options)})",)

    def _drop(self) -> None:
        if not self.is_shared:
            self.current = None


def list_files(filesystem: Any, folder: str, *, recursive: bool) -> dict[str, dict[str, Any]]:
    """List the files of a folder, by name. A folder that cannot be listed is an error.

    fsspec's generic ``find`` omits folders whose listing fails, so it is used only if the filesystem overrides it.
    """
    own = type(filesystem).find is not fsspec.AbstractFileSystem.find or isinstance(filesystem, AsyncFileSystem)
    if own:
        found: dict[str, dict[str, Any]] = filesystem.find(folder, maxdepth=None if recursive else 1, detail=True)
        return found
    files: dict[str, dict[str, Any]] = {}
    if isinstance(getattr(filesystem, "ftp", None), ftplib.FTP) and filesystem.isfile(folder):
        return files  # servers list a file as if it were in a folder of its name
    infos = list_infos(filesystem, folder)
    seen = {folder.rstrip("/")}
    while infos:
        info = infos.pop()
        name = str(info["name"])
        if info.get("type", "file") != "directory":
            files[name] = info
        elif recursive and name.rstrip("/") not in seen:
            seen.add(name.rstrip("/"))
            try:
                infos += list_infos(filesystem, name)
            except FileNotFoundError as error:
                raise ConnectionError(f"{name} was listed, and cannot be listed itself") from error
    return files


def list_infos(filesystem: Any, folder: str) -> list[dict[str, Any]]:
    """List what is in a folder.

    Raises:
        PermissionError: if a server of ftp refuses it. fsspec returns an empty folder then, which it does not keep.
    """
    found: list[dict[str, Any]] = list(filesystem.ls(folder, detail=True))
    if not found and isinstance(getattr(filesystem, "ftp", None), ftplib.FTP):
        kept = filesystem.dircache
        if kept.use_listings_cache and filesystem._strip_protocol(folder) not in kept:
            raise PermissionError(f"the server does not list the folder {folder}")
    return found


def _prepare(filesystem: Any) -> None:
    """Set what the libraries of ftp and sftp leave out: errors of a reply, and packets that are sent at once."""
    ftp = getattr(filesystem, "ftp", None)
    if isinstance(ftp, ftplib.FTP) and "getresp" not in vars(ftp):
        _make_ftp_strict(ftp)
    transport = getattr(getattr(filesystem, "client", None), "get_transport", None)
    connection = None if transport is None else getattr(transport(), "sock", None)
    if isinstance(connection, socket.socket):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else each 32 KiB of sftp wait for 40 ms


def _make_ftp_strict(ftp: Any) -> None:
    """Raise transient (4xx) and invalid replies as connection errors: fsspec reports ftplib's as missing files."""
    get_reply = ftp.getresp

    def getresp() -> Any:
        try:
            return get_reply()
        except (ftplib.error_temp, ftplib.error_proto, ftplib.error_reply) as error:
            raise ConnectionError(f"the server answered {error}") from error

    def voidresp() -> Any:
        reply = getresp()
        if not reply.startswith("2"):
            raise ConnectionError(f"the server answered {reply}")
        return reply

    make_passive = ftp.makepasv

    def makepasv() -> Any:
        try:
            return make_passive()
        except ftplib.Error as error:
            raise NoDataConnectionError(f"the server opens no connection for data (PASV): {error}") from error

    ftp.getresp, ftp.voidresp, ftp.makepasv = getresp, voidresp, makepasv
