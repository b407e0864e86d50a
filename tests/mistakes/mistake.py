"""How a mistake is made, and what it leads to."""

from __future__ import annotations

import contextlib
import importlib
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
from typing import Any

import fsspec
import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader

import torchdata_remote as tdr
from torchdata_remote.cli import main
from torchdata_remote.testing import write_small_shards

ROOT = "memory://mistakes/"
SHARDS = f"{ROOT}shards/"
_numbers = itertools.count()
_sockets: list[socket.socket] = []


class CommandLineError(Exception):
    """A command ended with another status than 0; the message is what it wrote to standard error."""


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
        status = main(arguments)
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


def address(*, listens: bool) -> str:
    """Return that of a port of our own: it refuses connections, or accepts them and never answers."""
    _sockets.append(socket.socket())
    _sockets[-1].bind(("127.0.0.1", 0))
    if listens:
        _sockets[-1].listen()
    return f"http://127.0.0.1:{_sockets[-1].getsockname()[1]}"


def patient(endpoint_url: str, **retry: float) -> Any:
    """Return a listing of a bucket by a policy of retries."""
    options = {"endpoint_url": endpoint_url, "key": "a", "secret": "b"}
    urls = tdr.IterableWrapper([f"s3://mistakes-{next(_numbers)}/"])
    return urls.list_remote(retry=tdr.RetryPolicy(**retry), storage_options=options)  # type: ignore[arg-type]


def outcome_of(code: str, folder: Path) -> tuple[str | None, str]:
    """Run the code of a mistake, of which the last line is an expression; a warning counts as an error."""
    names = _names(folder)
    *statements, last = code.splitlines()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", "Lambda function is not supported by pickle")  # of torch
            exec("\n".join(statements), names)
            return None, repr(eval(last, names))
    except Exception as error:  # all of them are outcomes
        # torch appends the name of the pipe
        return type(error).__name__, str(error).partition("\nThis exception is thrown by")[0]
    finally:
        while _sockets:
            _sockets.pop().close()


def matches(text: str, expected: str) -> bool:
    """Whether a text is the expected one, in which ``...`` stands for anything."""
    return re.fullmatch(".*".join(map(re.escape, expected.split("..."))), text, re.DOTALL) is not None


def _names(folder: Path) -> dict[str, Any]:
    sample = {"__key__": "cat/1", "__url__": "s3://photos/0.tar", "txt": b"miaow"}
    return {
        "DataLoader": DataLoader,
        "IterableWrapper": tdr.IterableWrapper,
        "Path": Path,
        "files": f"{ROOT}files/",
        "flat": f"{ROOT}flat/",
        "folder": folder,
        "fsspec": fsspec,
        "islice": itertools.islice,
        "logged": logged,
        "new": f"{ROOT}new-{next(_numbers)}/{{shard:03d}}.tar",
        "np": np,
        "patient": patient,
        "pictures": f"{ROOT}pictures/",
        "polars": lambda: importlib.import_module("polars"),  # in the extra test-all
        "refusing": partial(address, listens=False),
        "run": command_line,
        "run_script": partial(run_script, folder),
        "sample": sample,
        "samples": tdr.IterableWrapper([sample]),
        "shards": SHARDS,
        "silent": partial(address, listens=True),
        "tdr": tdr,
        "torch": torch,
        "urls": tdr.IterableWrapper([f"{SHARDS}{number:06d}.tar" for number in range(2)]),
    }
