"""List, look up, read and write objects of any store as a user does."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import traceback
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import pytest

import torchdata_remote as tdr
from torchdata_remote.cli import main

ONCE = tdr.RetryPolicy(max_attempts=1)
QUICK = tdr.RetryPolicy(max_attempts=4, first_wait_s=0)
PATIENT = tdr.RetryPolicy(first_wait_s=0.005, max_wait_s=0.05)
Options = Mapping[str, Any] | None


def listed(source: str, options: Options = None, *, retry: tdr.RetryPolicy = ONCE, **more: Any) -> list[tdr.RemoteUrl]:
    """The objects of a source."""
    return list(tdr.IterableWrapper([source]).list_remote(storage_options=options, retry=retry, **more))


def found(url: str, options: Options = None, *, retry: tdr.RetryPolicy = ONCE) -> tdr.RemoteUrl:
    """The object that a URL names, with its size and etag: as listed, or looked up by ``ls`` on a web server."""
    if not url.startswith("http"):
        [one] = listed(f"{tdr.escape_url(url[:-1])}[{url[-1]}]", options, retry=retry)
        return one
    output, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(error):
        status = main(["ls", tdr.escape_url(url), "--json", "--storage-options", json.dumps(dict(options or {}))])
    if status:
        kind = tdr.errors.EmptyListingError if "no such object" in error.getvalue() else tdr.errors.StorageError
        raise kind(error.getvalue())
    shown = json.loads(output.getvalue())
    return tdr.RemoteUrl(url, shown["num_bytes"], shown["etag"])


def read(url: str, options: Options = None, *, retry: tdr.RetryPolicy = ONCE, **more: Any) -> bytes:
    """The bytes of an object, by ``async_prefetch``."""
    streams = tdr.IterableWrapper([url]).async_prefetch(storage_options=options, retry=retry, **more)
    [(_, stream)] = streams
    with closing(stream):
        data: bytes = stream.read()
    return data


def write(folder: str, options: Options = None, *, num_bytes: int = 10, overwrite: bool = False) -> None:
    """Write a folder of one shard ``0.tar`` with one sample."""
    with tdr.ShardWriter(f"{folder}{{shard}}.tar", overwrite=overwrite, storage_options=options) as writer:
        writer.write({"__key__": "a", "bin": bytes(num_bytes)})


def text_of(error: BaseException) -> str:
    """All that a user might see of an error: its text, its attributes, its traceback and the texts of its causes."""
    text = "".join(traceback.format_exception(error))
    links: list[BaseException] = [error]
    for link in links:
        text += f"{link} {(link, vars(link)) if isinstance(link, tdr.errors.RemoteDataError) else ''}"
        context = None if link.__suppress_context__ else link.__context__
        links += [one for one in (link.__cause__, context) if one is not None and one not in links]
    return text


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The package's messages for users."""
    found = [one for one in caplog.records if one.levelno >= logging.WARNING and one.name == "torchdata_remote"]
    return [one.getMessage() for one in found]
