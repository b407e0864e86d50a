"""Credentials that are used only if botocore's own chain (environment, files, SSO, role) finds none.

They are the last provider of that chain, so every user of a session gets credentials in the right order, and a new
session searches the chain first.
"""

from __future__ import annotations

from typing import Any

from ...core.options import FALLBACK_NAMES, StorageOptions

METHOD = "fallback of storage_options"


class _Fallback:
    """A credential provider for botocore."""

    METHOD = METHOD
    CANONICAL_NAME = None

    def __init__(self, key: str, secret: str, token: str | None) -> None:
        self._key, self._secret, self._token = key, secret, token

    def load(self) -> Any:
        from botocore.credentials import Credentials

        return Credentials(self._key, self._secret, self._token, method=METHOD)


def append_fallback(session: Any, key: str, secret: str, token: str | None) -> None:
    """Let a botocore session use these credentials if it finds no others."""
    session.get_component("credential_provider").providers.append(_Fallback(key, secret, token))


def has_fallback(options: StorageOptions) -> bool:
    """Whether the options contain fallback credentials."""
    return any(options.get(name) is not None for name in FALLBACK_NAMES)


def without_fallback(options: StorageOptions) -> StorageOptions:
    """Return the options without fallback credentials, which are not passed to other stores than S3."""
    if not any(name in options for name in FALLBACK_NAMES):
        return options
    return StorageOptions({name: value for name, value in options.items() if name not in FALLBACK_NAMES})
