"""A mistake, what it is run with, and how its outcome is compared."""

from __future__ import annotations

import contextlib
import io
import itertools
import logging.handlers
import re
import runpy
import socket
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import fsspec
import numpy as np
import polars as pl
import torch
from PIL import Image
from torch.utils.data import DataLoader

import torchdata_remote as tdr
from torchdata_remote.cli import main
from torchdata_remote.testing import write_small_shards

SHARDS, PICTURES, FILES, FLAT = (f"memory://mistakes/{name}/" for name in ("shards", "pictures", "files", "flat"))
_numbers = itertools.count()
_silent: list[socket.socket] = []


class Mistake(NamedTuple):
    """A row of the tables.

    Args:
        what: was done wrong.
        code: that does it.
        error: the class of error or warning; ``None`` if the code does what was meant.
        text: the message, or the result's ``repr``; ``...`` stands for anything.
    """

    what: str
    code: str
    error: type[BaseException] | None
    text: str


class CommandLineError(Exception):
    """A command ended with another status than 0; the message is what it wrote to standard error."""


class Outcome(NamedTuple):
    """What a mistake led to."""

    error: type[BaseException] | None
    text: str


def write_datasets() -> None:
    """Write the datasets that the mistakes are made with, into the memory of this process."""
    write_small_shards(SHARDS, num_shards=2, samples_per_shard=3)
    picture = io.BytesIO()
    Image.new("RGB", (4, 4)).save(picture, "PNG")
    files = fsspec.filesystem("memory")
    files.pipe({f"/mistakes/pictures/{name}/{i}.png": picture.getvalue() for name in ("cat", "dog") for i in range(2)})
    files.pipe({f"/mistakes/files/{i}.txt": b"text" for i in range(3)})
    files.pipe({f"/mistakes/flat/{i}.png": b"no picture" for i in range(2)})


def command_line(*arguments: str) -> str:
    """Run ``torchdata-remote``, and return what it printed."""
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            status = main(arguments)
        except SystemExit as exit_:
            status = int(exit_.code or 0)
    if status:
        raise CommandLineError(errors.getvalue().strip())
    return output.getvalue()


def run_script(folder: Path, code: str) -> None:
    """Run a script as Python does."""
    path = folder / "train.py"
    path.write_text(code)
    runpy.run_path(str(path), run_name="__main__")


def logged(function: Callable[[], object]) -> list[str]:
    """Call a function that ends with an error; return the warnings of our logger meanwhile."""
    handler = logging.handlers.BufferingHandler(1_000)
    log = logging.getLogger("torchdata_remote")
    log.addHandler(handler)
    try:
        with contextlib.suppress(tdr.errors.StorageError):
            function()
    finally:
        log.removeHandler(handler)
    return [record.getMessage() for record in handler.buffer]


def refusing() -> str:
    """Return the address of a port at which nothing listens."""
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
        return f"http://127.0.0.1:{server.getsockname()[1]}"


def silent() -> str:
    """Return the address of a store that accepts connections and never answers, until the mistake is made."""
    _silent.append(socket.create_server(("127.0.0.1", 0)))
    return f"http://127.0.0.1:{_silent[-1].getsockname()[1]}"


def patient(endpoint_url: str, **retry: float) -> Any:
    """Return a listing of a bucket by a policy of retries."""
    options = {"endpoint_url": endpoint_url, "key": "a", "secret": "b"}
    urls = tdr.IterableWrapper([f"s3://mistakes-{next(_numbers)}/"])
    return urls.list_remote(retry=tdr.RetryPolicy(**retry), storage_options=options)  # type: ignore[arg-type]


def outcome_of(code: str, folder: Path) -> Outcome:
    """Run the code of a mistake; a warning counts as an error.

    Args:
        code: statements; the value of the last one is the result.
        folder: an empty one.
    """
    names = _names(folder)
    *statements, last = code.splitlines()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", "Lambda function is not supported by pickle")  # of torch
            exec("\n".join(statements), names)
            result = eval(last, names)
    except Exception as error:  # all of them are outcomes
        # torch appends the name of the pipe
        return Outcome(type(error), str(error).partition("\nThis exception is thrown by")[0])
    finally:
        while _silent:
            _silent.pop().close()
    return Outcome(None, repr(result))


def matches(text: str, expected: str) -> bool:
    """Whether a text is the expected one, in which ``...`` stands for anything."""
    return re.fullmatch(".*".join(map(re.escape, expected.split("..."))), text, re.DOTALL) is not None


def _names(folder: Path) -> dict[str, Any]:
    return {
        "DataLoader": DataLoader,
        "IterableWrapper": tdr.IterableWrapper,
        "Path": Path,
        "folder": folder,
        "fsspec": fsspec,
        "islice": itertools.islice,
        "new": f"memory://mistakes/new-{next(_numbers)}/{{shard:03d}}.tar",
        "np": np,
        "logged": logged,
        "patient": patient,
        "refusing": refusing,
        "run": command_line,
        "run_script": partial(run_script, folder),
        "sample": {"__key__": "cat/1", "__url__": "s3://photos/0.tar", "txt": b"miaow"},
        "samples": tdr.IterableWrapper([{"__key__": "cat/1", "__url__": "s3://photos/0.tar", "txt": b"miaow"}]),
        "shards": SHARDS,
        "silent": silent,
        "pictures": PICTURES,
        "pl": pl,
        "files": FILES,
        "flat": FLAT,
        "tdr": tdr,
        "torch": torch,
        "urls": tdr.IterableWrapper([f"{SHARDS}{number:06d}.tar" for number in range(2)]),
    }
