"""Send requests to a dataset service: the token, redirects, bounded responses, errors with the service's own message.

Any server may answer under the host of a URL, so no response is trusted: neither its size nor its time is unbounded.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlencode

from urllib3 import Timeout
from urllib3.exceptions import LocationParseError

from ...core.options import StorageOptions
from ...core.urls import redact
from ...errors import AccessDeniedError, ObjectNotFoundError, StorageError, TransientStorageError, UrlError
from ..errors import from_obstore, from_status, mark_host_known, status_and_code, translate_errors
from ..http import IDENTITY, HttpClient, body_of, require_unencoded, stream_body
from ..network import ServerPools
from ..protocol import CONNECT_TIMEOUT_S
from .protocol import MAX_PATH_BYTES
from .token import TOKEN_VARIABLE, token_advice, token_for

Body = bytes | bytearray | Iterable[memoryview]
_SUCCESS = (200, 201, 202, 204, 206)
_WRITE_TIMEOUT_S = 600.0  # the service joins parts, compares digests, and waits for its disk before it responds
_MAX_ERROR_BYTES, _MAX_MESSAGE = 8192, 500
_SMALL_BYTES = 64 << 10  # of JSON about one file or dataset
_ENTRY_BYTES = 2 * MAX_PATH_BYTES + 1024  # of each entry of a page, its path escaped
_MIN_BYTES_PER_S = 16 << 10
_MESSAGE = re.compile(r'\{"error":\s*("(?:[^"\\]|\\.)*")')


class ServiceClient:
    """Sends requests to one host, each once. Thread-safe; not to be shared by processes.

    Args:
        host: with its port.
        options: ``token`` (default: that of the environment, see :func:`token_for`) and ``secure`` (https).
        read_timeout_s: seconds without a byte after which a request fails.

    Raises:
        UrlError: for other options, and for what is no host.
    """

    def __init__(self, host: str, options: StorageOptions, read_timeout_s: float) -> None:
        self._host, self.root, self.read_timeout_s = host, f"datasets://{host}/", read_timeout_s
        secure, self._token = options.get("secure"), options.get("token")
        if not isinstance(secure, bool | None) or not isinstance(self._token, str | None):
            raise UrlError(
                f"{self.root}: storage_options for a dataset service are 'token' (a string; else the environment's "
                f"{TOKEN_VARIABLE}) and 'secure' (True for https), got {options!r}.",
                url=self.root,
            )
        self.origin = f"{'https' if secure else 'http'}://{host}"
        try:
            self._http = HttpClient(self.origin, read_timeout_s)
        except LocationParseError as error:
            raise UrlError(f"{self.root}: not a host with a port.", url=self.root) from error
        self._pools = ServerPools(retries=False)  # of requests with a body

    @property
    def authorization(self) -> dict[str, str]:
        """The header with the token of the options, or of the environment at this moment, if there is one."""
        token = token_for(self._host, self._token)
        return {} if token is None else {"Authorization": f"Bearer {token}"}

    def url(self, path: str) -> str:
        """URL of a file, for errors."""
        return self.root + path

    def target(self, *segments: str, **query: str | int | None) -> str:
        """Return path and query of a request, with each segment percent-encoded once.

        >>> ServiceClient("h", StorageOptions(), 1).target("photos", "files", "a b/50%.jpg", limit=1)
        '/datasets/photos/files/a%20b/50%25.jpg?limit=1'
        """
        parameters = {name: value for name, value in query.items() if value is not None}
        try:
            path = "/".join(["/datasets", *(quote(segment, safe="/") for segment in segments)])
            return f"{path}?{urlencode(parameters)}" if parameters else path
        except UnicodeEncodeError as error:
            raise UrlError(f"{self.root}: {segments!r} cannot be written as UTF-8.", url=self.root) from error

    def file_target(self, path: str) -> str:
        """Return the path of a request about the file ``NAME/PATH``.

        Dots are refused: urllib3 would resolve them, and request a file of another dataset.

        Raises:
            ObjectNotFoundError: if the path names no file.
            UrlError: if the path is invalid.
        """
        name, _, file = path.partition("/")
        if not file:
            raise ObjectNotFoundError(f"{self.url(path)} names a dataset, not a file in it.", url=self.url(path))
        if not {"", ".", ".."}.isdisjoint(path.split("/")):
            what = "the path of a file in a dataset has no empty segment, '.' or '..'"
            raise UrlError(f"{self.url(path)}: {what}.", url=self.url(path))
        return self.target(name, "files", file)

    def send(
        self,
        method: str,
        target: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: Body | dict[str, Any] | None = None,
    ) -> Any:
        """Send one request, and return the response, whose body is not yet read.

        What only reads is followed to where the service redirects, without the token and the redirect's URL in errors.

        Args:
            method: of HTTP.
            target: as :meth:`target` makes it.
            path: of the file, for errors.
            headers: in addition to those of every request.
            body: of the request; one in pieces needs Content-Length among the headers, a dict is sent as JSON.

        Raises:
            StorageError: for every response that is not a success.
        """
        url, own = self.url(path), self.authorization
        if isinstance(body, dict):
            body, headers = json.dumps(body).encode(), {"Content-Type": "application/json"}
        if method in ("GET", "HEAD"):
            *_, (_, response, _) = self._http.follow(self.origin + target, url, headers or {}, own, method=method)
        else:
            sent = {**IDENTITY, **own, **(headers or {})}
            timeout = Timeout(CONNECT_TIMEOUT_S, max(self.read_timeout_s, _WRITE_TIMEOUT_S))
            with translate_errors(url):
                response = self._pools.manager(self.origin).urlopen(
                    method, self.origin + target, body=body, headers=sent, timeout=timeout,
                    redirect=False, preload_content=False,
                )  # fmt: skip
            mark_host_known(self.root)
        if response.status not in _SUCCESS:
            said = _message_of(body_of(response, url, _MAX_ERROR_BYTES).decode("utf-8", "replace"))
            retry_after = response.headers.get("Retry-After")
            raise _from_service(
                response.status, said, url, writing=method in ("PUT", "POST", "DELETE"), retry_after=retry_after
            )
        with contextlib.ExitStack() as on_error:
            on_error.callback(response.close)
            require_unencoded(response.headers.get("Content-Encoding"), path, url)
            on_error.pop_all()
        return response

    def json(self, method: str, target: str, path: str, *, num_entries: int = 0, **options: Any) -> Any:
        """Send one request, and return the JSON of its response, ``None`` for an empty body.

        Args:
            method: of HTTP.
            target: as :meth:`target` makes it.
            path: of the file, for errors.
            num_entries: that the response has at most.
            **options: of :meth:`send`.

        Raises:
            StorageError: for a response that is not a success, is no JSON, or is larger than such a page.
        """
        url, response = self.url(path), self.send(method, target, path, **options)
        max_bytes = _SMALL_BYTES + num_entries * _ENTRY_BYTES
        received, began_s = bytearray(), time.monotonic()
        with contextlib.closing(response), translate_errors(url):
            for piece in stream_body(response):
                received += piece
                took_s = time.monotonic() - began_s
                if took_s > self.read_timeout_s + len(received) / _MIN_BYTES_PER_S:
                    what = f"{len(received):,} bytes of a response in {took_s:.0f} s, and it is not complete"
                    raise TransientStorageError(f"{url}: {what}.", url=url)
                if len(received) > max_bytes:
                    raise self.unexpected(path, f"has more than {max_bytes:,} bytes")
            response.release_conn()  # what follows closes nothing
        try:
            return json.loads(received.decode()) if received else None
        except (ValueError, RecursionError):
            raise self.unexpected(path, f"is {bytes(received[:80])!r}, which is no JSON") from None

    def unexpected(self, path: str, what: str) -> StorageError:
        """Make the error for a response that no dataset service sends."""
        url = self.url(path)
        return StorageError(f"{url}: the response {what}. Is a dataset service of this version there?", url=url)

    @contextlib.contextmanager
    def expecting(self, what: str, path: str) -> Iterator[None]:
        """Raise errors of parsing an unexpected response in the block as this package's error."""
        try:
            yield
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise self.unexpected(path, f"has no valid {what} ({type(error).__name__}: {error!s:.200})") from error


def from_obstore_at_service(error: Exception, url: str) -> Exception:
    """Convert an error of obstore from a request to a dataset service."""
    text = str(error)
    status, _ = status_and_code(text)
    return from_obstore(error, url) if status is None else _from_service(status, _message_of(text), url)


def _from_service(
    status: int, said: str, url: str, *, writing: bool = False, retry_after: str | None = None
) -> Exception:
    """Make the error for a response of a dataset service, with the message of the service."""
    error = from_status(412 if writing and status == 409 else status, "", url, writing=writing, retry_after=retry_after)
    message = str(error)
    if isinstance(error, AccessDeniedError):
        host = url.removeprefix("datasets://").partition("/")[0]
        message = f"{redact(url)}: the service answered {status}. {token_advice(host)}"
    error.args = (f"{message} The service says: {said}" if said else message,)
    return error


def _message_of(text: str) -> str:
    """Return the value of ``{"error": "..."}`` somewhere in a text, printable; empty if there is none."""
    found, message = _MESSAGE.search(text), ""
    with contextlib.suppress(ValueError):
        message = json.loads(found[1]) if found else ""
    return "".join(character if character.isprintable() else " " for character in message)[:_MAX_MESSAGE]
