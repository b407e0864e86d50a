"""What fsspec's filesystems leave out: which threads may use them, what a server refused, and where requests may go."""

from __future__ import annotations

import ftplib  # its classes of errors
import socket
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import fsspec
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from ..core.urls import redact
from ..errors import StorageError
from .http import IDENTITY, require_unencoded
from .protocol import CONNECT_TIMEOUT_S

_KNOWN_MODULES = ("huggingface_hub", "torchdata_remote", "fsspec.implementations.arrow")
_WEBDAV = "webdav4."
_MAX_AGAIN = 100
_OF_SESSION = ("auth", "cookies", "cookie_jar")  # which aiohttp sends to every host
T = TypeVar("T")


class NoDataConnectionError(ConnectionError):
    """A server of ftp refuses passive mode, or its reply has no address. fsspec takes that for an empty folder."""


def is_thread_safe(kind: type) -> bool:
    """Whether several threads may use a filesystem of this class: those on asyncio, and a few known ones.

    fsspec's ftp has one control connection, whose replies go to the thread that reads first.
    """
    if any(one.__name__ in ("AsyncFileSystemWrapper", "DirFileSystem") for one in kind.__mro__):
        return False  # the wrapped filesystem may not be
    return issubclass(kind, AsyncFileSystem | LocalFileSystem | MemoryFileSystem) or kind.__module__.startswith(
        _KNOWN_MODULES
    )


def renames(kind: type) -> bool:
    """Whether a filesystem of this class moves a file in one step; others copy it, and some write in one request."""
    if issubclass(kind, AsyncFileSystem | MemoryFileSystem) or kind.__module__.startswith("huggingface_hub"):
        return False
    moves: Any = getattr(kind, "mv", None)
    return kind.__module__.startswith(_WEBDAV) or moves is not fsspec.AbstractFileSystem.mv


def rename(filesystem: Any, old: str, new: str, *, overwrite: bool) -> None:
    """Rename a file in one step."""
    if type(filesystem).__module__.startswith(_WEBDAV):
        filesystem.client.move(old, new, overwrite=overwrite)  # its `mv` copies
        return
    try:
        filesystem.mv(old, new)
    except Exception:
        if not overwrite or not filesystem.exists(new):
            raise
        filesystem.rm_file(new)  # a server that does not rename to a file that exists
        filesystem.mv(old, new)


def make_folders(filesystem: Any, folder: str) -> None:
    """Make a folder and those above it. One that another writer has made is no error."""
    try:
        filesystem.makedirs(folder, exist_ok=True)
    except (FileExistsError, ftplib.error_perm):
        filesystem.invalidate_cache()  # fsspec's ftp looks folders up in listings of before
        filesystem.makedirs(folder, exist_ok=True)


def repeat_if_changed(call: Callable[[], T]) -> T:
    """Call again if a finalizer or another thread wrote to ``memory://`` meanwhile: listings end with an error then."""
    for _ in range(_MAX_AGAIN):
        try:
            return call()
        except RuntimeError as error:  # noqa: PERF203  # rare
            if "changed" not in str(error) or "during iteration" not in str(error):  # size, or keys
                raise
    return call()


def list_infos(filesystem: Any, folder: str, *, recursive: bool) -> list[dict[str, Any]]:
    """List the files of a folder; without ``recursive`` also its folders. One that cannot be listed is an error.

    fsspec's generic ``find`` omits folders whose listing fails, so it is used only if the filesystem overrides it.
    """
    has_find = type(filesystem).find is not fsspec.AbstractFileSystem.find or isinstance(filesystem, AsyncFileSystem)
    if recursive and has_find:
        return list(filesystem.find(folder, detail=True).values())
    if _is_ftp(filesystem) and filesystem.isfile(folder):
        return []  # servers list a file as if it were in a folder of its name
    waiting, found = _list_folder(filesystem, folder), list[dict[str, Any]]()
    seen = {folder.rstrip("/")}
    while waiting:
        info = waiting.pop()
        name = str(info["name"]).rstrip("/")
        if not recursive or info.get("type", "file") != "directory":
            found.append(info)
        elif name not in seen:
            seen.add(name)
            try:
                waiting += _list_folder(filesystem, name)
            except FileNotFoundError as error:
                raise ConnectionError(f"{name} was listed, and cannot be listed itself") from error
    return found


def _list_folder(filesystem: Any, folder: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = list(filesystem.ls(folder, detail=True))
    if not found and _is_ftp(filesystem):
        kept = filesystem.dircache  # does not have a folder that the server refuses to list, which fsspec calls empty
        if kept.use_listings_cache and filesystem._strip_protocol(folder) not in kept:
            raise PermissionError(f"the server does not list the folder {folder}")
    return found


def _is_ftp(filesystem: Any) -> bool:
    return isinstance(getattr(filesystem, "ftp", None), ftplib.FTP)


def prepare(filesystem: Any) -> None:
    """Set what the libraries of ftp and sftp leave out: errors of a reply, and packets that are sent at once."""
    if _is_ftp(filesystem) and "getresp" not in vars(filesystem.ftp):
        _make_ftp_strict(filesystem.ftp)
    transport = getattr(getattr(filesystem, "client", None), "get_transport", None)
    connection = None if transport is None else getattr(transport(), "sock", None)
    if isinstance(connection, socket.socket):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else each 32 KiB of sftp wait for 40 ms


def _make_ftp_strict(ftp: Any) -> None:
    """Raise transient (4xx) and invalid replies as connection errors: fsspec reports ftplib's as missing files."""
    get_reply, make_passive = ftp.getresp, ftp.makepasv

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

    def makepasv() -> Any:
        try:
            return make_passive()
        except ftplib.Error as error:
            raise NoDataConnectionError(f"the server opens no connection for data (PASV): {error}") from error

    ftp.getresp, ftp.voidresp, ftp.makepasv = getresp, voidresp, makepasv


def http_keywords(keywords: dict[str, Any], read_timeout_s: float) -> dict[str, Any]:
    """Add options by which fsspec's http waits a limited time, refuses encoded bodies, and keeps headers at their host.

    aiohttp itself keeps only ``Authorization`` and the cookies of a request from other hosts.
    """
    import aiohttp

    client, headers = dict(keywords.get("client_kwargs") or {}), dict(keywords.get("headers") or {})
    own = {name.lower() for name in [*headers, *(client.get("headers") or ())]}
    of_session = [name for name in _OF_SESSION if client.get(name) is not None]
    trace = aiohttp.TraceConfig()
    trace.on_request_end.append(_after_request)
    trace.on_request_redirect.append(partial(_before_redirect, own, of_session))
    limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=read_timeout_s)
    client = {"timeout": limits, "auto_decompress": False, **client}
    client["trace_configs"] = [*(client.get("trace_configs") or ()), trace]
    return {**keywords, "client_kwargs": client, "headers": {**IDENTITY, **headers}}


async def _after_request(session: object, context: object, params: Any) -> None:
    if params.response.status in (200, 206):
        plain = str(params.url).partition("?")[0]
        require_unencoded(params.response.headers.get("Content-Encoding"), unquote(urlsplit(plain).path), plain)


async def _before_redirect(own: set[str], of_session: list[str], session: object, context: object, params: Any) -> None:
    """Keep the user's headers from another host, and refuse what aiohttp would send there nevertheless."""
    from yarl import URL

    here, location = params.response.url, params.response.headers.get("Location", "")
    if here.join(URL(location)).origin() == here.origin():
        return
    for name in [name for name in params.headers if name.lower() in own]:
        del params.headers[name]
    if of_session:
        shown = redact(str(here))
        raise StorageError(
            f"{shown}: redirects to another host, to which storage_options['client_kwargs'][{of_session[0]!r}] "
            "must not be sent. Pass it as storage_options['headers'], or use the URL at which the object is.",
            url=shown,
        )
