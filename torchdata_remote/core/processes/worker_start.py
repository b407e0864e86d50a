"""Check what is sent to worker processes, before they start."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import io
import itertools
import sys
from collections.abc import Iterable, Iterator, Mapping
from multiprocessing.context import get_spawning_popen
from multiprocessing.reduction import ForkingPickler
from types import FrameType, FunctionType, MethodType
from typing import Any, NoReturn

from ...errors import RemoteDataError, WorkerStartError
from ..iter_datapipe import IterDataPipe
from ..shared_names import SHARED
from .main_guard import require_main_guard
from .parent_watch import end_starting_worker_with_trainer

_MAX_DEPTH, _MAX_PARTS = 4, 1_000


class SentToWorkers:
    """Base of objects that DataLoader sends to its workers.

    What cannot be sent, or would fail there, is an error in the process that starts them. A worker ends with its
    trainer, even if it gets no task.
    """

    def __reduce_ex__(self, protocol: Any) -> Any:
        reduced = super().__reduce_ex__(protocol)
        state = reduced[2] if len(reduced) > 2 else None
        if IterDataPipe.getstate_hook is not None and isinstance(state, dict):
            # torch looks for the sources of a pipe by pickling all of its collections, also without workers
            return *reduced[:2], {name: value for name, value in state.items() if _holds_pipes(value)}, *reduced[3:]
        if get_spawning_popen() is not None:  # this is being sent to a new process
            require_main_guard()
            # With dill, DataLoader sends pipes with local functions
            if isinstance(state, dict) and not (isinstance(self, IterDataPipe) and _has_dill()):
                refuse_local_functions(self, state)
            _refuse_functions_of_loader()
        return reduced

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        end_starting_worker_with_trainer()


def refuse_local_functions(owner: object, state: Mapping[str, Any]) -> None:
    """Check that the functions that an object holds can be sent to another process.

    Args:
        owner: the object, such as a pipe.
        state: attribute -> value, as it is pickled.

    Raises:
        WorkerStartError: names the owner, its argument, and the function.
    """
    for name, value in state.items():
        if isinstance(value, IterDataPipe) and not isinstance(value, SentToWorkers):  # one of torch's
            refuse_local_functions(value, vars(value))
        function = next(_local_functions(value), None)
        if function is not None and (cause := _pickle_error(value)) is not None:
            _refuse(owner, name, function, cause)


def name_what_does_not_pickle(owners: Iterable[tuple[object, Mapping[str, Any]]], error: Exception) -> None:
    """Raise a better error, if starting a process failed because one of these objects does not pickle.

    Args:
        owners: objects, or names of functions, and their attributes or arguments.
        error: what was raised when the process was started.

    Raises:
        WorkerStartError: names the owner, its argument, and the value.
    """
    if isinstance(error, RemoteDataError) or not ("pickle" in str(error).lower() or "local object" in str(error)):
        return
    listed = list(owners)
    for owner, state in listed:
        refuse_local_functions(owner, state)
    for owner, state in listed:
        for name, value in state.items():
            if not isinstance(value, IterDataPipe) and _pickle_error(value) is not None:
                _refuse(owner, name, value, error)


def _refuse_functions_of_loader() -> None:
    """Check what torch's DataLoader sends beside the object that is being pickled: later pipes, and its own functions.

    Raises:
        WorkerStartError: as :func:`refuse_local_functions`.
    """
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_name != "start":
        frame = frame.f_back
    process: Any = None if frame is None else frame.f_locals.get("self")
    target: Any = getattr(process, "_target", None)
    if getattr(target, "__module__", None) != "torch.utils.data._utils.worker":
        return
    sent = dict(zip(inspect.signature(target).parameters, process._args, strict=False))
    dataset = getattr(sent.get("dataset"), "_datapipe", None)  # DataLoader itself wraps the last pipe
    if isinstance(dataset, IterDataPipe) and not isinstance(dataset, SentToWorkers) and not _has_dill():
        refuse_local_functions(dataset, vars(dataset))
    functions = {"collate_fn": sent.get("collate_fn"), "worker_init_fn": sent.get("init_fn")}
    refuse_local_functions("DataLoader", functions)


def _refuse(owner: object, attribute: str, value: object, cause: Exception) -> NoReturn:
    if isinstance(value, FunctionType):
        kind = "a lambda" if value.__name__ == "<lambda>" else f"the local function {value.__qualname__!r}"
        code = value.__code__
        what = f"{kind} ({code.co_filename.rpartition('/')[2]}, line {code.co_firstlineno})"
        remedy = "Use a module-level function; functools.partial adds arguments"
    else:
        what, remedy = (
            f"a {type(value).__name__}",
            "Use objects that pickle, and open files and locks where they are used",
        )
    raise WorkerStartError(
        f"{_place(owner, attribute)} holds {what}, which cannot be sent to a worker process. {remedy}. "
        "num_workers=0 needs no processes."
    ) from cause


def _place(owner: object, attribute: str) -> str:
    """Describe an attribute by the argument with which it was passed."""
    if isinstance(owner, str):
        return f"{owner}({attribute}=...)"
    kind = type(owner)
    names = (*SHARED.items(), *IterDataPipe.functions.items())
    name = next((name for name, made in names if kind in (made, *getattr(made, "args", ()))), None)
    name = name or getattr(kind, "shown_as", kind.__name__)
    argument = attribute.removeprefix("_")
    known = argument in inspect.signature(kind.__init__).parameters
    return f"{name}({argument}=...)" if known else f"{name}(...)"


def _local_functions(value: object, depth: int = 0) -> Iterator[FunctionType]:
    """Yield the functions in a value that pickle cannot find by their name."""
    if isinstance(value, FunctionType):
        if "<" in value.__qualname__:  # <lambda>, <locals>
            yield value
        return
    if depth == _MAX_DEPTH or isinstance(value, IterDataPipe):
        return
    parts: Iterable[object] = ()
    if isinstance(value, functools.partial):
        parts = (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, MethodType):
        parts = (value.__self__,)
    elif isinstance(value, Mapping):
        parts = value.values()
    elif isinstance(value, list | tuple):
        parts = value
    elif type(value).__module__ != "builtins":
        parts = getattr(value, "__dict__", {}).values()
    for part in itertools.islice(parts, _MAX_PARTS):
        yield from _local_functions(part, depth + 1)


def _holds_pipes(value: object) -> bool:
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return isinstance(value, IterDataPipe) or any(isinstance(part, IterDataPipe) for part in parts)


def _pickle_error(value: object) -> Exception | None:
    try:
        ForkingPickler(io.BytesIO()).dump(value)
    except Exception as error:  # noqa: BLE001  # whatever its class does
        return error
    return None


@functools.lru_cache(maxsize=1)
def _has_dill() -> bool:
    return importlib.util.find_spec("dill") is not None
