"""Choose how a URL is downloaded: an object by its parts, or a view of shards by its windows."""

from __future__ import annotations

from ..core.options import StorageOptions
from ..core.shard_view import is_view
from .download import Download
from .object_download import ObjectDownload
from .session import ActiveSession
from .view_download import ViewDownload


def opened(url: str, options: StorageOptions, session: ActiveSession, start: int, stop: int | None) -> Download:
    """Return the download of bytes ``start`` to ``stop`` (exclusive) of an object or a view; no request is sent."""
    if is_view(url):
        return ViewDownload(url, options, session, start, stop)
    return ObjectDownload(url, options, session.connection, session.cache, start=start, stop=stop)
