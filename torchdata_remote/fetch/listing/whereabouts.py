"""What is there instead of a missing object or folder: for errors, so every failure in here is left out."""

from __future__ import annotations

import os
from typing import Any

from ...core.arguments import did_you_mean
from ...core.urls import LOCAL, join_url, redact, split_url
from ...storage import broken_link

_MAX_SHOWN = 3


def about_missing(store: Any, url: str) -> str:
    """Name what a folder of this URL has; otherwise what the nearest folder above it has, and a similar name there."""
    try:
        return _around(store, url)
    except Exception:  # noqa: BLE001  # the error of what is missing is raised
        return ""


def _around(store: Any, url: str) -> str:
    scheme, bucket, path = split_url(url)
    path, name = path.rstrip("/"), ""
    if scheme in LOCAL and os.path.islink(path) and not os.path.exists(path):
        return f" It is {broken_link(path)}."
    while True:
        folder = f"{path}/" if path or scheme in LOCAL else ""
        shown = redact(folder if scheme in LOCAL else join_url(scheme, bucket, folder))
        if names := _names_in(store, scheme, folder):
            has = f"{', '.join(map(repr, names[:_MAX_SHOWN]))}{', ...' if len(names) > _MAX_SHOWN else ''}"
            if name or not path:
                near = did_you_mean(name, [one.rstrip("/") for one in names])
                return f" {shown} has {has}{near or '.'}"
            return f" {shown} is a folder that has {has}: list_remote() yields its objects, for readers."
        if scheme in LOCAL and os.path.isdir(folder):
            return f" {shown} is empty."
        if not path:
            return " memory:// is the memory of this process, and is empty." if scheme == "memory" else ""
        path, _, name = path.rpartition("/")


def _names_in(store: Any, scheme: str, folder: str) -> list[str]:
    """Return the names of the objects and folders in a folder, the latter with a slash, sorted."""
    if scheme in LOCAL:
        names = os.listdir(folder) if os.path.isdir(folder) else []
        return sorted(f"{name}/" if os.path.isdir(folder + name) else name for name in names)
    page = store.list_page(folder, recursive=False, token=None)
    found = [*page.folders, *(entry.path for entry in page.entries)]
    return sorted(path[len(folder) :] for path in found if path.startswith(folder) and path != folder)
