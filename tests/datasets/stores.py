"""What tests of the map-style datasets share: a store whose answers they time, and datasets to compare with."""

from __future__ import annotations

import random
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from xml.sax.saxutils import escape

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset

from tests.servers.scripted import Request, Response, Scripted, scripted
from tests.support.shard_places import Place
from torchdata_remote import RemoteImageFolder, RetryPolicy
from torchdata_remote.testing import Faults

AT_ONCE = RetryPolicy(max_attempts=2, first_wait_s=0, max_wait_s=0)
PATIENT = RetryPolicy(first_wait_s=0, max_wait_s=0)
DEADLINE_S = 60.0


class Together:
    """Answers nothing until so many keys have been asked for; refuses if they are not.

    Args:
        num_keys: that are waited for.
        ending: of those keys that it concerns.
    """

    def __init__(self, num_keys: int, ending: str = "") -> None:
        self._num_keys, self._ending = num_keys, ending
        self._keys: set[str] = set()
        self._come = threading.Event()

    def __call__(self, key: str) -> Response | None:
        if not key.endswith(self._ending):
            return None
        self._keys.add(key)
        if len(self._keys) >= self._num_keys:
            self._come.set()
        return None if self._come.wait(DEADLINE_S) else Response.of_error(403, "AccessDenied")


class TimedStore:
    """A bucket ``s3://timed/`` whose GETs a test holds back: ``before_answer`` is called with each key.

    Args:
        server: that answers.
    """

    url = "s3://timed/"

    def __init__(self, server: Scripted) -> None:
        self.options = {"endpoint_url": server.url, "key": "any", "secret": "canary-5f1c", "region": "us-east-1"}
        self.asked: list[str] = []  # keys, as their requests arrived


@contextmanager
def timed_store(
    objects: Mapping[str, bytes], before_answer: Callable[[str], Response | None] = lambda key: None
) -> Iterator[TimedStore]:
    """Objects by key; what ``before_answer`` returns is answered instead."""
    asked: list[str] = []

    def respond(request: Request) -> Response:
        path, _, query = request.target.partition("?")
        if "list-type=2" in query:
            return Response(200, _listing(objects))
        key = unquote(path).removeprefix("/timed/")
        asked.append(key)
        return before_answer(key) or Response.of_object(request, objects[key], f'"{key}"')

    with scripted(respond) as server:
        store = TimedStore(server)
        store.asked = asked
        yield store


def _listing(objects: Mapping[str, bytes]) -> bytes:
    found = "".join(
        f"<Contents><Key>{escape(key)}</Key><Size>{len(data)}</Size><ETag>&quot;{escape(key)}&quot;</ETag>"
        "<LastModified>2026-11-21T00:00:00.000Z</LastModified></Contents>"
        for key, data in sorted(objects.items())
    )
    return f"<ListBucketResult><Name>timed</Name><IsTruncated>false</IsTruncated>{found}</ListBucketResult>".encode()


class Plain(Dataset[Any]):
    """The same items one after the other, without ``__getitems__``.

    Args:
        items: of the dataset that is compared.
        transform: called with each item that is asked for.
    """

    def __init__(self, items: Sequence[Any], transform: Callable[[Any], Any] | None = None) -> None:
        self.items, self.transform = items, transform

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index] if self.transform is None else self.transform(self.items[index])


def only(fault: str) -> Faults:
    """Each answer has this fault."""
    certain: dict[str, Any] = {fault: 1.0}
    return Faults(**certain)


def until_error(loader: Iterable[Any], kind: type[BaseException]) -> tuple[list[Any], BaseException]:
    """The batches that come before an error, and the error, without its frames.

    They keep torch's iterator in a cycle, whose workers then wait 5 s each to be ended, and are copied by those forked
    meanwhile.
    """
    found: list[Any] = []
    batches = iter(loader)
    try:
        for batch in batches:
            found.append(batch)
    except kind as error:
        traceback.clear_frames(error.__traceback__)
        return found, error.with_traceback(None)
    raise AssertionError(f"no {kind.__name__}: {found}")


def pixels(image: Image.Image) -> tuple[str, bytes]:
    """A transform whose results can be compared, and that spawned workers find."""
    return image.mode, image.tobytes()


def draw(sample: dict[str, Any]) -> dict[str, Any]:
    """With random numbers from all generators, as random transforms make them."""
    drawn = [torch.rand(1).item(), random.random(), np.random.rand()]
    return {
        "key": sample["__key__"],
        "first": sample["bin"][0],
        "drawn": torch.tensor(drawn, dtype=torch.float64),
    }


class Measured(RemoteImageFolder):
    """Items are their labels, and the memory that the process has for itself."""

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        lines = Path("/proc/self/status").read_text().splitlines()
        return [(self.samples[index], next(line for line in lines if line.startswith("RssAnon"))) for index in indices]


def root_of(place: Place) -> str:
    """The URL that datasets show."""
    return place.url if "://" in place.url else f"file://{place.url}"


def as_they_are(items: list[Any]) -> list[Any]:
    """A batch that nothing is made of. A function that spawned workers find."""
    return items
