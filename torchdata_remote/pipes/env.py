"""What passes depend on beside their pipes: the share of the data, the epoch, and what streams have in common.

A pipe says what is read, and reading does not change it. ``env.open(pipe)`` makes a pass over it, any number of them
at once.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..core.iter_datapipe import IterDataPipe
from ..core.options import FetchOptions, StorageOptions
from ..core.partition import EqualizeMode
from ..errors import EmptyShareError, SampleError
from ..fetch.session import FetchSession
from ..formats.error_policy import Skipped
from .chain import all_pipes
from .other_pipes import opened
from .passes import ListPass, Pass
from .shares import Path, Share, seeds_of

if TYPE_CHECKING:
    from ..core.batch_memory import BatchRows

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

latest_skipped: weakref.WeakKeyDictionary[Any, Skipped] = weakref.WeakKeyDictionary()
"""What each pipe has left out in its latest pass in this process."""


class Shared:
    """What the passes of a process over one chain have in common: one for each epoch of a loader, or direct pass.

    Args:
        pipes: of the chain, sources first.
        listed: those whose items are made once for all streams -> whether they depend on the epoch.
        num_streams: that this process reads at the same time.
        num_threads: for pipes that were given no number; 0 for none.
        rows: where tensors of batches are written; ``None`` for memory of their own.
        is_saved: whether positions may be asked for.
    """

    def __init__(
        self,
        pipes: Sequence[IterDataPipe[Any]],
        listed: Sequence[tuple[IterDataPipe[Any], bool]] = (),
        *,
        num_streams: int = 1,
        num_threads: int = 0,
        rows: BatchRows | None = None,
        is_saved: bool = False,
    ) -> None:
        self.pipes = pipes  # whose ids are used here
        self.numbers = {id(pipe): number for number, pipe in enumerate(pipes)}
        self.listed = {id(pipe): by_epoch for pipe, by_epoch in listed}
        self.num_streams, self.num_threads, self.rows, self.is_saved = num_streams, num_threads, rows, is_saved
        self.left_out: dict[int, Skipped] = {}
        self._sessions: dict[int, FetchSession] = {}
        self._made: dict[Any, dict[Path, Any]] = {}

    def session(self, pipe: Any, options: FetchOptions, storage_options: StorageOptions) -> FetchSession:
        """The session of a pipe: its streams share connections, threads and the memory budget."""
        found = self._sessions.get(id(pipe))
        if found is None:
            found = self._sessions[id(pipe)] = FetchSession(options, storage_options, self.num_streams)
        return found

    def skipped(self, pipe: Any) -> Skipped:
        """What the streams of this process leave out in a pipe."""
        if id(pipe) not in self.left_out:
            latest_skipped[pipe] = self.left_out[id(pipe)] = Skipped()
        return self.left_out[id(pipe)]

    def once(self, what: object, path: Path, make: Callable[[], T]) -> T:
        """Make something once for all streams; those of the two latest passes are kept, where streams usually are."""
        made = self._made.setdefault(what, {})
        if path not in made:
            made[path] = make()
            for other in list(made)[:-2]:
                del made[other]
        found: T = made[path]
        return found


class Marks:
    """What the pipes of a stream have taken when its latest item was handed out.

    Args:
        resumed: number of a pipe -> pass and mark of the state from which the stream resumes.
    """

    def __init__(self, resumed: Mapping[int, tuple[Path, Any]] | None = None) -> None:
        self.resumed = dict(resumed or {})
        self.passes: dict[int, tuple[Path, Pass[Any]]] = {}
        """Number of a pipe -> its latest pass and where that is."""
        self.of_items: dict[int, dict[int, tuple[Path, Any]]] = {}
        """Number of a pipe that takes items ahead -> the marks of pipes above it, for the item that it handed out."""

    def now(self, ahead: Ahead | None = None) -> dict[int, tuple[Path, Any]]:
        """Number of a pipe -> pass and mark; of all pipes, or of those above one that takes an item."""
        passes, resumed, of_items = self.passes, self.resumed, self.of_items
        if ahead is not None:
            above = ahead.above
            passes = {number: at for number, at in passes.items() if number in above}
            # A source of a mixture that was not drawn since is where it was
            resumed = {number: at for number, at in resumed.items() if number in above}
            of_items = {number: marks for number, marks in of_items.items() if number < ahead.number}
        found = {number: (path, pass_.mark) for number, (path, pass_) in passes.items()}
        if resumed:
            found = {**resumed, **found}
        for _, marks in sorted(of_items.items()) if len(of_items) > 1 else of_items.items():
            found.update((number, mark) for number, mark in marks.items() if number in passes)
        return found


class Ahead:
    """Keeps the marks of a pipe that takes items ahead.

    Args:
        pipe: with one source.
        env: of the pass.
    """

    def __init__(self, pipe: Any, env: Env) -> None:
        self._marks, self._is_saved, self.number = env.marks, env.shared.is_saved, env.number_of(pipe)
        self.above = frozenset(map(env.number_of, all_pipes(pipe.source_datapipe))) if self._is_saved else frozenset()

    def taken(self) -> Any:
        """Return the marks above the pipe, after it has taken an item."""
        return self._marks.now(self) if self._is_saved else None

    def handed_out(self, taken: Any) -> None:
        """Note the marks of an item that the pipe hands out."""
        if taken is not None:
            self._marks.of_items[self.number] = taken


class Described(Generic[T_co]):
    """Base of what can be opened as a pass."""

    def open(self, env: Env) -> Pass[T_co]:
        """Make a pass: one reading. ``env.open(self.source_datapipe)`` makes that of the source."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Env:
    """What a pass depends on beside its pipe.

    Args:
        shared: with the other streams of this process.
        share: of the data; ``None`` for that of this process, which the pipe that splits detects.
        epoch: from 0, and the number of the pass of each pipe around this one that reads its source several times.
        says_pass: whether samples say in which of these passes they are read, for pipes behind that draw.
        by_jumps: whether a reader passes over most of each object.
        is_shuffled: whether samples are shuffled after they are read.
        by_samples: whether shares divide indexed shards by samples.
        equalize: how shares get equal numbers of samples; ``None`` if they need not.
        marks: of the stream.
    """

    shared: Shared
    share: Share | None = None
    epoch: Path = (0,)
    says_pass: bool = False
    by_jumps: bool = False
    is_shuffled: bool = False
    by_samples: bool = False
    equalize: EqualizeMode | None = None
    marks: Marks = field(default_factory=Marks)

    def open(self, pipe: IterDataPipe[T]) -> Pass[T]:
        """Make a pass over a pipe, of this package or of another one."""
        return ListPass(self.whole(pipe)) if id(pipe) in self.shared.listed else self._opened(pipe)

    def within(self, number: int) -> Env:
        """The environment of a source that is read several times in this pass."""
        return replace(self, epoch=(*self.epoch, number))

    def require_items(self, what: str) -> None:
        """Refuse to repeat a source whose pass had no items, unless other parts of its stream may have had them.

        Args:
            what: is repeated, for the error.

        Raises:
            EmptyShareError: if the stream was divided among more readers than it has items.
            SampleError: otherwise.
        """
        cuts = () if self.share is None else self.share.cuts
        if any(path >= self.epoch for cut in cuts for path, _ in cut.marks.values()):
            return
        if cuts:
            raise EmptyShareError(
                f"{what}: a stream of the state has fewer items than the readers that now share it. Resume with fewer "
                "readers, or begin the next epoch by set_epoch()."
            )
        raise SampleError(f"{what}: a pass over the source has no items, and so would all the next ones.")

    @property
    def seeds(self) -> Path:
        """What the order of this pass depends on: the first pass within an epoch has the order of the epoch."""
        return seeds_of(self.epoch)

    def number_of(self, pipe: object) -> int:
        """The number of a pipe in its chain; -1 for one that the chain does not show."""
        return self.shared.numbers.get(id(pipe), -1)

    def mark(self, pipe: object, pass_: Pass[Any]) -> None:
        """Let the marks of the stream contain that of a pass."""
        self.marks.passes[self.number_of(pipe)] = self.epoch, pass_

    def whole(self, pipe: IterDataPipe[T]) -> Sequence[T]:
        """All items of a pipe: of a listing once for all streams, and once an epoch if they depend on it."""
        by_epoch = self.shared.listed.get(id(pipe))
        if by_epoch is None:
            return list(self.open(pipe))
        return self.shared.once(id(pipe), self.epoch if by_epoch else (), lambda: list(self._opened(pipe)))

    def _opened(self, pipe: Any) -> Pass[Any]:
        return pipe.open(self) if isinstance(pipe, Described) else opened(pipe, self)
