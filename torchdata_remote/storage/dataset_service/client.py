"""Send requests to a dataset service: URLs, the token, and errors with the service's own message."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any
from urllib.parse import quote, urlencode

import urllib3
from urllib3.exceptions import LocationParseError

from ...core.options import StorageOptions
from ...errors import ObjectNotFoundError, StorageError, UrlError
from ..errors import mark_host_known, translate_errors
from ..http import IDENTITY, require_unencoded
from ..network import ServerPools
from ..protocol import CONNECT_TIMEOUT_S
from .errors import from_service, message_of
from .json_body import SMALL, BodyLimits, parse_json, read_body
from .token import TOKEN_VARIABLE, token_for

_KNOWN = {"token", "secure"}
_MAX_ERROR_BYTES = 8192
_WRITE_TIMEOUT_S = 120.0  # the service responds after the bytes are on its disk


class ServiceClient:
    """Sends requests to one host. Thread-safe; not to be shared by processes.

    Args:
        host: with its port.
        options: ``token`` and ``secure``.
        read_timeout_s: seconds without a byte after which a request fails.

    Raises:
        UrlError: for unknown options.
    """

    def __init__(self, host: str, options: StorageOptions, read_timeout_s: float) -> None:
        self._host, self.root = host, f"datasets://{host}/"
        unknown = sorted(set(options) - _KNOWN)
        secure, token = options.get("secure"), options.get("token")
        if unknown or not isinstance(secure, bool | None) or not isinstance(token, str | None):
            raise UrlError(
                f"{self.root}: storage_options for a dataset service are 'token' (a string; else the environment's "
                f"{TOKEN_VARIABLE}) and 'secure' (True for https), got {options!r}.",
                url=self.root,
            )
        self.origin = f"{'https' if secure else 'http'}://{host}"
        self._token, self.read_timeout_s = token, read_timeout_s

    @property
    def token(self) -> str | None:
        """The token of the options, or of the environment at this moment, as :func:`token_for` returns it."""
        return token_for(self._host, self._token)

    @property
    def authorization(self) -> dict[str, str]:
        """The header with the token, if there is one."""
        token = self.token
        return {} if token is None else {"Authorization": f"Bearer {token}"}

    @cached_property
    def _pool(self) -> Any:
        try:
            urllib3.util.parse_url(self.origin)
        except LocationParseError as error:
            raise UrlError(f"{self.root}: not a host with a port.", url=self.root) from error
        return ServerPools().manager(self.origin)

    def target(self, *segments: str, **query: str | int | None) -> str:
        """Return path and query of a request, with each segment percent-encoded once.

        >>> ServiceClient("h", StorageOptions(), 1).target("photos", "files", "a b/50%.jpg", upload="x")
        '/datasets/photos/files/a%20b/50%25.jpg?upload=x'
        """
        parameters = {name: value for name, value in query.items() if value is not None}
        try:
            path = "/".join(["/datasets", *(quote(segment, safe="/") for segment in segments)])
            return f"{path}?{urlencode(parameters)}" if parameters else path
        except UnicodeEncodeError as error:
            raise UrlError(f"{self.root}: {segments!r} cannot be written as UTF-8.", url=self.root) from error

    def url(self, path: str) -> str:
        """URL of a file, for errors."""
        return self.root + path

    def split(self, path: str) -> tuple[str, str]:
        """Split a path into the dataset's name and the path of a file in it.

        Dots are refused: urllib3 would resolve them, and request a file of another dataset.

        Raises:
            ObjectNotFoundError: if the path names no file.
            UrlError: if the path is invalid.
        """
        name, _, file = path.partition("/")
        if not file:
            raise ObjectNotFoundError(f"{self.url(path)} names a dataset, not a file in it.", url=self.url(path))
        if any(segment in ("", ".", "..") for segment in path.split("/")):
            raise UrlError(
                f"{self.url(path)}: the path of a file in a dataset has no empty segment, '.' or '..'.",
                url=self.url(path),
            )
        return name, file

    def file_target(self, path: str, **query: str | int | None) -> str:
        """Return path and query of a request about a file."""
        name, file = self.split(path)
        return self.target(name, "files", file, **query)

    def folder_name(self, path: str) -> str:
        """Return the dataset that a path without a file names.

        Raises:
            UrlError: if it names none, or a folder in a dataset.
        """
        name = path.rstrip("/")
        if not name or "/" in name or name in (".", ".."):
            raise UrlError(f"{self.url(path)} is no dataset's name.", url=self.url(path))
        return name

    @contextlib.contextmanager
    def expecting(self, what: str, path: str) -> Iterator[None]:
        """Raise errors of parsing an unexpected response in the block as this package's error."""
        try:
            yield
        except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise StorageError(
                f"{self.url(path)}: the response has no valid {what} ({type(error).__name__}: {error!s:.200}). Is a "
                "dataset service of this version running there?",
                url=self.url(path),
            ) from error

    @contextlib.contextmanager
    def translating_errors(self, url: str) -> Iterator[None]:
        """Raise errors of urllib3 in the block as this package's errors."""
        with translate_errors(url):
            yield

    def send(
        self,
        method: str,
        target: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | bytearray | Iterable[memoryview] | None = None,
        writing: bool = False,
        timeout_s: float | None = None,
    ) -> Any:
        """Send one request, and return the response, whose body is not yet read. Redirects are not followed.

        Args:
            method: of HTTP.
            target: as :meth:`target` makes it.
            path: of the file, for errors.
            headers: in addition to those of every request.
            body: of the request; one in pieces needs Content-Length among the headers.
            writing: whether the request writes an object.
            timeout_s: seconds without a byte of the response after which the request fails.

        Raises:
            StorageError: for every response that is not a success.
        """
        url = self.root + path
        wait_s = timeout_s or (max(self.read_timeout_s, _WRITE_TIMEOUT_S) if writing else self.read_timeout_s)
        with self.translating_errors(url):
            response = self._pool.urlopen(
                method,
                self.origin + target,
                body=body,
                headers={**IDENTITY, **self.authorization, **(headers or {})},
                retries=False,
                redirect=False,
                timeout=urllib3.Timeout(connect=CONNECT_TIMEOUT_S, read=wait_s),
                preload_content=False,
                enforce_content_length=True,
            )
            mark_host_known(self.root)
            if response.status in (200, 201, 202, 204, 206):
                with contextlib.ExitStack() as on_error:
                    on_error.callback(response.close)
                    require_unencoded(response.headers.get("Content-Encoding"), path, url)
                    on_error.pop_all()
                return response
            body_of_error = response.read(_MAX_ERROR_BYTES, decode_content=False)
            if response.length_remaining:
                response.close()  # with its connection, which has unread bytes
            response.release_conn()
        raise from_service(
            response.status,
            message_of(body_of_error.decode("utf-8", "replace")),
            url,
            writing=writing,
            retry_after=response.headers.get("Retry-After"),
        )

    def request_json(self, method: str, target: str, path: str, *, limits: BodyLimits = SMALL, **options: Any) -> Any:
        """Send one request, and return the JSON of its response, ``None`` for an empty body.

        Args:
            method: of HTTP.
            target: as :meth:`target` makes it.
            path: of the file, for errors.
            limits: of the body of the response.
            **options: of :meth:`send`.

        Raises:
            StorageError: for a response that is not a success, is no JSON, or is larger than ``limits``.
        """
        url = self.root + path
        response = self.send(method, target, path, **options)
        try:
            with self.translating_errors(url):
                body = read_body(response, limits.num_bytes, self.read_timeout_s, url)
        except BaseException:
            response.close()  # with its connection, which has unread bytes
            raise
        response.release_conn()
        return parse_json(body, limits, url) if body else None

    def head(self, path: str, headers: Mapping[str, str] | None = None) -> Mapping[str, str]:
        """Return the headers of a file; their names are case-insensitive."""
        response = self.send("HEAD", self.file_target(path), path, headers=headers)
        with self.translating_errors(self.url(path)):
            response.drain_conn()  # or the connection cannot be reused
            response.release_conn()
        received: Mapping[str, str] = response.headers
        return received


class ServiceRequests:
    """Base class of the kinds of requests that :class:`DatasetsStore` sends.

    Args:
        client: sends them.
    """

    def __init__(self, client: ServiceClient) -> None:
        self._client = client
