"""Endpoint, revision and token, from storage options or from where ``huggingface_hub`` looks for them."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from ...core.options import StorageOptions
from ...errors import AccessDeniedError, UrlError
from ..options import HUB_OPTIONS
from .repository import is_plain

LOGIN = "pass storage_options={'token': ...}, set HF_TOKEN, or run `hf auth login`"
_HUB = "https://huggingface.co"
_ENDPOINT = re.compile(r"(https?://[^/?#@\s]+)(/[^?#@\s]*)?", re.IGNORECASE)
_TOKEN = re.compile(r"[\x21-\x7e]+")
_TRUE = {"1", "ON", "YES", "TRUE"}


class HubSettings(NamedTuple):
    """Options for the Hub.

    Args:
        endpoint: URL of the Hub, without a slash at its end.
        token: a token, ``False`` for none, ``True`` to require one, ``None`` for the one that is found.
        revision: of URLs that name none.
        read_timeout_s: seconds without a byte after which a request fails.
    """

    endpoint: str
    token: str | bool | None
    revision: str | None
    read_timeout_s: float

    def __repr__(self) -> str:
        return f"HubSettings({self.endpoint})"


def hub_settings(options: StorageOptions, read_timeout_s: float) -> HubSettings | None:
    """Return the settings; ``None`` if an option is for ``huggingface_hub``'s filesystem only.

    Raises:
        UrlError: for a value of the wrong kind, or an endpoint that is no URL.
    """
    token, revision = options.get("token"), options.get("revision")
    endpoint = options.get("endpoint") or os.environ.get("HF_ENDPOINT") or _HUB
    for name, value, kinds in (("token", token, str | bool | None), ("revision", revision, str | None)):
        if not isinstance(value, kinds):
            raise UrlError(f"hf://: storage_options[{name!r}] must be a str, got {type(value).__name__}.")
    if not isinstance(endpoint, str) or not _ENDPOINT.fullmatch(endpoint):
        raise UrlError(
            "hf://: the endpoint (storage_options['endpoint'] or HF_ENDPOINT) must be a URL such as "
            "https://huggingface.co, without user or password."
        )
    if revision and not is_plain(revision):
        raise UrlError("hf://: storage_options['revision']: the name of a revision has no segment '.' or '..'.")
    if unknown := options.keys() - HUB_OPTIONS:
        if revision is not None:
            raise UrlError(
                f"hf://: the option 'revision' cannot be combined with {', '.join(sorted(unknown))}: write the "
                "revision into the URL, hf://datasets/OWNER/NAME@REVISION/PATH."
            )
        return None
    return HubSettings(endpoint.rstrip("/"), token, revision, read_timeout_s)


def find_token(token: str | bool | None) -> str | None:
    """Return the token to send, in ``huggingface_hub``'s order: the option, the environment, the file of a login.

    Raises:
        AccessDeniedError: if the option is ``True`` and there is none, or if it cannot be sent. Never shows it.
    """
    if token is False or (token is None and os.environ.get("HF_HUB_DISABLE_IMPLICIT_TOKEN", "").upper() in _TRUE):
        return None
    variable = os.environ.get("HF_TOKEN") or os.environ.get("HUGGING_FACE_HUB_TOKEN") or ""
    found = (token if isinstance(token, str) else variable.strip() or _token_of_login()).strip()
    if token is True and not found:
        raise AccessDeniedError(f"hf://: the option token=True needs a token, and there is none: {LOGIN}.")
    if found and not _TOKEN.fullmatch(found):
        raise AccessDeniedError("hf://: the token has characters that are invalid in a header.")
    return found or None


def _token_of_login() -> str:
    """Content of the file that ``hf auth login`` writes; empty if there is none."""
    caches = os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
    home = os.environ.get("HF_HOME") or os.path.join(caches, "huggingface")
    path = os.path.expandvars(os.path.expanduser(os.environ.get("HF_TOKEN_PATH") or os.path.join(home, "token")))
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise AccessDeniedError(
            f"hf://: the file of the token cannot be read: {type(error).__name__}: {path}."
        ) from None
