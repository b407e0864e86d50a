"""Random numbers for the samples of a pass: they depend on the sample, not on where and when it is read."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from hashlib import blake2b
from typing import Any, TypeVar

import numpy as np

from ..core.iter_datapipe import IterableWrapper, IterDataPipe
from ..core.urls import join_url, redact, split_url, split_version
from ..fetch.listing.patterns import folders_of
from ..formats.sample import URL, require_key
from .chain import all_pipes, functional_name
from .shares import Path, seeds_of

T = TypeVar("T")


class Draws:
    """Makes a random generator for each sample of a pass.

    It is made of the seed, the epoch, the sample's key, and the path of its shard below the folder that the source URLs
    of the chain have in common, without the query; and of the pipe, so that two pipes with one seed draw other numbers.
    So a sample gets equal numbers in every world, process and order,
    after a resume, and in a copy of the folder. Each pass of ``repeat_epochs`` and ``mix`` over a source is an epoch.

    Args:
        pipe: that draws.
        seed: any int.
        epoch: of the pass.
    """

    def __init__(self, pipe: IterDataPipe[Any], seed: int, epoch: Path) -> None:
        pipes: list[Any] = all_pipes(pipe)
        self._of, self._epoch = functional_name(type(pipe)), epoch
        self._seed = f"{seed}\0{self._of}{sum(type(found) is type(pipe) for found in pipes)}"
        self._folders = [folder for found in pipes for folder in _folders(found)]
        # Keys of loose files and of tables are paths in their bucket, which are others in a copy of their folder
        self._keys_are_paths = any(getattr(type(found), "keys_are_paths", False) for found in pipes)

    def of(self, sample: Any) -> np.random.Generator:
        """Return a new generator.

        Raises:
            SampleError: if the item is not a sample with a key.
        """
        key, url = require_key(sample, of=self._of), sample.get(URL, "")
        epoch = "/".join(map(str, seeds_of((*self._epoch, *getattr(url, "passes", ())))))
        whole = url if "://" in url else f"file://{os.path.abspath(url)}"
        folder = max(filter(whole.startswith, self._folders), key=len, default="")
        path = split_version(whole[len(folder) :])[0]
        if self._keys_are_paths and folder:
            key = str(key).removeprefix(split_url(folder)[2].lstrip("/"))
        text = f"{self._seed}\0{epoch}\0{key}\0{path}".encode("utf-8", "surrogatepass")
        return np.random.default_rng(int.from_bytes(blake2b(text, digest_size=16).digest(), "little"))

    def given_to(self, function: Callable[[Any, np.random.Generator], T]) -> Callable[[Any], T]:
        """Return a function that calls one with an item and its generator."""
        return lambda item: function(item, self.of(item))


class _UrlOfPass(str):
    """The URL of a sample that is read in a repeated pass: the only part of it that its pipes hand on."""

    __slots__ = ("passes",)
    passes: Path


def of_pass(item: Any, number: int) -> Any:
    """Return a sample with the number of its pass, so that pipes behind it draw other random numbers in each pass.

    Args:
        item: of the source of a pipe that reads it several times.
        number: of the pass.
    """
    if not isinstance(item, dict) or URL not in item:
        return item
    url = _UrlOfPass(item[URL])
    url.passes = (number, *getattr(item[URL], "passes", ()))
    return {**item, URL: url}


def _folders(pipe: IterDataPipe[Any]) -> Iterator[str]:
    """Yield the folder that the URLs of a chain's first pipe have in common, if it is a list."""
    urls = pipe.iterable if isinstance(pipe, IterableWrapper) else None
    if isinstance(urls, Collection) and urls and isinstance(next(iter(urls)), str | os.PathLike):
        # Other items are no URLs
        with suppress(TypeError, ValueError):
            ends = [redact(join_url(*split_url(os.fspath(end)))) for end in (min(urls), max(urls))]
            # By characters: the rest of a name is cut off there
            yield from folders_of(os.path.commonprefix(ends))  # noqa: RUF071
