"""Option objects: frozen, validated on construction, with units in their names and no secret in their ``repr``."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from . import arguments as check
from .arguments import explained, seconds, whole, whole_or_none
from .urls import split_url

MIB = 1 << 20
PROGRESS_BYTES = 16 << 10
# The overhead of smaller requests exceeds their gain
_MIN_PART_BYTES = 256 << 10
_MAPPED_PART_BYTES = 64 * MIB
FALLBACK_NAMES = ("fallback_key", "fallback_secret", "fallback_token")
_CREDENTIALS = dict(
    zip(("aws_access_key_id", "aws_secret_access_key", "aws_session_token"), FALLBACK_NAMES, strict=True)
)
_SHORT_CREDENTIALS = dict(zip(("access_key", "secret"), FALLBACK_NAMES, strict=False))
_SERVER = re.compile("endpoint|host|port|url|account|connection|profile", re.IGNORECASE)
_SECRET_PART = re.compile("(?:AccountKey|SharedAccessSignature)=[^;]*;?", re.IGNORECASE)  # of a connection string
_SERVER_VARIABLES = (
    *("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_PROFILE", "STORAGE_EMULATOR_HOST"),
    *("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_CONNECTION_STRING"),
)


class Backend(str, Enum):
    """The library that transfers objects. Each member equals its name as a ``str``."""

    AUTOMATIC = "automatic"
    """The fastest one that supports these options on this machine; it is logged at level INFO."""
    OBSTORE = "obstore"
    """s3, gs, az, http and https."""
    FSSPEC = "fsspec"
    """All schemes for which fsspec has a package; s3 by s3fs."""


@explained
@dataclass(frozen=True)
class RetryPolicy:
    """Limits for retrying requests that fail with a transient fault.

    Each attempt requests only the bytes that are missing. One that received ``PROGRESS_BYTES`` or more resets the count
    of attempts, the waits and the deadline. Waits grow from ``first_wait_s`` by doubling up to ``max_wait_s``, each
    multiplied by a random number from 0 to 1 ("full jitter"; M. Brooker, "Exponential Backoff And Jitter", AWS
    Architecture Blog, 2015).

    Args:
        deadline_s: seconds from the first attempt after which no further one is started.
        max_attempts: at most; ``None`` for no limit but the deadline.
        first_wait_s: upper limit of the first wait.
        max_wait_s: upper limit of every wait, except of one that the store requests (Retry-After).
        progress_timeout_s: seconds after which an attempt that received fewer than ``PROGRESS_BYTES`` is given up.
    """

    deadline_s: float = 300.0
    max_attempts: int | None = None
    first_wait_s: float = 0.05
    max_wait_s: float = 5.0
    progress_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        for name in ("deadline_s", "first_wait_s", "max_wait_s", "progress_timeout_s"):
            limit_s = seconds(name, getattr(self, name), positive=name in ("deadline_s", "progress_timeout_s"))
            object.__setattr__(self, name, limit_s)
        object.__setattr__(self, "max_attempts", whole_or_none("max_attempts", self.max_attempts))
        if self.first_wait_s > self.max_wait_s:
            got = f"max_wait_s={self.max_wait_s:g} and first_wait_s={self.first_wait_s:g}"
            raise check.marked(ValueError(f"max_wait_s must be at least first_wait_s, got {got}."))


def policy_of(retry: Any) -> RetryPolicy:
    """Return the policy of a ``retry`` argument; ``None`` is the default one.

    Raises:
        TypeError: if it is neither.
    """
    attempts = retry if isinstance(retry, int) else 5
    example = f"RetryPolicy(max_attempts={attempts})"
    found: RetryPolicy | None = check.instance_or_none("retry", retry, RetryPolicy, example=example)
    return found or RetryPolicy()


@dataclass(frozen=True)
class FetchOptions:
    """Options for fetching objects.

    Args:
        max_in_flight: concurrent requests, each in a thread of its own.
        part_bytes: objects larger than this are fetched in ranged parts of this size, in parallel. ``None`` is
            8 MiB, or less if ``max_in_flight`` parts would fill more than three quarters of ``max_buffer_bytes``: the
            rest holds downloaded parts until the consumer asks for them, so that no request has to wait. Streams that
            are read in turn have room for two parts each, up to ``2 * max_in_flight`` parts, and for one at least.
        max_buffer_bytes: bound on all bytes that are fetched or being fetched and not yet consumed. One part is always
            allowed, so an object larger than the bound still streams through.
        in_order: whether objects are returned in the order of their URLs, or as they are complete.
        retry: limits for retrying transient faults.
        backend: the library that transfers the objects.
        cache_dir: local folder in which whole objects are cached; ``None`` disables the cache.
        cache_bytes: bound on the size of the cache; required with ``cache_dir``.
        interleave: objects that are read round robin, each of which gets an equal share of ``max_buffer_bytes``.
    """

    max_in_flight: int = 16
    part_bytes: int | None = None
    max_buffer_bytes: int = 128 * MIB
    in_order: bool = True
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    backend: Backend = Backend.AUTOMATIC
    cache_dir: str | None = None
    cache_bytes: int | None = None
    interleave: int = 1

    def __post_init__(self) -> None:
        for name in ("max_in_flight", "part_bytes", "max_buffer_bytes", "interleave"):
            count = whole_or_none if name == "part_bytes" else whole
            object.__setattr__(self, name, count(name, getattr(self, name)))
        object.__setattr__(self, "in_order", check.flag("in_order", self.in_order))
        object.__setattr__(self, "backend", check.choice("backend", self.backend, Backend))
        if self.cache_dir:
            object.__setattr__(self, "cache_dir", check.local_path("cache_dir", self.cache_dir, example="/data/cache"))
        if (self.cache_dir is None) != (self.cache_bytes is None):
            got = f"got {self.cache_dir!r} and {self.cache_bytes!r}. Pass both, such as cache_bytes=10**10, or none."
            raise check.marked(ValueError(f"cache_dir and cache_bytes belong together, {got}"))
        object.__setattr__(self, "cache_bytes", whole_or_none("cache_bytes", self.cache_bytes))

    def actual_part_bytes(self, *, mapped: bool = False, num_lanes: int = 1) -> int:
        """Return ``part_bytes``, or the default for this use.

        Args:
            mapped: for files that are mapped into memory, which need no buffer.
            num_lanes: iterations that share ``max_buffer_bytes``; each gets room for two parts at least.
        """
        if self.part_bytes is not None:
            return self.part_bytes
        if mapped:
            return max(_MIN_PART_BYTES, min(_MAPPED_PART_BYTES, self.max_buffer_bytes // (2 * num_lanes)))
        num_parts = max(self.max_in_flight, 2 * num_lanes)
        part_bytes = min(8 * MIB, self.max_buffer_bytes * 3 // (4 * num_parts))
        if self.interleave > 1:
            # Of each stream one part is consumed while the next one is fetched, as far as requests are allowed
            num_streams = num_lanes * self.interleave
            num_parts = max(min(2 * num_streams, 2 * self.max_in_flight), num_streams)
            part_bytes = min(part_bytes, self.max_buffer_bytes // num_parts)
        return max(_MIN_PART_BYTES, part_bytes)


@explained
class StorageOptions(Mapping[str, Any]):
    """A user's ``storage_options``, in fsspec's vocabulary, unchanged, with a ``repr`` that shows only names.

    Args:
        options: for s3: ``key``, ``secret``, ``token``, ``endpoint_url``, ``anon``, ``profile``,
            ``client_kwargs={"region_name": ...}``, and three names of this package, ``fallback_key``,
            ``fallback_secret``, ``fallback_token``: credentials that are used if neither ``key`` nor the AWS
            environment (variables, ``~/.aws``, SSO, role) has any. These three are never passed to other stores,
            which take the options of their fsspec filesystem.

    Example:
        >>> StorageOptions({"key": "a", "secret": "b"})
        StorageOptions(key, secret)
    """

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        given: object = options
        if given is not None and not isinstance(given, Mapping):
            expected = 'storage_options must be a dict such as {"key": ..., "secret": ...}'
            raise check.marked(TypeError(f"{expected}, got {check.a_kind(given)}."))
        self._options = dict(options or {})
        if not all(isinstance(name, str) for name in self._options):
            names = ", ".join(sorted(map(repr, self._options)))
            raise check.marked(TypeError(f"storage_options must have names that are str, got {names}."))
        self._by_bucket: dict[tuple[str, str], StorageOptions] = (
            options._by_bucket if isinstance(options, StorageOptions) else {}
        )
        self._identity: str | None = None
        self._server: str | None = None

    @classmethod
    def by_bucket(cls, by_bucket: Mapping[tuple[str, str], StorageOptions]) -> StorageOptions:
        """Return the options of several stores, for one reader.

        Args:
            by_bucket: scheme and bucket -> options.

        Example:
            >>> options = StorageOptions.by_bucket({("s3", "photos"): StorageOptions({"anon": True})})
            >>> options.for_url("s3://photos/0.tar"), options.for_url("s3://others/0.tar")
            (StorageOptions(anon), StorageOptions())
        """
        options = cls()
        options._by_bucket = dict(by_bucket)
        return options

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> StorageOptions:
        """Read credentials of S3 from a local JSON file. They are used only if the AWS environment has none.

        The file holds ``access_key`` and ``secret``; or ``aws_access_key_id``, ``aws_secret_access_key``, and
        ``aws_session_token`` if there is one. Other fields are ignored.

        Args:
            path: of the file.

        Returns:
            StorageOptions: ``fallback_key``, ``fallback_secret`` and, if present, ``fallback_token``. Add further
            options like this: ``{**StorageOptions.from_file(path), "endpoint_url": ...}``.

        Raises:
            OSError: if the file cannot be read.
            ValueError: if it is not such a file. The message names the file and its fields, never a value.

        Example:
            >>> import tempfile
            >>> with tempfile.NamedTemporaryFile("w") as file:
            ...     _ = file.write('{"access_key": "a", "secret": "b"}')
            ...     file.flush()
            ...     StorageOptions.from_file(file.name)
            StorageOptions(fallback_key, fallback_secret)
        """
        try:
            with open(path, "rb") as file:
                document = json.loads(file.read())
        except (ValueError, RecursionError):  # not chained: errors of ``json`` contain the text
            document = None
        for names in (_CREDENTIALS, _SHORT_CREDENTIALS) if isinstance(document, dict) else ():
            found = {option: document[name] for name, option in names.items() if document.get(name)}
            if {*FALLBACK_NAMES[:2]} <= found.keys() and all(isinstance(value, str) for value in found.values()):
                return cls(found)
        raise ValueError(
            f"{os.fspath(path)}: not a file of credentials. Expected JSON with the texts access_key and secret, or "
            "aws_access_key_id and aws_secret_access_key."
        )

    def __getitem__(self, name: str) -> Any:
        return self._options[name]

    def __iter__(self) -> Any:
        return iter(self._options)

    def __len__(self) -> int:
        return len(self._options)

    def for_url(self, url: str) -> StorageOptions:
        """Return the options for the store of a URL: these, unless :meth:`by_bucket` has made them."""
        return self._by_bucket.get(split_url(url)[:2], StorageOptions()) if self._by_bucket else self

    def identity(self) -> str:
        """Return a string that is equal for equal options, as a key of caches in this process. It contains secrets."""
        # Computed on demand, because ids differ between processes
        if self._identity is None:
            routes = [[*bucket, options.identity()] for bucket, options in self._by_bucket.items()]
            own = _identity_of(self._options)
            self._identity = json.dumps([own, routes] if routes else own)
        return self._identity

    def server(self) -> str:
        """Return the options and the environment that select the server, as a part of cache keys.

        Two servers may each have a bucket of the same name. Credentials are not included, so a cache stays valid when
        they change. The string may contain secrets.
        """
        if self._server is None:  # as of the first use: it is asked for with each object
            self._server = self._find_server()
        return self._server

    def _find_server(self) -> str:
        if self._by_bucket:
            return json.dumps([[*bucket, options.server()] for bucket, options in self._by_bucket.items()])
        nested = self._options.get("client_kwargs")
        options = {**(nested if isinstance(nested, Mapping) else {}), **self._options}
        named = {
            name: _SECRET_PART.sub("", str(value))
            for name, value in options.items()
            if _SERVER.search(name) and name != "account_key"
        }
        found = {name: _SECRET_PART.sub("", os.environ[name]) for name in _SERVER_VARIABLES if name in os.environ}
        return json.dumps([named, found], sort_keys=True) if named or found else ""

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_identity": None, "_server": None}

    def __repr__(self) -> str:
        return f"StorageOptions({', '.join(sorted(self._options))})"


def _identity_of(value: object) -> object:
    """Return a value for JSON that differs if the option does. Other objects are themselves, by their address."""
    if isinstance(value, Mapping):
        return {repr(name): _identity_of(value[name]) for name in sorted(value, key=repr)}
    if isinstance(value, list | tuple):
        return [_identity_of(one) for one in value]
    if isinstance(value, bytes | bytearray):
        return f"bytes {value.hex()}"
    if isinstance(value, os.PathLike):
        return str(os.fspath(value))
    return value if isinstance(value, str | int | float | None) else f"object {id(value)}"
