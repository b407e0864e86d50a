"""Lives of datasets: from its creation to its removal, files are created in one, and in no later one."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future

from ....storage import ObjectWriter
from ..problems import Problem


class Life:
    """One life of a dataset. Files are created and published within :meth:`used`, which excludes its removal."""

    def __init__(self) -> None:
        self._guard = threading.RLock()
        self._num_users = 0
        self._unused: Future[None] | None = None  # set while it is being removed, and afterwards
        self.watchers: list[Callable[[str], None]] = []  # called with the path of each file that a client changes

    @property
    def is_over(self) -> bool:
        """Whether the dataset is being removed, or was."""
        return self._unused is not None

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Keep the dataset from being removed, for the moment in which a file is created or published.

        Raises:
            Problem: 404, if it was removed. Nothing waits here.
        """
        with self._guard:
            if self._unused is not None:
                raise Problem(404, "The dataset was removed during the request.")
            self._num_users += 1
        try:
            yield
        finally:
            self._leave()

    def _leave(self) -> None:
        with self._guard:
            self._num_users -= 1
            if self._unused is not None and not self._num_users:
                self._unused.set_result(None)

    @contextlib.contextmanager
    def ended(self) -> Iterator[None]:
        """Remove the dataset in this block. It begins when the dataset is not used; if it fails, the life continues.

        Raises:
            Problem: 404, if it was removed.
        """
        with self._guard:
            if self._unused is not None:
                raise Problem(404, "The dataset was removed during the request.")
            unused: Future[None] = Future()
            self._unused = unused
            if not self._num_users:
                unused.set_result(None)
        try:
            unused.result()
            yield
        except BaseException:
            self._unused = None
            raise

    def changed(self, path: str, *, by: Callable[[str], None] | None = None) -> None:
        """Report that a client has written or removed a file; to be called with its lock held.

        Args:
            path: below the folder.
            by: the watcher that is not called, since what it watches for has changed the file.
        """
        for watch in list(self.watchers):
            if watch != by:
                watch(path)


class LiveFolder(str):
    """Path of a dataset's folder, or of one for temporary files that belong to the dataset, in one life of it."""

    __slots__ = ("life",)
    life: Life

    def __new__(cls, path: str, life: Life) -> LiveFolder:
        made = super().__new__(cls, path)
        made.life = life
        return made


class LiveWriter:
    """Writes a file of a dataset, and publishes it only in the life in which it was created."""

    def __init__(self, writer: ObjectWriter, life: Life) -> None:
        self.writer, self._life = writer, life
        self.write, self.abort = writer.write, writer.abort

    def commit(self) -> None:
        """Publish the file.

        Raises:
            Problem: 404, if the dataset was removed.
        """
        with self._life.used():
            self.writer.commit()


class Lifetimes:
    """The present lives of datasets. Those that no request uses are forgotten."""

    def __init__(self) -> None:
        self._lives: weakref.WeakValueDictionary[str, Life] = weakref.WeakValueDictionary()
        self._guard = threading.RLock()

    def current(self, folder: str) -> Life:
        """Return the life of the dataset in a folder, whether it exists or not."""
        with self._guard:
            life = self._lives.get(folder)
            if life is None:
                life = self._lives[folder] = Life()
            return life

    @contextlib.contextmanager
    def ended(self, folder: LiveFolder) -> Iterator[None]:
        """Remove a dataset in this block; afterwards another one of its name may begin its life.

        Raises:
            Problem: 404, if it was removed.
        """
        with folder.life.ended():
            yield
        with self._guard:
            if self._lives.get(folder) is folder.life:
                del self._lives[folder]
