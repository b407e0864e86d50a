"""A user's options for a store, and reading them from a file."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any

from ..arguments import check
from ..arguments.calls import explained
from ..urls import split_url
from .credential_file import FALLBACK_NAMES, read_credential_file

_SERVER = re.compile("endpoint|host|port|url|account|connection|profile", re.IGNORECASE)
_SECRET_PART = re.compile("(?:AccountKey|SharedAccessSignature)=[^;]*;?", re.IGNORECASE)  # of a connection string
_SERVER_VARIABLES = (
    *("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_PROFILE", "STORAGE_EMULATOR_HOST"),
    *("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_CONNECTION_STRING"),
)


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
        self._bucket_name = options.bucket_name if isinstance(options, StorageOptions) else None
        self._downloads = options.downloads if isinstance(options, StorageOptions) else {}
        self._by_bucket: dict[tuple[str, str], StorageOptions] = {}
        if isinstance(options, StorageOptions):
            self._by_bucket = options._by_bucket
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
        """Read credentials from a local JSON file. They are used only if the AWS environment has none.

        The file holds ``access_key`` and ``secret``; or ``aws_access_key_id`` and ``aws_secret_access_key``, and with
        them any of ``aws_session_token``, ``bucket_name``, and ``train_index_file_download_url``,
        ``train_classes_file_download_url``, ``val_index_file_download_url``, ``val_classes_file_download_url``,
        ``test_index_file_download_url``. A field that is ``null`` or empty counts as absent.

        Args:
            path: of the file.

        Returns:
            StorageOptions: ``fallback_key``, ``fallback_secret`` and, if present, ``fallback_token``. Other fields are
            in ``bucket_name`` and ``downloads``. Add further options like this:
            ``{**StorageOptions.from_file(path), "endpoint_url": ...}``.

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
        found = read_credential_file(path)
        options = cls({name: found.credentials[name] for name in FALLBACK_NAMES if name in found.credentials})
        options._bucket_name, options._downloads = found.bucket_name, found.downloads
        return options

    @property
    def bucket_name(self) -> str | None:
        """Bucket of the credential file. It is not part of the mapping."""
        return self._bucket_name

    @property
    def downloads(self) -> dict[str, str]:
        """URLs of the credential file, by ``train_index``, ``val_classes``, ...; not part of the mapping."""
        return dict(self._downloads)

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
