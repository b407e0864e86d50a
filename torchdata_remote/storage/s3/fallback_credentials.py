"""Credentials that are used only where botocore's own chain (variables, files, SSO, role) finds none.

They stand at the end of that chain, so whoever takes credentials from a session gets them in the right order, and a
session that is made anew looks at the chain first.
"""

from __future__ import annotations

from typing import Any

from ...core.options import FALLBACK_NAMES, StorageOptions

METHOD = "fallback of storage_options"


class _Fallback:
    """A credential provider of botocore."""

    METHOD = METHOD
    CANONICAL_NAME = None

    def __init__(self, key: str, secret: str, token: str | None) -> None:
        self._key, self._secret, self._token = key, secret, token

    def load(self) -> Any:
        from botocore.credentials import Credentials

        return Credentials(self._key, self._secret, self._token, method=METHOD)


def append_fallback(session: Any, key: str, secret: str, token: str | None) -> None:
    """Let a botocore session take these credentials if it finds no others."""
    session.get_component("credential_provider").providers.append(_Fallback(key, secret, token))


def has_fallback(options: StorageOptions) -> bool:
    """Whether there are such credentials."""
    return any(options.get(name) is not None for name in FALLBACK_NAMES)


def without_fallback(options: StorageOptions) -> StorageOptions:
    """The options for what is not s3: they are neither handed to a filesystem nor sent anywhere."""
    if not any(name in options for name in FALLBACK_NAMES):
        return options
    return StorageOptions({name: value for name, value in options.items() if name not in FALLBACK_NAMES})
