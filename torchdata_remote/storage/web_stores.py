"""Open the stores of http and of the Hugging Face Hub, which need urllib3: it is imported with the first one."""

from __future__ import annotations

import logging

from ..core.options import Backend, StorageOptions
from .obstore_choice import choose_obstore
from .protocol import Store

_log = logging.getLogger("torchdata_remote")
_SLOWER = "%s is read by fsspec, more slowly: an option of %r has no translation"


def http_store(
    scheme: str, host: str, options: StorageOptions, backend: Backend, read_timeout_s: float
) -> tuple[Store, str] | None:
    """Return the store of an http host, and which library reads it and why; ``None`` if fsspec has to read it."""
    from .http.headers import http_headers

    if backend is Backend.BOTOCORE:
        return None
    headers = http_headers(options)
    if headers is None:
        if backend is Backend.AUTOMATIC:
            _log.warning(_SLOWER, f"{scheme}://{host}", options)
        return None
    from .http_store import HttpStore

    by_obstore, reason = choose_obstore(scheme, host, backend, instead="urllib3")
    return HttpStore(scheme, host, read_timeout_s, read_by_obstore=by_obstore, headers=headers), reason


def hub_store(first: str, options: StorageOptions, read_timeout_s: float) -> tuple[Store, str] | None:
    """Return the store of repositories of the Hub, likewise."""
    from .hugging_face.settings import hub_settings

    settings = hub_settings(options, read_timeout_s)
    if settings is None:
        _log.warning(_SLOWER, f"hf://{first}", options)
        return None
    from .hugging_face.store import HubStore

    return HubStore(first, settings), "urllib3 (the transport for the Hub)"
