"""Translate storage options for Google Cloud Storage, in gcsfs's words."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...core.arguments import check
from ...core.options import StorageOptions
from ...errors import UrlError
from ..option_checks import is_server_url, option_flag

DEFAULT_ENDPOINT = "https://storage.googleapis.com"
# Words for token=
ANONYMOUS, DEFAULT, METADATA_SERVER, BROWSER, CACHE = "anon", "google_default", "cloud", "browser", "cache"
_EMULATOR_VARIABLE = "STORAGE_EMULATOR_HOST"
_ACCESS = ("read_only", "read_write", "full_control")
# gcsfs checks what it has written on demand; here each upload has an MD5, which the store checks.
_CONSISTENCY = ("none", "size", "md5", "crc32c")
# Options of gcsfs about what this package does not do: caching listings, creating buckets, saving tokens
_WITHOUT_EFFECT = {"cache_timeout", "check_connection", "default_location", "secure_serialize"}
# Options of gcsfs whose default is what this package does
_DEFAULTS = {"asynchronous": False, "version_aware": False}
_TRANSLATED = {"token", "project", "access", "endpoint_url", "requester_pays", "consistency"}
_UNTRANSLATED = {"block_size", "requests_timeout", "session_kwargs", "loop", "timeout"}
OPTIONS = frozenset(_TRANSLATED | _WITHOUT_EFFECT | _DEFAULTS.keys() | _UNTRANSLATED)  # of gcsfs
_PROJECT = re.compile(r"[\x21-\x7e]+")  # it is sent as a header


@dataclass(frozen=True, repr=False)
class GcsSettings:
    """The options that this package supports.

    Args:
        endpoint_url: of the XML API.
        token: as for gcsfs; ``None`` for the application default credentials.
        access: the scope that is asked for.
        project: of the user.
        requester_pays: whether ``project``, or else that of the credentials, pays for the requests.
        read_timeout_s: seconds without a byte after which a request fails.
    """

    endpoint_url: str = DEFAULT_ENDPOINT
    token: Any = None
    access: str = "read_write"
    project: str | None = None
    requester_pays: bool = False
    read_timeout_s: float = 30.0


def gcs_settings(options: StorageOptions, read_timeout_s: float) -> GcsSettings | None:
    """Translate storage options; ``None`` if one of them has no translation.

    Raises:
        UrlError: for a value that gcsfs would refuse, or that needs a person at a browser.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if any(given[name] != default for name, default in _DEFAULTS.items() if name in given):
        return None
    if given.keys() - _TRANSLATED - _WITHOUT_EFFECT - _DEFAULTS.keys() or given.get("token") == CACHE:
        return None
    _require_choice("access", given.get("access"), _ACCESS)
    _require_choice("consistency", given.get("consistency"), _CONSISTENCY)
    token, project = given.get("token"), given.get("project")
    _require_token(token)
    if project is not None and not isinstance(project, str):
        raise UrlError(f"storage_options['project'] must be a str, got {check.a_kind(project)}.")
    requester_pays = given.get("requester_pays", False)
    if isinstance(requester_pays, str):  # the project that pays
        project, requester_pays = requester_pays, True
    if project is not None and _PROJECT.fullmatch(project) is None:
        raise UrlError(f"storage_options name the project {project!r}, which has characters that no project has.")
    endpoint_url, is_emulator = _endpoint(given.get("endpoint_url"))
    if token is None and is_emulator:
        token = ANONYMOUS
    return GcsSettings(
        endpoint_url,
        token,
        given.get("access", "read_write"),
        project,
        option_flag("requester_pays", requester_pays),
        read_timeout_s,
    )


def _endpoint(endpoint_url: Any) -> tuple[str, bool]:
    """Return the address of the server, and whether the environment names it as an emulator."""
    shown, is_emulator = "storage_options['endpoint_url']", False
    if endpoint_url is None:
        endpoint_url = os.environ.get(_EMULATOR_VARIABLE, "")
        if endpoint_url in ("", "default"):
            return DEFAULT_ENDPOINT, False
        shown, is_emulator = f"The environment variable {_EMULATOR_VARIABLE}", True
        if "://" not in endpoint_url:
            endpoint_url = f"http://{endpoint_url}"
    if "@" in str(endpoint_url):
        raise UrlError(
            f"{shown} holds credentials (an @). They do not belong into an address, which logs and errors show. Pass "
            "them by storage_options={'token': ...}."
        )
    if not is_server_url(endpoint_url):
        raise UrlError(f"{shown} is {endpoint_url!r}; expected such as 'https://host:port', without a path.")
    return endpoint_url.rstrip("/"), is_emulator


def _require_choice(name: str, value: Any, known: tuple[str, ...]) -> None:
    if value is not None and value not in known:
        choices = ", ".join(map(repr, known))
        raise UrlError(f"storage_options[{name!r}] is {value!r}; expected one of {choices}.")


def _require_token(token: Any) -> None:
    if token == BROWSER:
        raise UrlError(
            "storage_options['token'] is 'browser', which needs a person at each start. Log in once by `gcloud auth "
            "application-default login`, and leave the option out."
        )
    if isinstance(token, str) and token.lstrip().startswith("{"):
        raise UrlError(
            "storage_options['token'] is the text of a JSON file. Pass the path of the file, or json.loads(text)."
        )
    if isinstance(token, str) and not token.strip():
        raise UrlError("storage_options['token'] is empty. Leave it out for the application default credentials.")
    if token is None or isinstance(token, str | os.PathLike | Mapping) or hasattr(token, "refresh"):
        return
    raise UrlError(
        "storage_options['token'] must be 'google_default', 'cloud', 'anon', a path of a JSON file, its content as a "
        f"dict, an access token, or credentials of google.auth; got {check.a_kind(token)}."
    )
